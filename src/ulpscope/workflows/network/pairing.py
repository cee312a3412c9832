"""Which tensor of a network is compared with which: the dumps of one step of one device, the reference, and the plan
that the network's graph gives, brought together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from ulpscope.align.network.names import assign_dumps, names_in_both
from ulpscope.align.network.pairs import (
    DumpReferences,
    FileReferences,
    Listing,
    NetworkRow,
    References,
    pair_dumps,
    pair_network,
)
from ulpscope.align.network.planning import network_name, plan_network, plan_other_compilation, plan_same_network
from ulpscope.align.network.upstream import ancestors, members_of
from ulpscope.dialects.ascend.executed import read_operators
from ulpscope.dialects.ascend.operations import Operation
from ulpscope.dialects.ascend.tree import DumpFolder, DumpName, Run, has_dumps, list_dumps, one_run, told_unnamed
from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.dialects.recognising import wrong_kind
from ulpscope.dialects.reference import ReferenceIndex, is_npy_folder, reference_index
from ulpscope.graph.query import all_operators
from ulpscope.numerics.pairs.msaccucmp.metrics import Generation
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import GraphModel, NetworkPlan
from ulpscope.records.pairs import Pair
from ulpscope.records.remarks import Counted, remark
from ulpscope.records.runs import IntRanges
from ulpscope.report.files.network_tables import mapping_table
from ulpscope.report.words.language import ranges_text
from ulpscope.workflows.compare.command import CompareOptions


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


@dataclass(frozen=True, slots=True)
class NetworkOptions(CompareOptions):
    """What of a network is compared, and how; steps and ranks choose among several dumps."""

    close_graph: Path | None = None
    """The graph of the reference's own compilation, where a device dumped it."""
    quant_graph: Path | None = None
    """The graph that leads from a quantised model to the original one."""
    operators: OperatorChoice = ALL_OPERATORS
    csv: Generation | None = None
    """The time whose result table is written, with that time's metrics."""
    overflow: bool = False
    """The column of that name, too."""

    @property
    def pairing_words(self) -> tuple[str, ...]:
        """The options of the command line that say what is compared with what."""
        names = ("close_graph", "quant_graph", "steps", "ranks")
        given = {f"--{name.replace('_', '-')}": getattr(self, name) for name in names}
        return tuple(word for option, value in given.items() if value is not None for word in (option, str(value)))


@dataclass(frozen=True, slots=True)
class Dumps:
    """The operators that one device dumped in one step."""

    folder: DumpFolder
    operations: tuple[Operation, ...]
    """In the order in which they ran; of one that ran several times, the last."""
    call_names: Mapping[DumpName, str]
    """`Relu.0`, as a trace of the same dumps calls them."""
    missing: tuple[str, ...] = ()


def read_dumps(folder: DumpFolder, missing: Iterable[str] = ()) -> Dumps:
    """The operators of a directory; files that cannot be read are told, and those that hold stats only."""
    entries = [entry for entry in list_dumps(folder.path) if not entry.name.is_overflow_record]
    executed, problems = read_operators(entries)
    names = {each.operation.name: each.name for each in executed if each.operation is not None}
    failures = list(problems.values())
    if failures and not names:
        raise failures[0]
    told = [*missing, *told_unnamed(folder.path)]
    dumped = {entry.name.operator for entry in entries if not entry.is_stats}
    alone = [entry.name.operator for entry in entries if entry.is_stats and entry.name.operator not in dumped]
    if alone:
        told.append(remark("stats_only", operators=Counted(len(set(alone)), "operator"), example=alone[0]))
    if failures:
        told.append(remark("dumps_unreadable", files=Counted(len(failures), "file"), problem=failures[0].seen))
    latest: dict[object, Operation] = {}
    for one in (each.operation for each in executed if each.operation is not None):
        key = one.name.operator, one.op_name, one.name.op_type
        latest.pop(key, None)
        latest[key] = one
    return Dumps(folder, tuple(latest.values()), names, tuple(told))


def find_dumps(path: Path, *, graph: str | None, options: NetworkOptions) -> Dumps:
    """The dumps of a network below a directory: its highest step on its first device, unless others are chosen."""
    run = npu_run(path)
    folders, missing = list(run.folders), run.left_out
    models = sorted({folder.model for folder in folders if folder.model is not None})
    matching = None if graph is None else matching_model(graph, models)
    if matching is not None:
        folders = [folder for folder in folders if folder.model == matching]
    elif graph is not None and len(models) == 1:
        missing.append(remark("other_network", model=models[0], graph=graph))
    folders = _kept(folders, "device", options.ranks, missing)
    folders = _kept(folders, "step", options.steps, missing)
    if len(folders) > 1:
        raise UlpscopeError(
            f"{path} holds dumps of {len(folders)} models: "
            + ", ".join(sorted(str(folder.path) for folder in folders)[:4]),
            expected="those of one network",
            next_step=f"name one of them: {folders[0].path}",
        )
    return read_dumps(folders[0], missing)


def _kept(folders: Sequence[DumpFolder], word: str, wanted: IntRanges | None, missing: list[str]) -> list[DumpFolder]:
    """Those of one device, or of one step; `missing` gets what is left out."""
    number_of = attrgetter(word)
    found = sorted({number_of(folder) for folder in folders})
    asked = [number for number in found if wanted is None or number in wanted]
    if not asked:
        raise UlpscopeError(
            f"no {word} {wanted} among the dumps, which have {ranges_text(found)}",
            expected=f"a {word} that was dumped",
            next_step=f"choose another one with --{'ranks' if word == 'device' else 'steps'}",
            code=ExitCode.NOTHING,
        )
    taken = asked[0] if word == "device" else asked[-1]
    if len(asked) > 1:
        others = ranges_text([number for number in asked if number != taken])
        missing.append(remark(f"{word}_chosen", others=others, taken=taken))
    return [folder for folder in folders if number_of(folder) == taken]


