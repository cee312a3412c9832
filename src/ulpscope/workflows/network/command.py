"""`ulpscope compare REFERENCE DUMPS --graph GRAPH`: a whole network, operator by operator.

    result = compare_network("tf/dump", "npu/dump/20260101000000", "ge_proto_00000_Build.txt")
    result.findings[0].module                                  fc1/Relu

Plan (from the graph alone), pairs (with what was dumped), measurements (in processes), then judging as of any two runs.
Two dumps of a device need no graph: operators of equal names are pairs, with msaccucmp's tables beside our own verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ulpscope.align.network.names import names_in_both
from ulpscope.align.network.pairs import DumpReferences, NetworkRow, pair_dumps
from ulpscope.align.network.planning import network_plan_json
from ulpscope.align.network.upstream import members_of
from ulpscope.align.plan import Plan
from ulpscope.diagnose.advice import advise_on_network
from ulpscope.diagnose.comparing import Captured, judge_ranks, summarise
from ulpscope.diagnose.flow.evidence import RankEvidence, gather
from ulpscope.diagnose.flow.states import WRONG, State
from ulpscope.diagnose.network import ReadTensor, network_evidence, with_spans
from ulpscope.judge.rounding.masks import masks_differ
from ulpscope.judge.rounding.measuring import RowOutcome, comparable_by_data, refine
from ulpscope.judge.standards.by_name import judge_by, parse_standard
from ulpscope.numerics.pairs.msaccucmp.metrics import Generation
from ulpscope.records.findings import Comparison
from ulpscope.records.network import NetworkPlan
from ulpscope.records.pairs import Pair
from ulpscope.records.remarks import Counted, remark
from ulpscope.report.files.network_tables import ResultColumns, result_table, write_table
from ulpscope.report.words.language import Language
from ulpscope.trace.objects import collector_paused
from ulpscope.workflows.compare.command import CompareOptions, CompareResult, compare, paired_values, unseen
from ulpscope.workflows.compare.saved_data import other_masks
from ulpscope.workflows.network.frames import Moment, NetworkRun, network_run
from ulpscope.workflows.network.measuring import Wanted
from ulpscope.workflows.network.orders import TensorReader, measure_all, tensor_orders
from ulpscope.workflows.network.pairing import NetworkOptions, OperatorChoice, PairedNetwork, pair_with_graph
from ulpscope.workflows.network.sides import Reference, find_dumps, was_dumped
from ulpscope.workflows.results import stamp, write_json

if TYPE_CHECKING:
    from ulpscope.report.progress import Advance


__all__ = [
    "NetworkOptions",
    "NetworkResult",
    "OperatorChoice",
    "compare_network",
    "judge_network",
]


@dataclass(frozen=True, slots=True, repr=False)
class NetworkResult(CompareResult):
    """What comparing a network found."""

    paired: PairedNetwork
    outcomes: Mapping[int, RowOutcome]
    options: NetworkOptions
    table_name: str = "result"
    """What the file of msaccucmp's table begins with."""

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        return {**CompareResult.json(self, language), "graph": self.paired.graph}

    def table(self) -> list[list[str]]:
        """msaccucmp's result table, the header first."""
        columns = ResultColumns(
            generation=self.options.csv or Generation.OF_2025,
            overflow=self.options.overflow,
            sequence=bool(self.options.operators),
            reference_address=self.paired.reference.operations is not None,
        )
        return list(result_table(self.paired.rows, self.outcomes, columns, others=self.paired.context))

    def _stacks(self) -> list[list[dict[str, Any]]]:
        return []

    def _write_tables(self, out: Path, *, xlsx: bool, language: Language) -> None:
        CompareResult._write_tables(self, out, xlsx=xlsx, language=language)
        if self.paired.graph is not None:
            write_json(out / "plan.json", network_plan_json(self.paired.plan))
        if self.options.csv is not None:
            write_table(self.table(), out / f"{self.table_name}_{stamp()}.csv")


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
        return judge_network(paired, options, advance or unseen)


def judge_network(paired: PairedNetwork, options: NetworkOptions, advance: "Advance") -> NetworkResult:
    """Measure all pairs and judge them."""
    rows, standard = (*paired.rows, *paired.context), parse_standard(options.standard)
    details = options.details or (standard is not None and standard.needs_details)
    wanted = Wanted(options.csv, options.overflow, details)
    orders = tensor_orders(rows, overflow=options.overflow)
    outcomes = measure_all(orders, wanted, jobs=options.jobs, advance=lambda number: advance(number))
    folder = paired.dumps.folder
    moment = Moment(Path(paired.names.reference), folder.path, folder.device, folder.step)
    run_of = partial(network_run, paired.whole, rows, outcomes, moment=moment, names=_call_names(paired))
    run = run_of(chosen=members_of(paired.plan))
    read = TensorReader(rows, outcomes, run.measured)
    sound = _sound(run_of(chosen=members_of(paired.whole)), read) if paired.context else {}
    own = {number: outcome for number, outcome in outcomes.items() if number < len(paired.rows)}
    missing = [*paired.missing, *_failures(rows, own), *_masks(own)]
    comparison, table, plan = _judged(run, paired, missing, _evidence(run, read, sound))
    if standard is not None:
        comparison, table = judge_by(standard, comparison, table)
        comparison = with_spans(comparison, run.known, run.seen)
    return NetworkResult(comparison, table, plan, paired, outcomes, options)


