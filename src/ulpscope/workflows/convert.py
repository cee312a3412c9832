"""`ulpscope convert`: dumps of Ascend NPUs, many files in processes side by side, files of arrays (files of tensors,
folders of them, dumps of tfdbg, traces), and traces in the layout of another tool.

Converters of layouts that a user names are Python files, executed because the user asked for it:

convert_NC1HWC0_to_MYLAYOUT.py      def convert(shape_from, shape_to, array): ...

is what msaccucmp takes: the shapes as lists, the elements flat. A fourth argument, if there is one, gets the number of
groups of a convolution.
"""

import csv
import inspect
import itertools
import os
import re
import runpy
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ulpscope.dialects.ascend.converting import FileKind, Wanted, Written, convert_dump, save_whole, write_array
from ulpscope.dialects.ascend.opening import looks_like
from ulpscope.dialects.ascend.tree import MAPPING_FILE, entry_of, find_folders, list_dumps, unnamed_dumps
from ulpscope.dialects.files.opening import holds_tensors
from ulpscope.dialects.files.torch_files import require_torch
from ulpscope.dialects.msprobe.gradients import write_gradients
from ulpscope.dialects.msprobe.writing import write_msprobe
from ulpscope.dialects.recognising import wrong_kind
from ulpscope.dialects.registry import is_trace
from ulpscope.numerics.dtypes import DTYPES, AnyArray
from ulpscope.numerics.layouts import LAYOUTS, Conversion, Converter
from ulpscope.records.enums import ExitCode, Watch
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.runs import IntRanges
from ulpscope.report.terminal.convert import (
    Converted,
    DumpsConverted,
    NotConverted,
    convert_json,
    convert_text,
    dumps_json,
    dumps_text,
)
from ulpscope.report.words.language import Language
from ulpscope.trace.reader import Trace, open_trace
from ulpscope.trace.watched import is_watched
from ulpscope.workflows.convert_arrays import ArraySource, array_source, folders_of
from ulpscope.workflows.results import prepare_destination
from ulpscope.workflows.worker_pool import WorkerPool, usable_cores

FAILED_LIST = "convert_failed_file_list.txt"
"""As msaccucmp calls it."""

_WANTED = "a dump file of an Ascend NPU, a file of tensors, or a directory with some below it"
_WORTH_PROCESSES = 64 * 2**20
"""Bytes below which starting processes takes longer than the work."""
_BATCHES = 8
"""Orders that each process gets, so that all end at about the same time."""


@dataclass(frozen=True, slots=True)
class Job:
    """A dump file, or a source of arrays, and where its tensors go."""

    source: Path
    folder: Path
    size: int
    record: bool = False


@dataclass(frozen=True, slots=True)
class ConvertResult:
    """What became of dump files, or of each trace."""

    found: Any
    """DumpsConverted, or a list of Converted and NotConverted."""
    code: ExitCode

    def text(self, language: Language = Language.EN) -> str:
        if isinstance(self.found, DumpsConverted):
            return dumps_text(self.found, language)
        return convert_text(self.found)

    def json(self) -> dict[str, Any]:
        return dumps_json(self.found) if isinstance(self.found, DumpsConverted) else convert_json(self.found)


_Outcome = tuple[Job, Written]


def _array_sources(sources: Sequence[Path], wanted: Wanted) -> list[Path]:
    """Those of the sources that hold arrays, and are no dumps of an NPU."""
    found = [source for source in sources if not looks_like(source) and (is_trace(source) or holds_tensors(source))]
    if found and (wanted.layout is not None or wanted.side is not None):
        option = "--layout" if wanted.side is None else f"--{wanted.side.value}"
        raise UlpscopeError(
            f"{option} with {found[0]}, which is no dump of an NPU",
            expected="a dump file: arrays of other files have neither a device's layout nor inputs and outputs",
            next_step=f"leave {option} out",
        )
    return found


