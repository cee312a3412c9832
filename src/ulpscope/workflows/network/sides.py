"""Finds the two sides of a network's comparison: the dumps of one step of one device, and the reference."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ulpscope.dialects.ascend.executed import read_operators
from ulpscope.dialects.ascend.operations import Operation
from ulpscope.dialects.ascend.tree import (
    DumpEntry,
    DumpFolder,
    DumpName,
    Run,
    has_dumps,
    list_dumps,
    one_run,
    told_unnamed,
)
from ulpscope.dialects.recognising import wrong_kind
from ulpscope.dialects.reference import ReferenceIndex, is_npy_folder, reference_index
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.remarks import Counted, remark
from ulpscope.records.settings import IntRanges
from ulpscope.report.words.language import ranges_text


@dataclass(frozen=True, slots=True)
class Dumps:
    """The operators that one device dumped in one step."""

    folder: DumpFolder
    operations: tuple[Operation, ...]
    """In the order in which they ran; of one that ran several times, the last."""
    call_names: Mapping[DumpName, str]
    """`Relu.0`, as a trace of the same dumps calls them."""
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which of several dumps."""

    steps: IntRanges | None = None
    ranks: IntRanges | None = None


@dataclass(slots=True)
class _Narrowing:
    """Chooses among folders, and tells what is left out."""

    folders: list[DumpFolder]
    missing: list[str] = field(default_factory=list)

    def keep(
        self, word: str, key: Callable[[DumpFolder], int], wanted: IntRanges | None, best: Callable[..., int]
    ) -> None:
        found = sorted({key(folder) for folder in self.folders})
        asked = [number for number in found if wanted is None or number in wanted]
        if not asked:
            raise UlpscopeError(
                f"no {word} {wanted} among the dumps, which have {ranges_text(found)}",
                expected=f"a {word} that was dumped",
                next_step=f"choose another one with --{'ranks' if word == 'device' else 'steps'}",
                code=ExitCode.NOTHING,
            )
        taken = best(asked)
        if len(asked) > 1:
            others = ranges_text([number for number in asked if number != taken])
            self.missing.append(remark(f"{word}_chosen", others=others, taken=taken))
        self.folders = [folder for folder in self.folders if key(folder) == taken]


def read_dumps(folder: DumpFolder, missing: Sequence[str] = ()) -> Dumps:
    """The operators of a directory; files that cannot be read are told, and those that hold stats only."""
    entries = [entry for entry in list_dumps(folder.path) if not entry.name.is_overflow_record]
    executed, problems = read_operators(entries)
    found = [(each.operation, each.name) for each in executed if each.operation is not None]
    failures = list(problems.values())
    if failures and not found:
        raise failures[0]
    told = [*told_unnamed(folder.path), *_told_stats(entries)]
    if failures:
        told.append(remark("dumps_unreadable", files=Counted(len(failures), "file"), problem=failures[0].seen))
    latest: dict[object, Operation] = {}
    for operation, _ in found:
        key = operation.name.operator, operation.op_name, operation.name.op_type
        latest.pop(key, None)
        latest[key] = operation
    names = {operation.name: name for operation, name in found}
    return Dumps(folder, tuple(latest.values()), names, (*missing, *told))


def _told_stats(entries: Sequence[DumpEntry]) -> list[str]:
    dumped = {entry.name.operator for entry in entries if not entry.is_stats}
    alone = [entry.name.operator for entry in entries if entry.is_stats and entry.name.operator not in dumped]
    operators = list(dict.fromkeys(alone))
    return [remark("stats_only", operators=Counted(len(operators), "operator"), example=alone[0])] if alone else []


def find_dumps(path: Path, *, graph: str | None, chosen: Chosen) -> Dumps:
    """The dumps of a network below a directory: its highest step on its first device, unless others are chosen."""
    run = npu_run(path)
    narrowing = _Narrowing(list(run.folders), run.left_out)
    if graph is not None:
        narrowing.folders = _of_graph(narrowing, graph)
    narrowing.keep("device", lambda folder: folder.device, chosen.ranks, min)
    narrowing.keep("step", lambda folder: folder.step, chosen.steps, max)
    if len(narrowing.folders) > 1:
        raise UlpscopeError(
            f"{path} holds dumps of {len(narrowing.folders)} models: "
            + ", ".join(sorted(str(folder.path) for folder in narrowing.folders)[:4]),
            expected="those of one network",
            next_step=f"name one of them: {narrowing.folders[0].path}",
        )
    return read_dumps(narrowing.folders[0], narrowing.missing)


def npu_run(path: Path) -> Run:
    """The newest run; UlpscopeError if there is none, or more than one dump path."""
    run = one_run(path)
    if not run.folders:
        raise wrong_kind(path, "a dump of an NPU") or UlpscopeError(
            f"{path} holds no dump of an NPU" if path.is_dir() else f"{path} does not exist",
            expected="a dump path, or a directory of it: files called TYPE.OPERATOR.TASK.STREAM.TIME",
            next_step="check the path; the reference comes first: ulpscope compare REFERENCE DUMPS --graph GRAPH",
        )
    return run


def _of_graph(narrowing: _Narrowing, graph: str) -> list[DumpFolder]:
    models = sorted({folder.model for folder in narrowing.folders if folder.model is not None})
    matching = matching_model(graph, models)
    if matching is None:
        if len(models) == 1:
            narrowing.missing.append(remark("other_network", model=models[0], graph=graph))
        return narrowing.folders
    return [folder for folder in narrowing.folders if folder.model == matching]


def matching_model(graph: str, models: Iterable[str]) -> str | None:
    """The directory of a graph's dumps: its name; offline models may lack `_0`."""
    known = set(models)
    return next((name for name in (graph, f"{graph}_0", graph.removesuffix("_0")) if name in known), None)


@dataclass(frozen=True, slots=True)
class Reference:
    """The trusted side: what a framework dumped (files of arrays, tfdbg), or another run on a device."""

    files: ReferenceIndex | None = None
    operations: tuple[Operation, ...] | None = None
    missing: tuple[str, ...] = ()


def was_dumped(path: Path) -> bool:
    """Whether a device dumped this: not what a folder of reference arrays happens to have below it."""
    return path.is_dir() and not is_npy_folder(path) and has_dumps(path)


def find_reference(path: Path, *, graph: str, chosen: Chosen) -> Reference:
    """The reference at a path; of several networks that a device dumped there, the one of the graph's name."""
    if was_dumped(path):
        models = [folder.model for folder in npu_run(path).folders if folder.model is not None]
        named = None if matching_model(graph, models) is None else graph
        dumps = find_dumps(path, graph=named, chosen=chosen)
        return Reference(operations=dumps.operations, missing=dumps.missing)
    return Reference(files=reference_index(path))
