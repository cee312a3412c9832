"""The dumps of one operator of a graph: what the device dumped of it, and what the reference holds for its outputs."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ulpscope.dialects.ascend.executed import ExecutedTensor, read_executed
from ulpscope.dialects.ascend.names import sanitised, without_parts
from ulpscope.dialects.ascend.tree import DumpEntry, find_folders, list_dumps, newest
from ulpscope.dialects.reference import ReferenceTensor, reference_index
from ulpscope.dialects.stored import AnyArray
from ulpscope.numerics.compiled import summarize_into
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.rows import stats_from_row
from ulpscope.numerics.summary import empty_row, flat_elements
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import Operator
from ulpscope.records.values import Stats
from ulpscope.report.graph_views import DumpedTensor, FoundDumps


def dumps_of(operator: Operator, directory: Path) -> FoundDumps:
    """An operator's inputs and outputs in the newest dump below a directory."""
    folders, _ = newest(list(find_folders(directory)))
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
        for each in executed:
            file = _file(entries, each.timestamp, directory)
            found += [_dumped(tensor, file) for tensor in each.tensors]
        problems += [error.seen for error in bad.values()]
    return FoundDumps(tuple(found), tuple(problems))


def references_of(operator: Operator, directory: Path) -> FoundDumps:
    """What a reference holds for an operator's outputs: of the original operators that they stand for, if any."""
    index = reference_index(directory)
    found, problems = [], []
    for position, key in enumerate(_original_outputs(operator)):
        for tensor in index.get(key, ()):
            try:
                found.append(_reference(tensor, position, directory))
            except UlpscopeError as error:
                problems.append(error.seen)
    return FoundDumps(tuple(found), tuple(problems))


def _original_outputs(operator: Operator) -> Iterator[tuple[str, int]]:
    """Each output's original operator and output, as a reference's index has them."""
    for position, desc in enumerate(operator.outputs):
        origin = desc.origin
        if origin is None or not origin.name:
            yield sanitised(operator.name), position
        else:
            yield sanitised(origin.name), position if origin.output is None else origin.output


def _file(entries: Iterable[DumpEntry], timestamp: int, directory: Path) -> str:
    path = next(entry.path for entry in entries if entry.name.timestamp == timestamp)
    return str(path.relative_to(directory))


def _dumped(tensor: ExecutedTensor, file: str) -> DumpedTensor:
    if tensor.read is not None:
        stats: Stats | None = _stats(tensor.read(), tensor.dtype, tensor.shape)
    else:
        stats = _told_stats(tensor)
    place = f"{tensor.side.value}.{tensor.index}"
    return DumpedTensor(file=file, place=place, dtype=tensor.dtype, shape=tensor.shape, stats=stats)


def _reference(tensor: ReferenceTensor, position: int, directory: Path) -> DumpedTensor:
    stored = tensor.stored()
    stats = _stats(stored.array(), stored.dtype, stored.shape) if stored.dtype in DTYPES else None
    file, place = str(tensor.path.relative_to(directory)), f"output.{position}"
    return DumpedTensor(file=file, place=place, dtype=stored.dtype, shape=stored.shape, stats=stats)


def _stats(array: AnyArray, dtype: str, shape: tuple[int, ...]) -> Stats:
    row = empty_row()
    summarize_into(flat_elements(array, DTYPES[dtype]), dtype, row)
    return stats_from_row(row, dtype, shape)


def _told_stats(tensor: ExecutedTensor) -> Stats | None:
    """What the device itself said about a tensor of which it kept no data."""
    told = tensor.numbers
    if not any(number is not None for number in told.values()):
        return None
    counts = {name: int(told.get(name) or 0) for name in ("nan", "pos_inf", "neg_inf", "set_aside", "subnormal")}
    zero = told.get("zero")
    return Stats(
        min=told.get("min"),
        max=told.get("max"),
        mean=told.get("mean"),
        norm=told.get("norm"),
        abs_sum=told.get("abs_sum"),
        zero=None if zero is None else int(zero),
        exponents=(),
        **counts,
    )
