"""Which tensor of a network is compared with which: its graph's plan brought together with what was dumped."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ulpscope.align.network.names import assign_dumps
from ulpscope.align.network.pairs import DumpReferences, FileReferences, Listing, NetworkRow, References, pair_network
from ulpscope.align.network.planning import network_name, plan_network, plan_other_compilation, plan_same_network
from ulpscope.align.network.upstream import ancestors, members_of
from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.graph.query import all_operators
from ulpscope.numerics.pairs.msaccucmp.metrics import Generation
from ulpscope.operations.registry import operation
from ulpscope.operations.traits import Trait
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import GraphModel
from ulpscope.records.network import NetworkPlan, OperatorGroup
from ulpscope.records.pairs import Pair
from ulpscope.records.remarks import Counted, remark
from ulpscope.report.files.network_tables import mapping_table
from ulpscope.workflows.network.sides import Chosen, Dumps, Reference, find_dumps, find_reference


@dataclass(frozen=True, slots=True)
class OperatorChoice:
    """Operators by the ids that the graph gives them."""

    numbers: frozenset[int] | None = None
    span: tuple[int, int | None, int] | None = None
    """First, last (none: to the end) and step; the first and the last are always among them."""

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        if self.numbers is not None:
            return number in self.numbers
        if self.span is None:
            return True
        first, last, step = self.span
        return first <= number <= (number if last is None else last) and (
            number == last or (number - first) % step == 0
        )

    def __bool__(self) -> bool:
        return self.numbers is not None or self.span is not None


ALL_OPERATORS = OperatorChoice()
ANY_DUMP = Chosen()


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """What of a network is compared, and how."""

    close_graph: Path | None = None
    """The graph of the reference's own compilation, where a device dumped it."""
    quant_graph: Path | None = None
    """The graph that leads from a quantised model to the original one."""
    operators: OperatorChoice = ALL_OPERATORS
    chosen: Chosen = ANY_DUMP
    csv: Generation | None = None
    """The time whose result table is written, with that time's metrics."""
    overflow: bool = False
    """The column of that name, too."""
    details: bool = False
    standard: str = "rounding"
    jobs: int = 1

    @property
    def pairing_words(self) -> tuple[str, ...]:
        """The options of the command line that say what is compared with what."""
        given = {
            "--close-graph": self.close_graph,
            "--quant-graph": self.quant_graph,
            "--steps": self.chosen.steps,
            "--ranks": self.chosen.ranks,
        }
        return tuple(word for option, value in given.items() if value is not None for word in (option, str(value)))


@dataclass(frozen=True, slots=True)
class PairedNetwork:
    """A network's operators with what each of their tensors is compared with."""

    names: Pair[str]
    graph: str | None
    plan: NetworkPlan
    """Of the operators that were chosen."""
    dumps: Dumps
    rows: tuple[NetworkRow, ...]
    reference: Reference
    choice: OperatorChoice
    whole: NetworkPlan
    """Of all operators."""
    context: tuple[NetworkRow, ...] = ()
    """What was compared upstream of the chosen ones: measured, and told nowhere."""
    strangers: tuple[str, ...] = ()
    """Operators that were dumped, and that the graph does not have."""
    options: tuple[str, ...] = ()
    """Of the command line, by which they were paired."""

    @property
    def missing(self) -> list[str]:
        """What is not compared, a sentence each."""
        return [*self.dumps.missing, *self.reference.missing, *self._not_paired()]

    def _not_paired(self) -> Iterator[str]:
        shared = {row.operator.name: row.shared for row in self.rows if row.tensor is None and row.shared}
        if shared:
            names = " / ".join(next(iter(shared.values())))
            yield remark("shared_dumps", operators=Counted(len(shared), "operator"), names=names)
        absent = {row.operator.name: row.operator.type for row in self.rows if row.tensor is None and not row.shared}
        undumped = [name for name, kind in absent.items() if not operation(kind).has(Trait.WITHOUT_TASK)]
        if undumped and self.graph is not None:
            yield remark("not_dumped", operators=Counted(len(undumped), "operator"), example=undumped[0])
        if self.strangers:
            yield remark("not_in_graph", operators=Counted(len(self.strangers), "operator"), example=self.strangers[0])
        yield from self._without_partner([row for row in self.rows if row.tensor is not None and row.reference is None])
        parts = [row for row in self.rows if row.listing is Listing.PART and row.tensor is not None]
        if parts:
            yield remark("not_whole", tensors=Counted(len(parts), "tensor"), example=parts[0].tensor_id)
        integers = [member.operator.name for member in members_of(self.plan).values() if member.quantised]
        if integers:
            yield remark("integers", operators=Counted(len(integers), "operator"), example=integers[0])

    def _without_partner(self, rows: Sequence[NetworkRow]) -> Iterator[str]:
        shared, alone = [row for row in rows if row.shared], [row for row in rows if not row.shared]
        if shared:
            names, count = " / ".join(shared[0].shared), Counted(len(shared), "tensor")
            yield remark("shared_references", tensors=count, example=shared[0].tensor_id, names=names)
        if alone:
            yield remark("no_partner", tensors=Counted(len(alone), "tensor"), example=alone[0].tensor_id)

    @property
    def matched(self) -> bool:
        """Whether any tensor has a partner."""
        return any(row.tensor is not None and row.reference is not None for row in self.rows)

    def mapping(self) -> list[list[str]]:
        """msaccucmp's table of which tensor belongs to which file."""
        return list(mapping_table(self.rows, sequence=bool(self.choice)))