def _call_names(paired: PairedNetwork) -> dict[str, str]:
    names = paired.dumps.call_names
    dumped = ((row.operator.name, row.tensor) for row in paired.rows if row.tensor is not None)
    return {name: names[tensor.operation.name] for name, tensor in dumped}


def _judged(
    run: NetworkRun, paired: PairedNetwork, missing: Sequence[str], evidence: RankEvidence
) -> tuple[Comparison, pl.DataFrame, Plan]:
    judged = judge_ranks([evidence])
    plan = Plan((run.plan,), Pair((), ()), Pair((), ()))
    comparison, table = summarise(
        plan, judged, names=paired.names, captured=Captured(levels=("api", "api")), missing=missing
    )
    operators = {name: member.operator for name, member in members_of(paired.plan).items()}
    comparison = replace(comparison, graph=paired.graph, graph_options=paired.options)
    comparison = with_spans(comparison, run.known, run.seen)
    indices = {row.operator.name: row.index for row in paired.rows}
    return replace(comparison, advice=advise_on_network(comparison, operators, table, indices=indices)), table, plan


def _sound(whole: NetworkRun, read: ReadTensor) -> dict[int, State]:
    """Values that are not wrong in the whole network.

    Of chosen operators alone nobody could tell: what they read has the rounding of all that lies before them.
    """
    [judged] = judge_ranks([_evidence(whole, read, {})])
    ids = judged.evidence.sides.target.id.tolist()
    found = zip(ids, judged.flow.states, strict=True)
    return {value: state for value, state in found if state not in WRONG and state is not State.UNKNOWN}


def _evidence(run: NetworkRun, read: ReadTensor, sound: Mapping[int, State]) -> RankEvidence:
    slots, rows, known = paired_values(run.plan)
    row_of = {value: row for row, value in enumerate(known.sides.target.id.tolist())}
    measured = {row: run.measured[value] for value, row in row_of.items()}
    pairs = comparable_by_data(known, measured)
    compared = {row: found.metrics for row, found in measured.items() if pairs.compared[row]}
    return network_evidence(
        gather(run.plan, slots, rows, refine(pairs, compared)),
        dequantised=frozenset(row_of[value] for value in run.dequantised if value in row_of),
        filters={row_of[value]: shape for value, shape in run.filters.items()},
        read=read,
        sound={row_of[value]: state for value, state in sound.items() if value in row_of},
    )


def _failures(rows: Sequence[NetworkRow], outcomes: Mapping[int, RowOutcome]) -> list[str]:
    failed = [outcome for _, outcome in sorted(outcomes.items()) if outcome.reason]
    if not failed:
        return []
    sizes, problem = failed[0].sizes, failed[0].reason
    if sizes is not None:
        tensor = rows[failed[0].row].tensor_id
        problem = remark("sizes_differ", tensor=tensor, reference=sizes.reference, target=sizes.target)
    return [remark("not_measured", tensors=Counted(len(failed), "tensor"), problem=problem)]


def _masks(outcomes: Mapping[int, RowOutcome]) -> list[str]:
    measured = [outcome.measurement for _, outcome in sorted(outcomes.items()) if outcome.measurement is not None]
    return other_masks([found.mask for found in measured if found.mask is not None and masks_differ(found.mask)])


def are_dumps(reference: Path, target: Path) -> bool:
    """Whether a device dumped both sides."""
    return was_dumped(reference) and was_dumped(target)


def pair_without_graph(reference: Path, target: Path, options: NetworkOptions) -> PairedNetwork:
    """Which tensor is compared with which, by names alone."""
    theirs = find_dumps(reference, graph=None, chosen=options.chosen)
    mine = find_dumps(target, graph=None, chosen=options.chosen)
    named, nothing = names_in_both(Pair(theirs.operations, mine.operations)), NetworkPlan("", ())
    return PairedNetwork(
        names=Pair(str(reference), str(target)),
        graph=None,
        plan=nothing,
        whole=nothing,
        dumps=mine,
        rows=tuple(pair_dumps(named.target, named.reference, DumpReferences(named.reference))),
        reference=Reference(operations=theirs.operations, missing=theirs.missing),
        choice=options.operators,
    )


def compare_dumps(
    reference: Path, target: Path, options: NetworkOptions, ordinary: CompareOptions, *, advance: "Advance"
) -> NetworkResult:
    """Compare two dumps: judged as any two runs are, with a row a tensor for msaccucmp's table."""
    paired = pair_without_graph(reference, target, options)
    orders = [] if options.csv is None else tensor_orders(paired.rows, overflow=options.overflow)
    wanted = Wanted(options.csv, options.overflow, options.details)
    outcomes = measure_all(orders, wanted, jobs=options.jobs, advance=lambda number: advance(number))
    found = compare(reference, target, ordinary)
    return NetworkResult(found.comparison, found.pairs, found.plan, paired, outcomes, options)
