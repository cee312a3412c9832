"""Where originals are found: in reference dumps of a framework, or in dumps of another run on a device."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ulpscope.dialects.ascend.dump_records import DumpTensor, Side
from ulpscope.dialects.ascend.names import sanitised
from ulpscope.dialects.ascend.operations import Operation
from ulpscope.dialects.reference import ReferenceIndex, ReferenceTensor
from ulpscope.records.network import Original, TensorSide


@dataclass(frozen=True, slots=True)
class FileReference:
    """A tensor in a file of its own."""

    tensor: ReferenceTensor

    @property
    def path(self) -> Path:
        return self.tensor.path


@dataclass(frozen=True, slots=True)
class DumpedTensor:
    """A tensor of an operator's dump; of one that ran in slices, the joined one when it is read."""

    operation: Operation
    side: Side
    position: int

    @property
    def path(self) -> Path:
        return self.operation.dumps[0].path

    @property
    def head(self) -> DumpTensor:
        """As the first file describes it."""
        dump = self.operation.dumps[0]
        return (dump.inputs if self.side is Side.INPUT else dump.outputs)[self.position]

    def whole(self) -> DumpTensor:
        """With all of its data."""
        tensors = self.operation.inputs if self.side is Side.INPUT else self.operation.outputs
        return tensors[self.position]


FoundReference = FileReference | DumpedTensor


class References(Protocol):
    """The reference of a comparison."""

    def find(self, original: Original) -> FoundReference | None:
        """The tensor, if the reference holds it; of one that was dumped several times, the last."""


class FileReferences:
    """Reference dumps of a framework: a file an output."""

    def __init__(self, index: ReferenceIndex) -> None:
        self._index = index

    def find(self, original: Original) -> FoundReference | None:
        if original.side is TensorSide.INPUT:
            return None
        found = self._index.get((sanitised(original.operator), original.position), ())
        return FileReference(found[-1]) if found else None


class DumpReferences:
    """Dumps of another run on a device, by operators' names as files have them."""

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        self._operations = operations

    def find(self, original: Original) -> FoundReference | None:
        operation = self._operations.get(sanitised(original.operator))
        if operation is None:
            return None
        dump, side = operation.dumps[0], Side(original.side.value)
        tensors = dump.inputs if side is Side.INPUT else dump.outputs
        return DumpedTensor(operation, side, original.position) if original.position < len(tensors) else None
