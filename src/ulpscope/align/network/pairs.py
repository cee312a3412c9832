"""The plan of a network brought together with what was dumped: a row a tensor, with its partner or why it has none.

Which rows there are, in which order, and the words for what is missing are those of msaccucmp's result tables.
Originals are found in reference dumps of a framework, or in dumps of another run on a device.

A device's tensor is compared in the order and shape that its partner has: the graph says in which order the original's
axes are. Where the partner's shape is another order of the same axes (a network of one framework, a reference of
another), that is the order.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from ulpscope.align.network.names import FoundDumps, OriginalNames, SharedName, fed_output, tell_whole_names
from ulpscope.align.network.planning import makes_integers, reads_integers
from ulpscope.dialects.ascend.dump_file.records import AnyArray, DumpTensor, Shape, Side
from ulpscope.dialects.ascend.logical import VECTOR, Logical, logical_array, logical_form
from ulpscope.dialects.ascend.operations import Operation
from ulpscope.dialects.reference import ReferenceIndex, ReferenceTensor
from ulpscope.graph.names import sanitised
from ulpscope.numerics.layouts import IMAGES, TILED, is_plain, permuted_shape, plain_layouts
from ulpscope.records.graphs import (
    NetworkPlan,
    Operator,
    OperatorGroup,
    Original,
    PlannedOperator,
    PlannedTensor,
    Relation,
    TensorSide,
)


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


FoundReference = ReferenceTensor | DumpedTensor
"""A tensor in a file of its own, or in a dump."""


class FileReferences:
    """Reference dumps of a framework: a file an output."""

    def __init__(self, index: ReferenceIndex, plan: NetworkPlan) -> None:
        self._index = index
        fed = ((fed_output(name), (name, output)) for name, output in index)
        self._fed = {found: key for found, key in fed if found is not None}
        whole = tell_whole_names(tensor.op for tensors in index.values() for tensor in tensors)
        self._names = OriginalNames(plan, whole=whole)

    def find(self, original: Original) -> FoundReference | SharedName | None:
        """The tensor, if the reference holds it; of one that was dumped several times, the last."""
        if original.side is TensorSide.INPUT:
            return None
        key = sanitised(original.operator), original.position
        found = self._index.get(key) or self._index.get(self._fed.get(key, key), ())
        return self._names.choose(original, found)


class DumpReferences:
    """Dumps of another run on a device."""

    def __init__(self, dumps: FoundDumps) -> None:
        self._dumps = dumps

    def find(self, original: Original) -> FoundReference | SharedName | None:
        """The same in dumps."""
        operation = self._dumps.get(original.operator)
        if not isinstance(operation, Operation):
            return operation
        dump, side = operation.dumps[0], Side(original.side.value)
        dumped = len(dump.inputs if side is Side.INPUT else dump.outputs)
        place = original.position
        if original.described is not None and original.described[1] == dumped:
            place = original.described[0]
        return DumpedTensor(operation, side, place) if place < dumped else None


References: TypeAlias = FileReferences | DumpReferences
"""The reference of a comparison."""

NO_DUMP = '[{name}] There is no dump file for my output operator "{name}". The type is {type}.'
NO_REFERENCE = "[{name}] There is no the ground truth dump file for {tensor}."
ONLY_TARGET = '[{name}] There is no the ground truth dump file for the op "{name}".'
ONLY_REFERENCE = '[{name}] There is no the my output dump file for the op "{name}".'
SHARED_DUMP = "[{name}] The dump files of {shared} have the same name and cannot be told apart."
SHARED_REFERENCE = "[{name}] The ground truth dump files of {shared} have the same name and cannot be told apart."
INNER = "[{name}] The op is inner node for multi to multi relation.Skip the op."

_NOTHING_PLANNED = PlannedTensor()
_SEVERAL = frozenset((Relation.SPLIT, Relation.REBUILT, Relation.L1_FUSION))


class Listing(str, Enum):
    """In which of msaccucmp's tables a row stands."""

    BOTH = "result and mapping"
    MAPPING = "mapping"
    """Operators inside of a group: their outputs have no original."""
    PART = "mapping, not compared"
    """Operators inside of an L1 fusion: they pass tensors on in parts, and what is dumped of these is not whole."""
    RESULT = "result"
    """Stands for a group of which nothing was dumped."""


