"""Whose a file is: names of files have '_' for '/' and '.', so that those of a/b and a_b are called the same.

Where a network has several such operators, a dump is that of the one whose name its head tells, else of the one whose
type and shapes it has. What nothing tells apart is nobody's: a wrong partner is worse than none.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ulpscope.dialects.ascend.dump_file.records import DumpTensor
from ulpscope.dialects.ascend.operations import Operation
from ulpscope.dialects.ascend.tree import without_parts
from ulpscope.dialects.reference import ReferenceTensor
from ulpscope.graph.names import sanitised
from ulpscope.numerics.layouts import TILED
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import NetworkPlan, Operator, Original, Shape, TensorDesc
from ulpscope.records.pairs import Pair


@dataclass(frozen=True, slots=True)
class SharedName:
    """Operators whose files cannot be told apart."""

    operators: tuple[str, ...]


_FED = re.compile(r"_arg_(.+)_(\d{1,9})_\d+", re.ASCII)
"""What TensorFlow puts in place of an output that is fed: its operator, which output, and which feed it is."""

FoundDumps: TypeAlias = Mapping[str, Operation | SharedName]
"""Dumps by the operator of the network that they are of."""


def fed_output(name: str) -> tuple[str, int] | None:
    """The output that is fed by an operator of this name, if it is one that feeds."""
    found = _FED.fullmatch(name)
    return None if found is None else (found[1], int(found[2]))


@dataclass(frozen=True, slots=True)
class AssignedDumps:
    """Dumps by the operator that they are of."""

    by_operator: FoundDumps
    strangers: tuple[str, ...]
    """Operators that were dumped, and that the network does not have."""


def assign_dumps(operations: Iterable[Operation], operators: Iterable[Operator]) -> AssignedDumps:
    """Whose each dump is; `operations` in the order in which they ran: of several of one operator the last counts."""
    by_file, ran = by_file_name(operators), list(operations)
    whole = tell_whole_names(operation.op_name for operation in ran)
    found: dict[str, Operation | SharedName] = {}
    strangers: dict[str, None] = {}
    for operation in ran:
        owners = possible_owners(operation, by_file.get(operation.name.operator, ()), whole=whole)
        names = tuple(dict.fromkeys(operator.name for operator in owners))
        for name in names:
            if len(names) == 1:
                found[name] = operation
            else:
                found.setdefault(name, SharedName(names))
        if not names:
            strangers[operation.op_name] = None
    return AssignedDumps(found, tuple(strangers))


def by_file_name(operators: Iterable[Operator]) -> dict[str, list[Operator]]:
    """Operators by the names that files of their dumps have."""
    found: dict[str, list[Operator]] = {}
    for operator in operators:
        found.setdefault(without_parts(sanitised(operator.name)), []).append(operator)
    return found


def tell_whole_names(names: Iterable[str]) -> bool:
    """Whether names are as the network has them, as far as some of them show."""
    return any("/" in name for name in names)


def possible_owners(operation: Operation, rivals: Sequence[Operator], *, whole: bool) -> Sequence[Operator]:
    """Which of the operators of a dump's file name it may be of; `whole` says that heads tell names whole."""
    # Empty where a head tells no name; the operation itself then has its file's.
    told = without_parts(operation.dumps[0].op_name)
    if sanitised(told) == operation.name.operator != told:
        return [operator for operator in rivals if without_parts(operator.name) == told]
    if len({operator.name for operator in rivals}) < 2:
        return rivals
    named = [operator for operator in rivals if without_parts(operator.name) == told]
    if whole and named:
        return named
    for fits in (_has_type, _has_shapes):
        rivals = [operator for operator in rivals if fits(operation, operator)] or rivals
    return rivals


def names_in_both(sides: Pair[Sequence[Operation]]) -> Pair[dict[str, Operation]]:
    """Operators of two dumps by names that mean the same in both: their files', or more where these are several's."""
    told = Pair(_told_names(sides.reference), _told_names(sides.target))
    both = ((sides.reference, told.reference), (sides.target, told.target))
    names: dict[str, set[str]] = {}
    types: dict[str, set[str]] = {}
    for operations, heads in both:
        own: dict[str, set[str]] = {}
        for operation, head in zip(operations, heads, strict=True):
            names.setdefault(operation.name.operator, set()).update([head] if head else [])
            own.setdefault(operation.name.operator, set()).add(operation.name.op_type)
        # Two compilations may have other types; one has the same type for all executions of an operator.
        types |= {file: kinds for file, kinds in own.items() if len(kinds) > 1}

    def key(operation: Operation, head: str) -> str:
        file = operation.name.operator
        if len(names[file]) < 2 and file not in types:
            return file
        return head if head and len(names[file]) > 1 else f"{operation.name.op_type}.{file}"

    return Pair(*({key(*each): each[0] for each in zip(*side, strict=True)} for side in both))


