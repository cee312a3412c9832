"""`ulpscope compare REFERENCE DUMPS --graph GRAPH`: a whole network, operator by operator.

    result = compare_network("tf/dump", "npu/dump/20260101000000", "ge_proto_00000_Build.txt")
    result.findings[0].module                                  fc1/Relu

Plan (from the graph alone), pairs (with what was dumped), measurements (in processes), then judging as of any two runs.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ulpscope.align.network import plan_network, plan_other_compilation, plan_same_network
from ulpscope.align.network_layouts import Stated
from ulpscope.align.network_pairs import NetworkRow, pair_network
from ulpscope.align.network_printing import network_plan_json
from ulpscope.align.network_references import DumpedTensor
from ulpscope.align.plan import Plan
from ulpscope.align.tensors import pair_tensors
from ulpscope.diagnose.comparing import judge_ranks, summarise
from ulpscope.diagnose.evidence import RankEvidence, gather
from ulpscope.diagnose.fixed import judge_by
from ulpscope.diagnose.network_advice import advise_on_network
from ulpscope.dialects.ascend.dump_records import Side
from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.judge.measuring import measure, read_values, refine
from ulpscope.judge.network_outcomes import RowOutcome
from ulpscope.judge.standards import parse_standard
from ulpscope.numerics.msaccucmp_metrics import Generation
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Comparison
from ulpscope.records.graphs import GraphModel
from ulpscope.records.network import NetworkPlan, OperatorGroup
from ulpscope.records.pairs import Pair
from ulpscope.report.language import Language
from ulpscope.report.network_csv import ResultColumns, mapping_table, result_table, write_table
from ulpscope.trace.collector import collector_paused
from ulpscope.workflows.compare import CompareResult
from ulpscope.workflows.compare_network_dumps import Chosen, Dumps, Reference, find_dumps, find_reference
from ulpscope.workflows.compare_network_frames import Moment, NetworkRun, network_run
from ulpscope.workflows.compare_network_measuring import TensorOrder, Wanted
from ulpscope.workflows.compare_network_pool import measure_all
from ulpscope.workflows.results import SUMMARY, write_json, writing

if TYPE_CHECKING:
    from ulpscope.report.progress import Advance


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


@dataclass(frozen=True, slots=True)
class PairedNetwork:
    """A network's operators with what each of their tensors is compared with."""

    names: Pair[str]
    graph: str | None
    plan: NetworkPlan
    dumps: Dumps
    rows: tuple[NetworkRow, ...]
    reference: Reference
    choice: OperatorChoice

    @property
    def missing(self) -> list[str]:
        """What is not compared, a sentence each."""
        found = [*self.dumps.missing, *self.reference.missing]
        alone = [row for row in self.rows if row.tensor is not None and row.reference is None]
        if alone:
            found.append(f"{_tensors(len(alone))} no partner in the reference, such as {alone[0].tensor_id}")
        return found

    @property
    def matched(self) -> bool:
        """Whether any tensor has a partner."""
        return any(row.tensor is not None and row.reference is not None for row in self.rows)

    def mapping(self) -> list[list[str]]:
        """msaccucmp's table of which tensor belongs to which file."""
        return list(mapping_table(self.rows, sequence=bool(self.choice)))


@dataclass(frozen=True, slots=True)
class NetworkResult:
    """What comparing a network found."""

    compared: CompareResult
    paired: PairedNetwork
    outcomes: Mapping[int, RowOutcome]
    options: NetworkOptions

    @property
    def comparison(self) -> Comparison:
        return self.compared.comparison

    @property
    def code(self) -> Any:
        return self.compared.code

    @property
    def findings(self) -> Any:
        """What is wrong; the first is the answer."""
        return self.compared.findings

    def text(self, *, width: int = 100, color: bool = False, language: Language = Language.EN) -> str:
        return self.compared.text(width=width, color=color, language=language)

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        return {**self.compared.json(language), "graph": self.paired.graph}

    def table(self) -> list[list[str]]:
        """msaccucmp's result table, the header first."""
        columns = ResultColumns(
            generation=self.options.csv or Generation.OF_2025,
            overflow=self.options.overflow,
            sequence=bool(self.options.operators),
            reference_address=self.paired.reference.operations is not None,
        )
        return list(result_table(self.paired.rows, self.outcomes, columns))

    def write(
        self, out: Path, *, xlsx: bool = False, language: Language = Language.EN, table_name: str = "result"
    ) -> None:
        """Write summary.json, the tables behind it and msaccucmp's result table into a directory that is empty."""
        self.compared.write(out, xlsx=xlsx, language=language)
        with writing(out):
            if self.paired.graph is not None:
                write_json(out / "plan.json", network_plan_json(self.paired.plan))
                write_json(out / SUMMARY, self.json(language))
            if self.options.csv is not None:
                write_table(self.table(), out / f"{table_name}_{stamp()}.csv")


def stamp() -> str:
    """As msaccucmp names its files."""
    return time.strftime("%Y%m%d%H%M%S")


def compare_network(
    reference: str | Path,
    dumps: str | Path,
    graph: str | Path,
    options: NetworkOptions | None = None,
    *,
    advance: "Advance | None" = None,
) -> NetworkResult:
    """Compare what a device dumped of a network with a reference, and name the first operator that went wrong."""
    options = options or NetworkOptions()
    paired = pair_with_graph(Path(reference), Path(dumps), Path(graph), options)
    with collector_paused():
        return judge_network(paired, options, advance or _unseen)