@dataclass(frozen=True, slots=True)
class Stated:
    """What the graph says about the tensor that one stands for."""

    layout: str | None = None
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class NetworkRow:
    """One tensor of one operator, or an operator without a dump."""

    index: int
    """Of the group."""
    names: str
    """Operators of the group, as the column NPUDump has them."""
    originals: str
    member: PlannedOperator
    tensor: DumpedTensor | None = None
    planned: PlannedTensor = _NOTHING_PLANNED
    original: Original | None = None
    reference: FoundReference | None = None
    reason: str = ""
    """Why there is nothing to compare."""
    listing: Listing = Listing.BOTH
    shared: tuple[str, ...] = ()
    """Operators, or originals, that one of its files may be of; it is compared with none of these."""

    @property
    def operator(self) -> Operator:
        return self.member.operator

    @property
    def tensor_id(self) -> str | None:
        """`fc1/Relu:output:0`."""
        if self.tensor is None:
            return None
        return f"{self.operator.name}:{self.tensor.side.value}:{self.tensor.position}"

    @property
    def stated(self) -> Stated:
        """What the graph says about the tensor's original."""
        return Stated() if self.original is None else Stated(self.original.layout, self.original.shape)


def pair_network(plan: NetworkPlan, dumps: FoundDumps, references: References) -> list[NetworkRow]:
    """The rows of all operators of a graph."""
    pairing = _Pairing(dumps, references)
    return [row for group in plan.groups for row in pairing.rows(group)]


def pair_dumps(
    dumps: Mapping[str, Operation], others: Mapping[str, Operation], references: References
) -> list[NetworkRow]:
    """The same without a graph: operators of equal names, in the order in which the target ran them."""
    pairing = _Pairing(dumps, references)
    rows: list[NetworkRow] = []
    for index, name in enumerate(dict.fromkeys((*dumps, *others))):
        member = _member_of_dump(name, dumps.get(name) or others[name])
        if name in dumps and name in others:
            rows += pairing.tensors(NetworkRow(index, name, name, member))
        else:
            reason = (ONLY_TARGET if name in dumps else ONLY_REFERENCE).format(name=name)
            names, originals = (name, "*") if name in dumps else ("*", name)
            rows.append(NetworkRow(index, names, originals, member, reason=reason))
    return rows


def _member_of_dump(name: str, operation: Operation) -> PlannedOperator:
    dump = operation.dumps[0]
    sides = ((TensorSide.INPUT, dump.inputs), (TensorSide.OUTPUT, dump.outputs))
    inputs, outputs = (
        tuple(PlannedTensor((Original(name, place, side=side),)) for place in range(len(tensors)))
        for side, tensors in sides
    )
    return PlannedOperator(Operator(name=name, type=operation.name.op_type, graph="", id=0), (name,), inputs, outputs)


class _Pairing:
    """Finds the partners of dumped tensors."""

    def __init__(self, dumps: FoundDumps, references: References) -> None:
        self._dumps = dumps
        self._references = references

    def rows(self, group: OperatorGroup) -> Iterator[NetworkRow]:
        several = group.relation in _SEVERAL
        shown = self._shown(group)
        missing = []
        for member in group.members:
            if member.quantised:
                continue
            told = self._of_member(NetworkRow(group.index, group.names, group.originals, member))
            hidden = several and (member not in shown or told[0].tensor is None)
            if hidden:
                missing.append(INNER.format(name=member.operator.name) if member.inner else self._absence(member))
            listing = Listing.PART if group.relation is Relation.L1_FUSION else Listing.MAPPING
            yield from (replace(row, listing=listing) for row in told) if hidden else told
        if several and missing and not any(self._operation(member) for member in shown):
            first = NetworkRow(group.index, group.names, group.originals, group.members[0])
            yield replace(first, reason=",".join(missing), listing=Listing.RESULT)

    def _shown(self, group: OperatorGroup) -> Sequence[PlannedOperator]:
        """The members whose tensors are whole and have originals."""
        members = [member for member in group.members if not member.quantised]
        if group.relation is not Relation.L1_FUSION:
            return [member for member in members if group.relation not in _SEVERAL or not member.inner]
        dumped = [(found.name.timestamp, member) for member in members if (found := self._operation(member))]
        ordered = [member for _, member in sorted(dumped, key=lambda each: each[0])]
        if not ordered:
            return []
        first, last = ordered[0], ordered[-1]
        return [last] if first.originals == last.originals else [first, last]

    def _of_member(self, base: NetworkRow) -> list[NetworkRow]:
        told = self.tensors(base)
        return told or [replace(base, reason=self._absence(base.member), shared=self._shared(base.member))]

    def _absence(self, member: PlannedOperator) -> str:
        operator, shared = member.operator, self._shared(member)
        if shared:
            return SHARED_DUMP.format(name=operator.name, shared=_listed(shared))
        return NO_DUMP.format(name=operator.name, type=operator.type)

    def tensors(self, base: NetworkRow) -> list[NetworkRow]:
        """The rows of an operator's tensors; none if it was not dumped."""
        member, operator = base.member, base.operator
        operation = self._operation(member)
        if operation is None:
            return []
        dump = operation.dumps[0]
        inputs = 0 if reads_integers(operator) else len(dump.inputs)
        outputs = 0 if makes_integers(operator) else len(dump.outputs)
        tensors = [
            *((DumpedTensor(operation, Side.INPUT, place), _input(member, place, inputs)) for place in range(inputs)),
            *((DumpedTensor(operation, Side.OUTPUT, place), _output(member, place)) for place in range(outputs)),
        ]
        return [self._paired(replace(base, tensor=tensor, planned=planned)) for tensor, planned in tensors]

    def _paired(self, row: NetworkRow) -> NetworkRow:
        shared: tuple[str, ...] = ()
        for original in row.planned.candidates:
            found = self._references.find(original)
            if isinstance(found, SharedName):
                shared = shared or found.operators
            elif found is not None:
                return replace(row, original=original, reference=found)
        if shared:
            reason = SHARED_REFERENCE.format(name=row.operator.name, shared=_listed(shared))
            return replace(row, reason=reason, shared=shared)
        return replace(row, reason=NO_REFERENCE.format(name=row.operator.name, tensor=row.tensor_id))

    def _operation(self, member: PlannedOperator) -> Operation | None:
        found = self._dumps.get(member.operator.name)
        return found if isinstance(found, Operation) else None

    def _shared(self, member: PlannedOperator) -> tuple[str, ...]:
        found = self._dumps.get(member.operator.name)
        return found.operators if isinstance(found, SharedName) else ()


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names)


