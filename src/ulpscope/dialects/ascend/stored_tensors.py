"""The tensors of a dump file, or of a whole dump, by name: what `ulpscope diff` compares."""

from functools import partial
from pathlib import Path

from ulpscope.dialects.ascend.executed import ExecutedTensor, read_executed
from ulpscope.dialects.ascend.runs import entry_of, one_run
from ulpscope.dialects.ascend.tree import has_dumps, list_dumps
from ulpscope.dialects.stored import AnyArray, StoredTensor, TensorFile


def holds_dumps(path: Path) -> bool:
    """Whether this is a dump file, or a directory with some below it, as far as names tell."""
    return has_dumps(path) if path.is_dir() else entry_of(path) is not None


def read_dump_tensors(path: Path) -> TensorFile:
    """`output.0` of a file; `fc1/Relu.output.0` of a directory, its newest run, of each operator what it did last."""
    entry = None if path.is_dir() else entry_of(path)
    entries = (
        [entry] if entry is not None else [one for folder in one_run(path).folders for one in list_dumps(folder.path)]
    )
    executed, problems = read_executed(entries)
    if problems and not executed:
        raise next(iter(problems.values()))
    found: dict[str, StoredTensor] = {}
    for one in executed:
        prefix = "" if entry is not None else f"{one.op_name}."
        for tensor in one.tensors:
            if tensor.read is not None:
                found[f"{prefix}{tensor.side.value}.{tensor.index}"] = _stored(tensor)
    return found


def _stored(tensor: ExecutedTensor) -> StoredTensor:
    return StoredTensor(tensor.dtype, tensor.shape, partial(_read, tensor))


def _read(tensor: ExecutedTensor) -> AnyArray:
    assert tensor.read is not None
    return tensor.read()
