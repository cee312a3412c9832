"""Reference dumps: what a framework computed where the numbers are trusted, one file an operator's output.

    index = reference_index(Path("tf/dump"))
    for tensor in index["fc1_Relu", 0]:           all arrays of fc1/Relu's first output, in time order
        tensor.stored().array()

Operators' names are written otherwise in each tool's files, so the index has them as file names do: sanitised.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ulpscope.dialects.stored import StoredTensor
from ulpscope.graph.names import sanitised
from ulpscope.records.errors import UlpscopeError

_DIGITS = re.compile(r"(\D*)(\d{0,18})")


@dataclass(frozen=True, slots=True)
class ReferenceTensor:
    """One output of an operator, in a file of its own."""

    op: str
    """The operator's name as its dump tells it: with '/' where the dump keeps it."""
    index: int
    """Which output."""
    timestamp: int
    """Microseconds."""
    path: Path
    load: Callable[[Path], StoredTensor] = field(compare=False, repr=False)
    device: str = "unknown"

    @property
    def key(self) -> tuple[str, int]:
        """What reference_index has it under."""
        return sanitised(self.op), self.index

    def stored(self) -> StoredTensor:
        """What the file holds; UlpscopeError if it cannot be read."""
        return self.load(self.path)


ReferenceIndex: TypeAlias = Mapping[tuple[str, int], tuple[ReferenceTensor, ...]]


def reference_index(path: Path) -> ReferenceIndex:
    """All arrays of each operator's outputs, in time order; UlpscopeError if this is no reference dump."""
    tensors = reference_tensors(path)
    if tensors is not None:
        return index_of(tensors)
    from ulpscope.dialects.recognising import wrong_kind

    raise wrong_kind(path, "a reference dump") or UlpscopeError(
        f"{path} is no reference dump",
        expected="a directory with OPERATOR.OUTPUT.TIMESTAMP.npy files, or a dump of tfdbg (run_*/_tfdbg_device_*)",
        next_step="check the path",
    )


def is_reference(path: Path) -> bool:
    """Whether this is a reference dump, as far as names tell."""
    return _dialect(path) is not None


def reference_tensors(path: Path) -> list[ReferenceTensor] | None:
    """Every array of a reference dump; none if this is none."""
    dialect = _dialect(path)
    return None if dialect is None else dialect(path)


def _dialect(path: Path) -> Callable[[Path], list[ReferenceTensor]] | None:
    from ulpscope.dialects import npy_folder
    from ulpscope.dialects.tfdbg import opening as tfdbg

    if npy_folder.looks_like(path):
        return npy_folder.tensors_of
    return tfdbg.tensors_of if tfdbg.looks_like(path) else None


def index_of(tensors: Iterable[ReferenceTensor]) -> ReferenceIndex:
    """Tensors by operator and output."""
    found: dict[tuple[str, int], list[ReferenceTensor]] = {}
    for tensor in in_time_order(tensors):
        found.setdefault(tensor.key, []).append(tensor)
    return {key: tuple(several) for key, several in found.items()}


def in_time_order(tensors: Iterable[ReferenceTensor]) -> list[ReferenceTensor]:
    """The earliest first; of the same time by name, numbers in it as numbers."""
    return sorted(tensors, key=lambda each: (each.timestamp, _natural(each.op), each.index, each.path.name))


def _natural(name: str) -> list[tuple[str, int]]:
    """`layer2` before `layer10`."""
    return [(text, int(digits or 0)) for text, digits in _DIGITS.findall(name)]


def executions(tensors: Iterable[ReferenceTensor]) -> list[tuple[ReferenceTensor, ...]]:
    """The outputs of each execution of an operator: the n-th dump of each of them belongs to its n-th execution."""
    seen: dict[tuple[str, int, str], int] = {}
    found: dict[tuple[str, int, str], list[ReferenceTensor]] = {}
    for tensor in in_time_order(tensors):
        output = tensor.op, tensor.index, tensor.device
        number = seen[output] = seen.get(output, -1) + 1
        found.setdefault((tensor.op, number, tensor.device), []).append(tensor)
    return [tuple(sorted(outputs, key=lambda each: each.index)) for outputs in found.values()]
