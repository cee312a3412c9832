"""Where originals are found: in reference dumps of a framework, or in dumps of another run on a device."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ulpscope.dialects.ascend.dump_records import DumpTensor, Side
from ulpscope.dialects.ascend.names import without_parts
from ulpscope.dialects.ascend.operations import Operation
from ulpscope.dialects.reference import ReferenceIndex, ReferenceTensor
from ulpscope.graph.names import sanitised
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

_FED = re.compile(r"_arg_(.+)_(\d{1,9})_\d+", re.ASCII)
"""What TensorFlow puts in place of an output that is fed: its operator, which output, and which feed it is."""


class References(Protocol):
    """The reference of a comparison."""

    def find(self, original: Original) -> FoundReference | None:
        """The tensor, if the reference holds it; of one that was dumped several times, the last."""


class FileReferences:
    """Reference dumps of a framework: a file an output."""

    def __init__(self, index: ReferenceIndex) -> None:
        self._index = index
        fed = ((_FED.fullmatch(name), (name, output)) for name, output in index)
        self._fed = {(found[1], int(found[2])): key for found, key in fed if found is not None}

    def find(self, original: Original) -> FoundReference | None:
        if original.side is TensorSide.INPUT:
            return None
        key = sanitised(original.operator), original.position
        found = self._index.get(key) or self._index.get(self._fed.get(key, key), ())
        return FileReference(found[-1]) if found else None


class DumpReferences:
    """Dumps of another run on a device."""

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        self._operations = operations

    def find(self, original: Original) -> FoundReference | None:
        operation = operation_of(self._operations, original.operator)
        if operation is None:
            return None
        dump, side = operation.dumps[0], Side(original.side.value)
        dumped = len(dump.inputs if side is Side.INPUT else dump.outputs)
        place = original.position
        if original.described is not None and original.described[1] == dumped:
            place = original.described[0]
        return DumpedTensor(operation, side, place) if place < dumped else None


def operation_of(operations: Mapping[str, Operation], operator: str) -> Operation | None:
    """The dump of an operator of the graph; `operations` has names as files do, or whole where files cannot tell."""
    return operations.get(operator) or operations.get(without_parts(sanitised(operator)))
