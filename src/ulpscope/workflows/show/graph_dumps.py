"""The dumps of one operator of a graph: what the device dumped of it, and what the reference holds for its outputs."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from ulpscope.align.network.names import fed_output
from ulpscope.dialects.ascend.executed import ExecutedTensor, read_executed
from ulpscope.dialects.ascend.tree import DumpEntry, list_dumps, newest_runs, without_parts
from ulpscope.dialects.reference import ReferenceIndex, ReferenceTensor, reference_index
from ulpscope.dialects.tables import stats_of
from ulpscope.graph.names import sanitised
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import Operator
from ulpscope.report.terminal.show_graph import FoundDumps, SummarisedTensor

ReferenceKey: TypeAlias = tuple[str, int]
"""An operator as files call it, and one of its outputs."""


def dumps_of(operator: Operator, directory: Path) -> FoundDumps:
    """An operator's inputs and outputs in the newest dump of each dump path below a directory."""
    folders = [folder for run in newest_runs(directory) for folder in run.folders]
    if not folders:
        raise UlpscopeError(
            f"{directory} holds no dump of an NPU",
            expected="a dump path, or a directory of it: files called TYPE.OPERATOR.TASK.STREAM.TIME",
            next_step="check the path",
        )
    wanted = without_parts(sanitised(operator.name))
    found, problems = [], []
    for folder in folders:
        entries = [entry for entry in list_dumps(folder.path) if entry.name.operator == wanted]
        executed, bad = read_executed(entries)
        for each in (each for each in executed if _may_be(each.op_name, operator.name)):
            file = _file(entries, each.timestamp, directory)
            found += [_dumped(tensor, file) for tensor in each.tensors]
        problems += [error.seen for error in bad.values()]
    return FoundDumps(tuple(found), tuple(problems))


def references_of(operator: Operator, directory: Path) -> FoundDumps:
    """What a reference holds for an operator's outputs: of the original operators that they stand for, if any."""
    index = reference_index(directory)
    found, problems = [], []
    for position, original, key in _original_outputs(operator, index):
        own = (tensor for tensor in index.get(key, ()) if _may_be(tensor.op, original))
        for tensor in own:
            try:
                found.append(_reference(tensor, position, directory))
            except UlpscopeError as error:
                problems.append(error.seen)
    return FoundDumps(tuple(found), tuple(problems))


def _may_be(told: str, name: str) -> bool:
    """Whether a dump that tells this name may be of an operator: files have one name for a/b and a_b."""
    return told == sanitised(told) or without_parts(told) == without_parts(name) or fed_output(told) is not None


def _original_outputs(operator: Operator, index: ReferenceIndex) -> Iterator[tuple[int, str, ReferenceKey]]:
    """Outputs, each with its original operator and output as a reference's index has them."""
    alone = operator.originals[0] if operator.originals is not None and len(operator.originals) == 1 else operator.name
    if not operator.outputs:
        # Graphs of TensorFlow do not describe outputs.
        yield from ((key[1], alone, key) for key in sorted(index) if key[0] == sanitised(alone))
    for position, desc in enumerate(operator.outputs):
        origin = desc.origin
        if origin is None or not origin.name:
            yield position, alone, (sanitised(alone), position)
        else:
            output = position if origin.output is None else origin.output
            yield position, origin.name, (sanitised(origin.name), output)


def _file(entries: Iterable[DumpEntry], timestamp: int, directory: Path) -> str:
    path = next(entry.path for entry in entries if entry.name.timestamp == timestamp)
    return str(path.relative_to(directory))


def _dumped(tensor: ExecutedTensor, file: str) -> SummarisedTensor:
    return SummarisedTensor(file=file, place=tensor.place, dtype=tensor.dtype, shape=tensor.shape, stats=tensor.stats())


def _reference(tensor: ReferenceTensor, position: int, directory: Path) -> SummarisedTensor:
    stored = tensor.stored()
    stats = stats_of(stored.array(), stored.dtype) if stored.dtype in DTYPES else None
    file, place = str(tensor.path.relative_to(directory)), f"output.{position}"
    return SummarisedTensor(file=file, place=place, dtype=stored.dtype, shape=stored.shape, stats=stats)