def npu_run(path: Path) -> Run:
    """The newest run; UlpscopeError if there is none, or more than one dump path."""
    run = one_run(path)
    if not run.folders:
        raise wrong_kind(path, "a dump of an NPU") or UlpscopeError(
            f"{path} holds no dump of an NPU" if path.is_dir() else f"{path} does not exist",
            expected="a dump path, or a directory of it: files called TYPE.OPERATOR.TASK.STREAM.TIME",
            next_step="check the path; the reference comes first: ulpscope compare REFERENCE DUMPS --graph GRAPH",
        )
    return run


def matching_model(graph: str, models: Iterable[str]) -> str | None:
    """The directory of a graph's dumps: its name; offline models may lack `_0`."""
    known = set(models)
    return next((name for name in (graph, f"{graph}_0", graph.removesuffix("_0")) if name in known), None)


Reference = ReferenceIndex | Dumps
"""The trusted side: what a framework dumped (files of arrays, tfdbg), or another run on a device."""


def was_dumped(path: Path) -> bool:
    """Whether a device dumped this: not what a folder of reference arrays happens to have below it."""
    return path.is_dir() and not is_npy_folder(path) and has_dumps(path)


def find_reference(path: Path, *, graph: str, options: NetworkOptions) -> Reference:
    """The reference at a path; of several networks that a device dumped there, the one of the graph's name."""
    if not was_dumped(path):
        return reference_index(path)
    models = [folder.model for folder in npu_run(path).folders if folder.model is not None]
    return find_dumps(path, graph=None if matching_model(graph, models) is None else graph, options=options)


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
        theirs = self.reference.missing if isinstance(self.reference, Dumps) else ()
        return [*self.dumps.missing, *theirs, *self._not_paired()]

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
        without = [row for row in self.rows if row.tensor is not None and row.reference is None]
        several, alone = [row for row in without if row.shared], [row for row in without if not row.shared]
        if several:
            names, count = " / ".join(several[0].shared), Counted(len(several), "tensor")
            yield remark("shared_references", tensors=count, example=several[0].tensor_id, names=names)
        if alone:
            yield remark("no_partner", tensors=Counted(len(alone), "tensor"), example=alone[0].tensor_id)
        parts = [row for row in self.rows if row.listing is Listing.PART and row.tensor is not None]
        if parts:
            yield remark("not_whole", tensors=Counted(len(parts), "tensor"), example=parts[0].tensor_id)
        integers = [member.operator.name for member in members_of(self.plan).values() if member.quantised]
        if integers:
            yield remark("integers", operators=Counted(len(integers), "operator"), example=integers[0])

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
    found = find_dumps(dumps, graph=network_name(model), options=options)
    return paired_network(model, found, Pair(reference, dumps), graph, options)


def paired_network(
    model: GraphModel, dumps: Dumps, sides: Pair[Path], graph: Path, options: NetworkOptions
) -> PairedNetwork:
    """The same for dumps that were found already; `sides` are what they are called."""
    other = None if options.close_graph is None else open_graph(options.close_graph)
    trusted = find_reference(sides.reference, graph=network_name(other or model), options=options)
    whole = _plan(model, other, trusted, options)
    plan = _chosen(whole, options.operators)
    mine = assign_dumps(dumps.operations, all_operators(model))
    references: References
    if isinstance(trusted, Dumps):
        theirs = assign_dumps(trusted.operations, all_operators(other or model))
        references = DumpReferences(theirs.by_operator)
    else:
        references = FileReferences(trusted, whole)
    all_rows = pair_network(whole, mine.by_operator, references)
    chosen = {group.index for group in plan.groups}
    return PairedNetwork(
        names=sides.map(str),
        graph=str(graph),
        plan=plan,
        dumps=dumps,
        rows=tuple(row for row in all_rows if row.index in chosen),
        reference=trusted,
        choice=options.operators,
        whole=whole,
        context=tuple(_context(whole, all_rows, plan)) if options.operators else (),
        strangers=() if options.operators else mine.strangers,
        options=options.pairing_words,
    )


def pair_without_graph(reference: Path, target: Path, options: NetworkOptions) -> PairedNetwork:
    """Which tensor is compared with which, by names alone."""
    theirs, mine = (find_dumps(path, graph=None, options=options) for path in (reference, target))
    named, nothing = names_in_both(Pair(theirs.operations, mine.operations)), NetworkPlan("", ())
    return PairedNetwork(
        names=Pair(str(reference), str(target)),
        graph=None,
        plan=nothing,
        whole=nothing,
        dumps=mine,
        rows=tuple(pair_dumps(named.target, named.reference, DumpReferences(named.reference))),
        reference=theirs,
        choice=options.operators,
    )


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
    dumped = isinstance(reference, Dumps)
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
    groups = [group for group in plan.groups if any(member.operator.id in choice for member in group.members)]
    if not groups:
        known = sorted(member.operator.id for group in plan.groups for member in group.members)
        raise UlpscopeError(
            "no operator of the graph has one of these ids",
            expected=f"ids from {known[0]} to {known[-1]}" if known else "a graph with operators",
            next_step="ulpscope show GRAPH --name '' lists them",
        )
    return NetworkPlan(plan.graph, tuple(groups))