def _told_names(operations: Sequence[Operation]) -> list[str]:
    """What heads call operators, where they tell whole names that are those of their files; else nothing."""
    heads = [without_parts(operation.dumps[0].op_name) for operation in operations]
    whole = tell_whole_names(heads)
    return [
        head if whole and sanitised(head) == operation.name.operator else ""
        for operation, head in zip(operations, heads, strict=True)
    ]


def _has_type(operation: Operation, operator: Operator) -> bool:
    return sanitised(operator.type) == sanitised(operation.name.op_type)


def _has_shapes(operation: Operation, operator: Operator) -> bool:
    """Whether nothing that was dumped has another shape than the graph says."""
    dump = operation.dumps[0]
    connected = [each.desc for each in operator.inputs if each.source is not None]
    described = [each.desc for each in operator.inputs]
    inputs = described if len(dump.inputs) == len(described) else connected
    # A graph may describe fewer than are dumped.
    pairs = (*zip(dump.outputs, operator.outputs, strict=False), *zip(dump.inputs, inputs, strict=False))
    return all(desc is None or _fit(tensor, desc) for tensor, desc in pairs)


def _fit(tensor: DumpTensor, desc: TensorDesc) -> bool:
    stated = [shape for shape in (desc.shape, desc.origin_shape) if shape is not None and min(shape, default=0) >= 0]
    dumped = [shape for shape in (tensor.shape, tensor.original_shape) if shape is not None]
    return not stated or not dumped or any(_alike(one, other) for one in stated for other in dumped)


def _alike(one: Shape, other: Shape) -> bool:
    """The same axes in any order; single numbers have none, or any."""
    return sorted(size for size in one if size != 1) == sorted(size for size in other if size != 1)


class OriginalNames:
    """Operators of the original network by the names that files have, with the shapes that their outputs have."""

    def __init__(self, plan: NetworkPlan, *, whole: bool) -> None:
        """`whole` says that the reference tells operators' names as the network has them."""
        self._whole = whole
        self._names: dict[str, dict[str, None]] = {}
        self._shapes: dict[tuple[str, int], Shape] = {}
        for group in plan.groups:
            for member in group.members:
                for name in member.originals:
                    self._note(name)
                for tensor, desc in zip(member.outputs, member.operator.outputs, strict=True):
                    for original in tensor.candidates[:1]:
                        self._note(original.operator)
                        # The shape on the device, where that is the original's.
                        shape = original.shape or (None if desc.layout in TILED else desc.shape)
                        if shape is not None and min(shape, default=0) >= 0:
                            self._shapes.setdefault((original.operator, original.position), shape)

    def _note(self, name: str) -> None:
        self._names.setdefault(sanitised(name), {})[name] = None

    def choose(self, original: Original, found: Sequence[ReferenceTensor]) -> ReferenceTensor | SharedName | None:
        """The last of these files that is of an original; it shares its name with all of them."""
        rivals = tuple(self._names.get(sanitised(original.operator), ()))
        if len(rivals) < 2:
            return found[-1] if found else None
        if self._whole:
            own = [tensor for tensor in found if original.operator in (tensor.op, (fed_output(tensor.op) or ("",))[0])]
            return own[-1] if own else None
        owners = [self._owners(tensor, rivals, original.position) for tensor in found]
        own = [tensor for tensor, names in zip(found, owners, strict=True) if names == [original.operator]]
        if own:
            return own[-1]
        return SharedName(rivals) if any(original.operator in names for names in owners) else None

    def _owners(self, tensor: ReferenceTensor, rivals: Sequence[str], position: int) -> list[str]:
        """Originals that a file may be of: those whose shape it has, or of whose shape nothing is known."""
        try:
            shape = tensor.stored().shape
        except UlpscopeError:
            return list(rivals)
        known = {name: self._shapes.get((name, position)) for name in rivals}
        fitting = [name for name, stated in known.items() if stated is None or _alike(stated, shape)]
        return fitting or list(rivals)