def pair_with_graph(reference: Path, dumps: Path, graph: Path, options: NetworkOptions) -> PairedNetwork:
    """Everything up to the measuring: which tensor is compared with which."""
    model = open_graph(graph)
    found = find_dumps(dumps, graph=network_name(model), chosen=options.chosen)
    return paired_network(model, found, Pair(reference, dumps), graph, options)


def paired_network(
    model: GraphModel, dumps: Dumps, sides: Pair[Path], graph: Path, options: NetworkOptions
) -> PairedNetwork:
    """The same for dumps that were found already; `sides` are what they are called."""
    other = None if options.close_graph is None else open_graph(options.close_graph)
    trusted = find_reference(sides.reference, graph=network_name(other or model), chosen=options.chosen)
    whole = _plan(model, other, trusted, options)
    plan = _chosen(whole, options.operators)
    mine = assign_dumps(dumps.operations, all_operators(model))
    all_rows = pair_network(whole, mine.by_operator, _references(trusted, whole, other or model))
    chosen = {group.index for group in plan.groups}
    rows = tuple(row for row in all_rows if row.index in chosen)
    return PairedNetwork(
        names=Pair(str(sides.reference), str(sides.target)),
        graph=str(graph),
        plan=plan,
        dumps=dumps,
        rows=rows,
        reference=trusted,
        choice=options.operators,
        whole=whole,
        context=tuple(_context(whole, all_rows, plan)) if options.operators else (),
        strangers=() if options.operators else mine.strangers,
        options=options.pairing_words,
    )


def _references(reference: Reference, plan: NetworkPlan, model: GraphModel) -> References:
    if reference.files is not None:
        return FileReferences(reference.files, plan)
    return DumpReferences(assign_dumps(reference.operations or (), all_operators(model)).by_operator)


def only(paired: PairedNetwork, index: int) -> PairedNetwork:
    """One group of operators, with what is known of its inputs."""
    plan = NetworkPlan(paired.plan.graph, tuple(group for group in paired.plan.groups if group.index == index))
    known = (*paired.rows, *paired.context)
    rows = tuple(row for row in paired.rows if row.index == index)
    return replace(paired, plan=plan, rows=rows, context=tuple(_context(paired.whole, known, plan)))


def _context(whole: NetworkPlan, rows: Sequence[NetworkRow], plan: NetworkPlan) -> Iterator[NetworkRow]:
    """All rows upstream of a plan's operators: what comes in is rounding, or wrong, by how it was made."""
    own, before = {group.index for group in plan.groups}, ancestors(members_of(whole), members_of(plan))
    for row in rows:
        compared = row.tensor is not None and row.reference is not None and row.listing is not Listing.PART
        if compared and row.index not in own and row.operator.name in before:
            yield row


def _plan(model: GraphModel, other: GraphModel | None, reference: Reference, options: NetworkOptions) -> NetworkPlan:
    dumped = reference.operations is not None
    if other is not None and not dumped:
        raise UlpscopeError(
            "--close-graph with a reference that no device dumped",
            expected="dumps of the same network, compiled with fusion off",
            next_step="leave out --close-graph",
        )
    if options.quant_graph is not None and dumped:
        raise UlpscopeError(
            "--quant-graph with a reference that a device dumped",
            expected="a reference of the original network, in files of arrays or of tfdbg",
            next_step="leave out --quant-graph",
        )
    if other is not None:
        return plan_other_compilation(model, other)
    if dumped:
        return plan_same_network(model)
    quantised = None if options.quant_graph is None else open_graph(options.quant_graph)
    return plan_network(model, quantised=quantised)


def _chosen(plan: NetworkPlan, choice: OperatorChoice) -> NetworkPlan:
    """Groups of which an operator was chosen; they keep their numbers."""
    if not choice:
        return plan
    groups = tuple(group for group in plan.groups if _has(group, choice))
    if not groups:
        known = sorted(member.operator.id for group in plan.groups for member in group.members)
        raise UlpscopeError(
            "no operator of the graph has one of these ids",
            expected=f"ids from {known[0]} to {known[-1]}" if known else "a graph with operators",
            next_step="ulpscope show GRAPH --name '' lists them",
        )
    return NetworkPlan(plan.graph, groups)


def _has(group: OperatorGroup, choice: OperatorChoice) -> bool:
    return any(member.operator.id in choice for member in group.members)