def _write_arrays(source: ArraySource, out: Path, kind: FileKind) -> Written:
    """Write every array of a source; a name that is there already is a failure."""
    written = Written()
    for array in source.arrays:
        file, folder = f"{array.name.replace('/', '_')}.{kind.value}", out / array.folder
        try:
            if os.path.lexists(folder / file):
                raise UlpscopeError(
                    f"{file} would be written twice", expected="names of their own", next_step="convert one by one"
                )
            tensor = array.load()
            if array.of_dump and tensor.dtype not in DTYPES:
                written.without_data.append(f"{array.name} ({tensor.dtype})")
                continue
            elements = tensor.array()
            save_whole(folder, file, partial(write_array, array=elements, kind=tensor.dtype, file_kind=kind), written)
        except (UlpscopeError, OSError, ValueError, MemoryError) as error:
            problem = error.seen if isinstance(error, UlpscopeError) else str(error)
            written.failures.append(f"{source.path}: {problem}")
    return written


def convert_dumps(
    sources: Sequence[Path],
    wanted: Wanted,
    *,
    out: Path,
    steps: IntRanges | None = None,
    converters: Sequence[Path] = (),
    jobs: int | None = None,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> ConvertResult:
    """Write the tensors of dump files, and of all dump files below directories, as files of another kind."""
    own = load_converters(converters)
    known = (*LAYOUTS, *(target for _, target in own))
    # A misspelled one would leave every tensor as it is.
    if wanted.layout is not None and wanted.layout not in known:
        own_file = f"convert_A_to_{wanted.layout}.py"
        raise UlpscopeError(
            f"--layout {wanted.layout} is not known",
            expected=f"one of {', '.join(known)}",
            next_step=f"name one of these, or give a converter of your own: --converter {own_file}",
        )
    if wanted.kind is FileKind.PT:
        require_torch()
    holding = _array_sources(sources, wanted)
    dumps = [source for source in sources if source not in holding]
    if steps is not None and dumps:
        raise UlpscopeError(
            f"--steps with {dumps[0]}, which is no trace and no dump of tfdbg",
            expected="a trace, or a dump of tfdbg",
            next_step="leave --steps out, or name the directory of one step",
        )
    arrays = [array_source(source, steps) for source in holding]
    planned = _plan(dumps, out)
    prepare_out(out)
    for folder in {job.folder for job in planned} | {out / name for name in folders_of(arrays)}:
        folder.mkdir(parents=True, exist_ok=True)
    outcomes = [(Job(each.path, out, each.size), _write_arrays(each, out, wanted.kind)) for each in arrays]
    done, total = 0, sum(job.size for job in planned)
    processes = min(jobs or usable_cores(), len(planned))
    if processes < 2 or total < _WORTH_PROCESSES:
        converted: Iterator[_Outcome] = (_convert(job, wanted, own) for job in planned)
    else:
        converted = _side_by_side(planned, wanted, converters, processes)
    for outcome in converted:
        outcomes.append(outcome)
        done += outcome[0].size
        told(done, total)
    found = _finish(out, sorted(outcomes, key=lambda outcome: outcome[0].source), wanted.kind, of_npu=not arrays)
    found = replace(found, told=tuple(dict.fromkeys(told_of for each in arrays for told_of in each.told)))
    code = ExitCode.OK if found.written else ExitCode.NOTHING
    return ConvertResult(found, ExitCode.DIFFERENCE if found.failures else code)


def _plan(sources: Sequence[Path], out: Path) -> list[Job]:
    planned: dict[Path, Job] = {}
    for source in sources:
        jobs = list(_jobs(source, out))
        if not jobs:
            raise _no_dumps(source, "holds no dump file")
        for job in jobs:
            other = planned.setdefault(job.folder / job.source.name, job)
            if other is not job and not other.source.samefile(job.source):
                raise UlpscopeError(
                    f"{other.source} and {job.source} would be written to the same files below {job.folder}",
                    expected="dump files with names of their own",
                    next_step="convert them one after the other, each with an -o of its own",
                )
    return list(planned.values())


def _jobs(source: Path, out: Path) -> Iterator[Job]:
    if source.is_dir():
        for folder in (each.path for each in find_folders(source)):
            below = out / folder.relative_to(source)
            # Stats have nothing to convert.
            named = [(entry.path, entry.name.is_overflow_record) for entry in list_dumps(folder) if not entry.is_stats]
            for file, record in (*named, *((folder / name, False) for name in unnamed_dumps(folder))):
                yield Job(file, below, file.stat().st_size, record)
    elif source.is_file():
        entry = entry_of(source)
        if entry is not None and entry.is_stats:
            raise _no_dumps(source, "holds stats, and no tensor")
        # A dump file may have any name, but is nothing else that is known.
        other = wrong_kind(source, _WANTED, command="convert") if entry is None else None
        if other is not None:
            raise other
        yield Job(source, out, source.stat().st_size, entry is not None and entry.name.is_overflow_record)
    else:
        raise _no_dumps(source, "does not exist")


def _side_by_side(
    planned: Sequence[Job], wanted: Wanted, converters: Sequence[Path], processes: int
) -> Iterator[_Outcome]:
    batch = max(1, len(planned) // (processes * _BATCHES))
    # The largest first, so that none of them is begun when the others are done.
    ordered = sorted(planned, key=lambda job: -job.size)
    with WorkerPool(processes, _load, (converters,)) as pool:
        try:
            yield from pool.map(partial(_convert_there, wanted=wanted), ordered, chunksize=batch)
        except BrokenProcessPool as error:
            raise UlpscopeError(
                "a process that converts has died",
                expected="memory for the largest tensor of a dump, twice, in each process",
                next_step="repeat with --jobs 1, in another directory",
            ) from error


_loaded: dict[tuple[str, str], Converter] = {}
"""In a worker process: the user's converters."""


def _load(converters: Sequence[Path]) -> None:
    _loaded.update(load_converters(converters))


def _convert_there(job: Job, wanted: Wanted) -> _Outcome:
    return _convert(job, wanted, _loaded)


def _convert(job: Job, wanted: Wanted, own: dict[tuple[str, str], Converter]) -> _Outcome:
    try:
        return job, convert_dump(job.source, wanted, job.folder, record=job.record, own=own)
    except UlpscopeError as error:
        return job, Written(failures=[error.seen])
    except (OSError, MemoryError) as error:
        return job, Written(failures=[f"{job.source}: {error}"])


def _finish(out: Path, outcomes: Sequence[_Outcome], kind: FileKind, *, of_npu: bool) -> DumpsConverted:
    failures = [NotConverted(str(job.source), why) for job, written in outcomes for why in written.failures]
    if failures:
        listed = "".join(f"{source}\n" for source in sorted({failure.source for failure in failures}))
        (out / FAILED_LIST).write_text(listed, encoding="utf-8", errors="surrogateescape")
    renamed: dict[Path, dict[str, str]] = defaultdict(dict)
    for job, written in outcomes:
        if written.renamed:
            renamed[job.folder].update(written.renamed)
    for folder, names in renamed.items():
        with open(folder / MAPPING_FILE, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(sorted(names.items()))
    return DumpsConverted(
        out=str(out),
        kind=kind.value,
        dumps=len(outcomes),
        of_npu=of_npu,
        written=sum(len(written.files) for _, written in outcomes),
        bytes_read=sum(job.size for job, _ in outcomes),
        renamed=sum(len(written.renamed) for _, written in outcomes),
        as_they_were=tuple(f"{job.source.name}.{each}" for job, written in outcomes for each in written.as_they_were),
        without_data=tuple(
            f"{job.source.name}/{each}" if job.source.is_dir() else f"{job.source.name}.{each}"
            for job, written in outcomes
            for each in written.without_data
        ),
        failures=tuple(failures),
        failed_list=str(out / FAILED_LIST) if failures else None,
    )


def _no_dumps(source: Path, problem: str) -> UlpscopeError:
    return wrong_kind(source, _WANTED, command="convert") or UlpscopeError(
        f"{source} {problem}",
        expected=_WANTED,
        next_step="check the path; stats are read by ulpscope show",
        code=ExitCode.USAGE if problem == "does not exist" else ExitCode.NOTHING,
    )


def convert_traces(
    sources: Sequence[Path], *, out: Path, told: Callable[[int, int], None] = lambda done, total: None
) -> ConvertResult:
    """Write traces in msprobe's layout: one into `out` itself, several each into a directory of its own name below it.

    `told` is given the steps that are done, and those that there are."""
    opened: list[Trace | NotConverted] = []
    for source in sources:
        try:
            opened.append(open_trace(source))
        except UlpscopeError as error:
            told_of = wrong_kind(source, "a trace of torch's calls: msprobe's layout has names for these alone")
            if len(sources) == 1:
                raise (told_of or error) from error
            opened.append(NotConverted(str(source), (told_of or error).seen))
    names = [source.resolve().name for source in sources]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UlpscopeError(
            f"several traces are called {', '.join(twice)}",
            expected="a name of its own for each, because each becomes a directory of that name",
            next_step="convert them one by one, each with its own -o",
        )
    folders = [out] if len(sources) == 1 else [out / name for name in names]
    prepare_out(out)
    total = sum(len(rank.steps) for trace in opened if isinstance(trace, Trace) for rank in trace.ranks)
    steps = itertools.count(1)
    results: list[Converted | NotConverted] = []
    for trace, folder in zip(opened, folders, strict=True):
        if isinstance(trace, Trace):
            write = write_gradients if is_watched(trace.path, Watch.GRADIENTS) else write_msprobe
            done = write(trace, folder, told=lambda: told(next(steps), total))
            results.append(Converted(str(trace.path), str(folder), done, trace.missing))
        else:
            results.append(trace)
    written = [result.written for result in results if isinstance(result, Converted)]
    code = ExitCode.OK if any(each.entries for each in written) else ExitCode.NOTHING
    if len(written) < len(results) or any(each.failures for each in written):
        code = ExitCode.DIFFERENCE
    return ConvertResult(results, code)


def prepare_out(out: Path) -> None:
    """Make `out` an empty directory, or say why it cannot be one."""
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise UlpscopeError(
            f"{out} is not empty" if out.is_dir() else f"{out} is not a directory",
            expected="a directory that does not exist yet or is empty",
            next_step=f"choose another directory, e.g. -o {shlex.quote(str(out.with_name(out.name + '-converted')))}",
        )
    prepare_destination(out, overwrite=False)


_NAME = re.compile(r"convert_(?P<source>\w+?)_to_(?P<target>\w+)\.py")
_GROUPS_PLACE = 3


def load_converters(files: Iterable[Path]) -> dict[tuple[str, str], Converter]:
    """The converters of some files, by source and target layout."""
    found = {}
    for file in files:
        named = _NAME.fullmatch(file.name)
        if named is None:
            raise _bad_converter(file, "its name does not say from which layout to which it converts")
        try:
            function = runpy.run_path(str(file)).get("convert")
        except Exception as error:  # whatever the user's file raises is told as what it is
            raise _bad_converter(file, f"cannot be executed ({type(error).__name__}: {error})") from error
        if not callable(function):
            raise _bad_converter(file, "has no function convert")
        found[named["source"], named["target"]] = _adapted(function, file)
    return found


def _adapted(function: Callable[..., Any], file: Path) -> Converter:
    takes_groups = len(inspect.signature(function).parameters) > _GROUPS_PLACE

    def convert(array: AnyArray, wanted: Conversion) -> AnyArray:
        flat = np.ascontiguousarray(array).reshape(-1)
        groups = (wanted.groups,) if takes_groups else ()
        try:
            found = np.asarray(function(list(array.shape), list(wanted.shape or ()), flat, *groups))
        except Exception as error:  # see above
            raise _bad_converter(file, f"failed ({type(error).__name__}: {error})") from error
        if found.dtype != array.dtype:
            raise _bad_converter(file, f"was given {array.dtype} and gave {found.dtype}")
        return found

    return convert


def _bad_converter(file: Path, problem: str) -> UlpscopeError:
    return UlpscopeError(
        f"the converter {file} {problem}",
        expected="a file convert_A_to_B.py with a function convert(shape_from, shape_to, array) or (..., groups), "
        "which gives an array of the same elements",
        next_step="see docs/convert.md for an example",
    )
