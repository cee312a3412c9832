"""The tensors of a dump file, or of a whole dump, by name: what `ulpscope diff` compares."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ulpscope.dialects.ascend.executed import read_executed
from ulpscope.dialects.ascend.runs import entry_of, one_run
from ulpscope.dialects.ascend.tree import DumpEntry, DumpFolder, has_dumps, list_dumps
from ulpscope.dialects.stored import AnyArray, StoredTensor, TensorFile, unsupported
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.errors import UlpscopeError


def holds_dumps(path: Path) -> bool:
    """Whether this is a dump file, or a directory with some below it, as far as names tell."""
    return has_dumps(path) if path.is_dir() else entry_of(path) is not None


def read_dump_tensors(path: Path) -> TensorFile:
    """`output.0` of a file; `fc1/Relu.output.0` of a directory, its newest run, of each operator what it did last.

    Of several devices or steps, names begin with `device1/` or `step3/`.
    """
    entry = None if path.is_dir() else entry_of(path)
    if entry is not None:
        return _tensors([entry], lambda _: "")
    folders: dict[tuple[int, int], list[DumpFolder]] = {}
    for folder in one_run(path).folders:
        folders.setdefault((folder.device, folder.step), []).append(folder)
    found: dict[str, StoredTensor] = {}
    for (device, step), several in sorted(folders.items()):
        place = f"device{device}/" if len({device for device, _ in folders}) > 1 else ""
        place += f"step{step}/" if len({step for _, step in folders}) > 1 else ""
        entries = [one for folder in several for one in list_dumps(folder.path)]
        tensors = _tensors(entries, lambda operator: f"{operator}.")
        found |= {f"{place}{name}": tensor for name, tensor in tensors.items()}
    return found


def _tensors(entries: Sequence[DumpEntry], prefix: Callable[[str], str]) -> dict[str, StoredTensor]:
    """Tensors by name, and under its own name each file that cannot be read."""
    executed, problems = read_executed(entries)
    if problems and not executed:
        raise next(iter(problems.values()))
    found = {file.name: StoredTensor("unreadable", (), partial(_refuse, error)) for file, error in problems.items()}
    for one in executed:
        for tensor in one.tensors:
            name = f"{prefix(one.op_name)}{tensor.side.value}.{tensor.index}"
            if tensor.read is not None:
                found[name] = StoredTensor(tensor.dtype, tensor.shape, tensor.read)
            elif tensor.dtype not in DTYPES:
                found[name] = unsupported(entries[0].path.parent, name, dtype=tensor.dtype, shape=tensor.shape)
    return found


def _refuse(error: UlpscopeError) -> AnyArray:
    raise error