def _input(member: PlannedOperator, place: int, dumped: int) -> PlannedTensor:
    """What an input is: dumps have no inputs that are not connected, or have them all."""
    described = member.operator.inputs
    if dumped == len(described) > len(member.inputs):
        if described[place].source is None:
            return PlannedTensor()
        place = sum(1 for each in described[:place] if each.source is not None)
    return member.inputs[place] if place < len(member.inputs) else PlannedTensor()


def _output(member: PlannedOperator, place: int) -> PlannedTensor:
    """What an output is; one that the graph does not describe is that of the only original, if there is one."""
    if place < len(member.outputs):
        return member.outputs[place]
    alone = len(member.originals) == 1 and not member.operator.multiple
    return PlannedTensor((Original(member.originals[0], place),)) if alone else PlannedTensor()


_ANY = "ND"


def comparable_form(tensor: DumpTensor, stated: Stated, partner: Shape | None = None) -> Logical:
    """How a tensor is told beside a partner of this shape, or by itself."""
    device = tensor.shape
    if device is None:
        return logical_form(tensor)
    if tensor.format_name in TILED:
        return _untiled(tensor, device, stated, partner)
    if partner is not None and len(device) == len(partner) == 4 and tensor.format_name in IMAGES:
        return _reordered(tensor.format_name, device, stated, partner)
    return Logical(device, tensor.format_name)


def in_form(tensor: DumpTensor, form: Logical) -> AnyArray:
    """The elements in that form."""
    if form.layout == tensor.format_name or form.layout == VECTOR or tensor.format_name in TILED:
        return logical_array(tensor, form)
    order = [tensor.format_name.index(axis) for axis in form.layout]
    return logical_array(tensor, Logical(tensor.array().shape, tensor.format_name)).transpose(order)


def _untiled(tensor: DumpTensor, device: Shape, stated: Stated, partner: Shape | None) -> Logical:
    """The partner's own shape if it fills the tiles; else the one that dump or graph state."""
    known = [shape for shape in (tensor.original_shape, stated.shape) if shape and min(shape) >= 0]
    if partner and (not known or math.prod(partner) in map(math.prod, known)):
        known.insert(0, partner)
    for shape in known:
        layouts = plain_layouts(tensor.format_name, device, shape, groups=tensor.groups)
        if layouts:
            return Logical(shape, stated.layout if stated.layout in layouts else layouts[0])
    return logical_form(tensor)


def _reordered(layout: str, device: Shape, stated: Stated, partner: Shape) -> Logical:
    wanted = [stated.layout] if stated.layout in IMAGES else []
    if device != partner:
        wanted += [other for other in IMAGES if other not in wanted]
    for other in wanted:
        assert other is not None
        if permuted_shape(device, layout, other) == partner:
            return Logical(partner, other)
    return Logical(device, layout)


def is_flat(tensor: DumpTensor, form: Logical) -> bool:
    """Whether msaccucmp tells this tensor's elements in one row: ND, single numbers, pictures without four axes."""
    device = tensor.shape or ()
    if all(size == 1 for size in device):
        return True
    if tensor.format_name in TILED:
        return form.layout == VECTOR
    return form.layout == _ANY or (is_plain(form.layout) and len(form.layout) != len(device))