def pair_with_graph(reference: Path, dumps: Path, graph: Path, options: NetworkOptions) -> PairedNetwork:
    """Everything up to the measuring: which tensor is compared with which."""
    model = open_graph(graph)
    found = find_dumps(dumps, graph=model.graphs[0].name if model.graphs else None, chosen=options.chosen)
    return paired_network(model, found, Pair(reference, dumps), graph, options)


def paired_network(
    model: GraphModel, dumps: Dumps, sides: Pair[Path], graph: Path, options: NetworkOptions
) -> PairedNetwork:
    """The same for dumps that were found already; `sides` are what they are called."""
    trusted = find_reference(sides.reference, graph=None, chosen=options.chosen)
    plan = _chosen(_plan(model, trusted, options), options.operators)
    rows = pair_network(plan, dumps.operations, trusted.references)
    return PairedNetwork(
        names=Pair(str(sides.reference), str(sides.target)),
        graph=str(graph),
        plan=plan,
        dumps=dumps,
        rows=tuple(rows),
        reference=trusted,
        choice=options.operators,
    )


def _plan(model: GraphModel, reference: Reference, options: NetworkOptions) -> NetworkPlan:
    dumped = reference.operations is not None
    if options.close_graph is not None and not dumped:
        raise UlpscopeError(
            "--close-graph with a reference that no device dumped",
            expected="dumps of the same network, compiled with fusion off",
            next_step="leave out --close-graph",
        )
    if options.close_graph is not None:
        return plan_other_compilation(model, open_graph(options.close_graph))
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


def tensor_orders(rows: Sequence[NetworkRow], *, overflow: bool) -> list[TensorOrder]:
    """What is to be measured: rows with a partner, and all that may overflow."""
    outputs = {
        (row.operator.name, row.tensor.position): number
        for number, row in enumerate(rows)
        if row.tensor is not None and row.tensor.side is Side.OUTPUT
    }
    orders = []
    for number, row in enumerate(rows):
        if row.tensor is None or (row.reference is None and not overflow):
            continue
        original = row.original
        stated = Stated() if original is None else Stated(original.layout, original.shape)
        twin = _twin(row, rows, outputs)
        orders.append(TensorOrder(number, row.operator.name, row.tensor, row.reference, stated, twin))
    return orders


def _twin(
    row: NetworkRow, rows: Sequence[NetworkRow], outputs: Mapping[tuple[str, int], int]
) -> tuple[int, DumpedTensor] | None:
    """The output that an input should be, if that is compared with the same original."""
    if row.tensor is None or row.tensor.side is Side.OUTPUT or row.planned.source is None or row.reference is None:
        return None
    number = outputs.get(row.planned.source)
    other = None if number is None else rows[number]
    if number is None or other is None or other.tensor is None or other.reference is None:
        return None
    same = other.reference.path == row.reference.path and other.original == row.original
    return (number, other.tensor) if same else None


def judge_network(paired: PairedNetwork, options: NetworkOptions, advance: "Advance") -> NetworkResult:
    """Measure all pairs and judge them."""
    rows, standard = paired.rows, parse_standard(options.standard)
    details = options.details or (standard is not None and standard.needs_details)
    wanted = Wanted(options.csv, options.overflow, details)
    orders = tensor_orders(rows, overflow=options.overflow)
    outcomes = measure_all(orders, wanted, jobs=options.jobs, advance=lambda number: advance(number))
    folder = paired.dumps.folder
    moment = Moment(Path(paired.names.reference), folder.path, folder.device, folder.step)
    run = network_run(paired.plan, rows, outcomes, moment=moment, names=_call_names(paired))
    comparison, table, plan = _judged(run, paired, [*paired.missing, *_failures(outcomes)])
    if standard is not None:
        comparison, table = judge_by(standard, comparison, table)
    return NetworkResult(CompareResult(comparison, table, plan), paired, outcomes, options)


def _call_names(paired: PairedNetwork) -> dict[str, str]:
    names = paired.dumps.call_names
    dumped = ((row.operator.name, row.tensor) for row in paired.rows if row.tensor is not None)
    return {name: names[tensor.operation.name.operator] for name, tensor in dumped}


def _judged(run: NetworkRun, paired: PairedNetwork, missing: Sequence[str]) -> tuple[Comparison, pl.DataFrame, Plan]:
    judged = judge_ranks([_evidence(run)])
    plan = Plan((run.plan,), Pair((), ()), Pair((), ()))
    comparison, table = summarise(plan, judged, names=paired.names, levels=("api", "api"), missing=missing)
    operators = {member.operator.name: member.operator for group in paired.plan.groups for member in group.members}
    comparison = replace(comparison, graph=paired.graph)
    return replace(comparison, advice=advise_on_network(comparison, operators, table)), table, plan


def _evidence(run: NetworkRun) -> RankEvidence:
    slots = pair_tensors(run.plan)
    ids = np.unique(slots["target"].to_numpy())
    rows = np.searchsorted(ids, slots["target"].to_numpy())
    sides = (read_values(trace, ids) for trace in (run.plan.traces.reference, run.plan.traces.target))
    pairs = measure(*sides, same_digests=True)
    metrics = {row: run.measured[value].metrics for row, value in enumerate(ids.tolist())}
    compared = {row: found for row, found in metrics.items() if pairs.compared[row]}
    return gather(run.plan, slots, rows, refine(pairs, compared))


def _failures(outcomes: Mapping[int, RowOutcome]) -> list[str]:
    failed = [outcome.reason for _, outcome in sorted(outcomes.items()) if outcome.reason]
    return [f"{_tensors(len(failed))} not been compared: {failed[0]}"] if failed else []


def _tensors(count: int) -> str:
    return "1 tensor has" if count == 1 else f"{count:,} tensors have"


def _unseen(number: int, /, *, text: str | None = None) -> None:
    """Progress that nobody watches."""
