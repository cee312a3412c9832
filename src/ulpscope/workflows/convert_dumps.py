"""`ulpscope convert` for dumps of Ascend NPUs: many files, in processes side by side."""

import csv
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ulpscope.dialects.ascend.array_files import FileKind
from ulpscope.dialects.ascend.converting import Wanted, Written, convert_dump
from ulpscope.dialects.ascend.names import parse_name
from ulpscope.dialects.ascend.tree import MAPPING_FILE, find_folders, list_dumps, unnamed_dumps
from ulpscope.dialects.pt_writing import require_torch
from ulpscope.numerics.layouts import Converter
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.convert_dumps import DumpsConverted, FileFailure, dumps_json, dumps_text
from ulpscope.workflows.convert import prepare_out
from ulpscope.workflows.convert_converters import load_converters
from ulpscope.workflows.cores import usable_cores
from ulpscope.workflows.worker_pool import WorkerPool

FAILED_LIST = "convert_failed_file_list.txt"
"""As msaccucmp calls it."""

_WORTH_PROCESSES = 64 * 2**20
"""Bytes below which starting processes takes longer than the work."""
_BATCHES = 8
"""Orders that each process gets, so that all end at about the same time."""


@dataclass(frozen=True, slots=True)
class Job:
    """A dump file, and where its tensors go."""

    source: Path
    folder: Path
    record: bool
    size: int


@dataclass(frozen=True, slots=True)
class DumpsResult:
    """What became of the dump files."""

    told: DumpsConverted

    @property
    def code(self) -> ExitCode:
        if self.told.failures:
            return ExitCode.DIFFERENCE
        return ExitCode.OK if self.told.written else ExitCode.NOTHING

    def text(self) -> str:
        return dumps_text(self.told)

    def json(self) -> dict[str, Any]:
        return dumps_json(self.told)


@dataclass(slots=True)
class _Outcome:
    source: str
    written: Written = field(default_factory=Written)
    failure: str | None = None


def convert_dumps(
    sources: Sequence[Path],
    wanted: Wanted,
    *,
    out: Path,
    converters: Sequence[Path] = (),
    jobs: int | None = None,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> DumpsResult:
    """Write the tensors of dump files, and of all dump files below directories, as files of another kind."""
    load_converters(converters)
    if wanted.kind is FileKind.PT:
        require_torch()
    planned = [job for source in sources for job in _plan(source, out)]
    prepare_out(out)
    for folder in {job.folder for job in planned}:
        folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    done = 0
    total = sum(job.size for job in planned)
    for job, outcome in _converted(planned, wanted, converters, jobs or usable_cores()):
        outcomes.append(outcome)
        done += job.size
        told(done, total)
    return DumpsResult(_finish(out, planned, outcomes, wanted.kind))


def _plan(source: Path, out: Path) -> Iterator[Job]:
    if source.is_dir():
        found = False
        for folder in find_folders(source):
            place = out / folder.path.relative_to(source)
            for file, record in _files(folder.path):
                found = True
                yield Job(file, place, record, file.stat().st_size)
        if not found:
            raise _no_dumps(source, "holds no dump file")
    elif source.is_file():
        name = parse_name(source.name)
        yield Job(source, out, name is not None and name.is_overflow_record, source.stat().st_size)
    else:
        raise _no_dumps(source, "does not exist")


def _files(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Dump files of a folder, and whether each is an overflow record; stats have nothing to convert."""
    for entry in list_dumps(folder):
        if not entry.is_stats:
            yield entry.path, entry.name.is_overflow_record
    for name in unnamed_dumps(folder):
        yield folder / name, False


def _converted(
    planned: Sequence[Job], wanted: Wanted, converters: Sequence[Path], jobs: int
) -> Iterator[tuple[Job, _Outcome]]:
    processes = min(jobs, len(planned))
    if processes < 2 or sum(job.size for job in planned) < _WORTH_PROCESSES:
        own = load_converters(converters)
        yield from ((job, _convert(job, wanted, own)) for job in planned)
        return
    batch = max(1, len(planned) // (processes * _BATCHES))
    # The largest first, so that none of them is begun when the others are done.
    ordered = sorted(planned, key=lambda job: -job.size)
    with WorkerPool(processes, _start, (wanted, tuple(converters))) as pool:
        try:
            yield from zip(ordered, pool.map(_convert_here, ordered, chunksize=batch), strict=True)
        except BrokenProcessPool as error:
            raise UlpscopeError(
                "a process that converts has died",
                expected="memory for the largest tensor of a dump, twice, in each process",
                next_step="repeat with --jobs 1, in another directory",
            ) from error


_here: tuple[Wanted, dict[tuple[str, str], Converter]] | None = None
"""In a worker process: what it was told at its start."""


def _start(wanted: Wanted, converters: tuple[Path, ...]) -> None:
    global _here
    _here = wanted, load_converters(converters)


def _convert_here(job: Job) -> _Outcome:
    assert _here is not None
    return _convert(job, *_here)


def _convert(job: Job, wanted: Wanted, own: dict[tuple[str, str], Converter]) -> _Outcome:
    outcome = _Outcome(str(job.source))
    try:
        outcome.written = convert_dump(job.source, wanted, job.folder, record=job.record, own=own)
    except UlpscopeError as error:
        outcome.failure = error.seen
    except (OSError, MemoryError) as error:
        outcome.failure = f"{job.source}: {error}"
    return outcome


def _finish(out: Path, planned: Sequence[Job], outcomes: Sequence[_Outcome], kind: FileKind) -> DumpsConverted:
    failures = [FileFailure(one.source, one.failure) for one in outcomes if one.failure is not None]
    if failures:
        listed = "".join(f"{failure.source}\n" for failure in sorted(failures, key=lambda one: one.source))
        (out / FAILED_LIST).write_text(listed, encoding="utf-8")
    folders = {str(job.source): job.folder for job in planned}
    renamed: dict[Path, dict[str, str]] = {}
    for one in outcomes:
        if one.written.renamed:
            renamed.setdefault(folders[one.source], {}).update(one.written.renamed)
    for folder, names in renamed.items():
        with open(folder / MAPPING_FILE, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(sorted(names.items()))
    return DumpsConverted(
        out=str(out),
        kind=kind.value,
        dumps=len(outcomes),
        written=sum(len(one.written.files) for one in outcomes),
        bytes_read=sum(job.size for job in planned),
        renamed=sum(len(one.written.renamed) for one in outcomes),
        as_they_were=_places(outcomes, "as_they_were"),
        without_data=_places(outcomes, "without_data"),
        failures=tuple(failures),
        failed_list=str(out / FAILED_LIST) if failures else None,
    )


def _places(outcomes: Sequence[_Outcome], what: str) -> tuple[str, ...]:
    return tuple(f"{Path(one.source).name}.{tensor}" for one in outcomes for tensor in getattr(one.written, what))


def _no_dumps(source: Path, problem: str) -> UlpscopeError:
    return UlpscopeError(
        f"{source} {problem}",
        expected="a dump file of an Ascend NPU, or a directory with some below it",
        next_step="check the path; a trace of ours is converted with --to msprobe",
        code=ExitCode.NOTHING if problem.startswith("holds") else ExitCode.USAGE,
    )
