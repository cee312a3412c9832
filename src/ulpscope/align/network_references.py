"""Where originals are found: in reference dumps of a framework, or in dumps of another run on a device."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ulpscope.align.network_names import FoundDumps, OriginalNames, SharedName, fed_output, tell_whole_names
from ulpscope.dialects.ascend.dump_file.records import DumpTensor, Side
from ulpscope.dialects.ascend.operations import Operation
from ulpscope.dialects.reference import ReferenceIndex, ReferenceTensor
from ulpscope.graph.names import sanitised
from ulpscope.records.network import NetworkPlan, Original, TensorSide


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

    def find(self, original: Original) -> FoundReference | SharedName | None:
        """The tensor, if the reference holds it; of one that was dumped several times, the last."""


class FileReferences:
    """Reference dumps of a framework: a file an output."""

    def __init__(self, index: ReferenceIndex, plan: NetworkPlan) -> None:
        self._index = index
        fed = ((fed_output(name), (name, output)) for name, output in index)
        self._fed = {found: key for found, key in fed if found is not None}
        whole = tell_whole_names(tensor.op for tensors in index.values() for tensor in tensors)
        self._names = OriginalNames(plan, whole=whole)

    def find(self, original: Original) -> FoundReference | SharedName | None:
        if original.side is TensorSide.INPUT:
            return None
        key = sanitised(original.operator), original.position
        found = self._index.get(key) or self._index.get(self._fed.get(key, key), ())
        chosen = self._names.choose(original, found)
        return FileReference(chosen) if isinstance(chosen, ReferenceTensor) else chosen


class DumpReferences:
    """Dumps of another run on a device."""

    def __init__(self, dumps: FoundDumps) -> None:
        self._dumps = dumps

    def find(self, original: Original) -> FoundReference | SharedName | None:
        operation = self._dumps.get(original.operator)
        if not isinstance(operation, Operation):
            return operation
        dump, side = operation.dumps[0], Side(original.side.value)
        dumped = len(dump.inputs if side is Side.INPUT else dump.outputs)
        place = original.position
        if original.described is not None and original.described[1] == dumped:
            place = original.described[0]
        return DumpedTensor(operation, side, place) if place < dumped else None
