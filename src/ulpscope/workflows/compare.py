"""`ulpscope compare`: two runs, aligned, judged and told."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ulpscope.align.mapping import Mapped, read_mapping
from ulpscope.align.plan import Plan, RankPlan, make_plan, plan_json, unused_rules
from ulpscope.align.tensors import pair_tensors
from ulpscope.diagnose.comparing import JudgedRank, judge_ranks, summarise
from ulpscope.diagnose.evidence import RankEvidence, gather
from ulpscope.diagnose.fixed import judge_by
from ulpscope.diagnose.replaying import replay_ranks
from ulpscope.dialects.ascend import opening as ascend
from ulpscope.dialects.msprobe.compare_config import is_compare_config, read_compare_config
from ulpscope.dialects.opening import open_run
from ulpscope.judge.masks import attention_mask, may_be_masked
from ulpscope.judge.measuring import ValuePairs, measure, read_values, refine
from ulpscope.judge.standards import parse_standard
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.numerics.metrics import AnyArray, compare_arrays
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import TraceError
from ulpscope.records.findings import Advice, AdviceKind, Comparison, Outcome
from ulpscope.records.ledger import Ledger, Replay
from ulpscope.records.pairs import Pair, PairMetrics
from ulpscope.records.settings import IntRanges
from ulpscope.records.values import Value
from ulpscope.report.compare import compare_text
from ulpscope.report.compare_json import compare_json
from ulpscope.report.compare_ledger_table import LEDGER_COLUMNS, ledger_table
from ulpscope.report.compare_tables import write_csv, write_xlsx
from ulpscope.report.language import Language
from ulpscope.report.quantities import ranges_text
from ulpscope.trace.collector import collector_paused
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.workflows.compare_replay import nothing_executed, obstacles, refuse
from ulpscope.workflows.report import write_report
from ulpscope.workflows.report_stacks import finding_stacks
from ulpscope.workflows.results import SUMMARY, write_json, writing

if TYPE_CHECKING:
    from ulpscope.report.progress import Advance


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What of two traces is compared, and how."""

    steps: IntRanges | None = None
    ranks: IntRanges | None = None
    mapping: Path | None = None
    details: bool = False
    """ULP and KL divergence too, where data was saved."""
    jobs: int = 1
    standard: str = "rounding"
    replay: Replay = Replay.AUTO


@dataclass(frozen=True, slots=True)
class ToldFinding:
    """A finding or note with its sentence: the fields of summary.json."""

    kind: str
    rank: int
    step: int
    phase: str
    call: str | None
    op: str | None
    module: str | None
    tensor: str | None
    source: str | None
    evidence: dict[str, Any]
    sentence: str
    next: str


@dataclass(frozen=True, slots=True)
class CompareResult:
    """What a comparison found, with the tables behind it."""

    comparison: Comparison
    pairs: pl.DataFrame
    plan: Plan

    @property
    def verdict(self) -> str:
        """agree, diverged or nothing_compared."""
        return self.comparison.outcome.value

    @property
    def findings(self) -> tuple[ToldFinding, ...]:
        """What is wrong; the first is the answer."""
        return tuple(ToldFinding(**finding) for finding in self.json()["findings"])

    @property
    def notes(self) -> tuple[ToldFinding, ...]:
        """What differs and is not wrong."""
        return tuple(ToldFinding(**note) for note in self.json()["notes"])

    @property
    def code(self) -> ExitCode:
        return CODES[self.comparison.outcome]

    def text(self, *, width: int = 100, color: bool = False, language: Language = Language.EN) -> str:
        return compare_text(self.comparison, width=width, color=color, language=language)

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        return compare_json(self.comparison, language)

    def write(self, out: Path, *, xlsx: bool = False, language: Language = Language.EN) -> None:
        """Write summary.json, the tables behind it and their page into a directory that is empty."""
        with writing(out):
            self.write_tables(out, xlsx=xlsx, language=language)
        write_report(out, self, stacks=finding_stacks(self.comparison, self.plan))

    def write_tables(self, out: Path, *, xlsx: bool, language: Language) -> None:
        """The same without the page."""
        write_json(out / "plan.json", plan_json(self.plan))
        self.pairs.write_parquet(out / "pairs.parquet")
        write_csv(self.pairs, out / "tensors.csv")
        if self.comparison.ledger is not None:
            executed = ledger_table(self.comparison.ledger)
            executed.write_parquet(out / "ledger.parquet")
            write_csv(executed, out / "ledger.csv", columns=LEDGER_COLUMNS)
        if xlsx:
            write_xlsx(self.pairs, out / "tensors.xlsx", self.comparison, language=language)
        write_json(out / SUMMARY, self.json(language))


CODES = {
    Outcome.AGREE: ExitCode.OK,
    Outcome.DIVERGED: ExitCode.DIFFERENCE,
    Outcome.NOTHING_COMPARED: ExitCode.NOTHING,
}


@dataclass(frozen=True, slots=True)
class Planned:
    """Two opened traces and the plan of their comparison."""

    traces: Pair[Trace]
    plan: Plan
    mapped: Mapped | None

    def missing(self) -> list[str]:
        """What of the traces is not compared, a sentence each."""
        sides = self.traces.reference, self.traces.target
        found = [f"{side.path}: {sentence}" for side in sides for sentence in side.missing]
        found += [sentence for side in sides for sentence in _left_processes(side)]
        for rank in self.plan.ranks:
            left = sorted(set(self.plan.steps) - set(rank.steps))
            if left:
                found.append(f"rank {rank.rank}: step {ranges_text(left)} is not in both traces")
        return found + (unused_rules(self.plan, self.mapped) if self.mapped is not None else [])


def _left_processes(trace: Trace) -> list[str]:
    names = [rank.name for rank in trace.ranks]
    numbers = [rank.info.rank for rank in trace.ranks]
    again = [name for place, name in enumerate(names) if numbers[place] in numbers[:place]]
    return [f"{trace.path}: {name} is a further process of its rank and not compared" for name in again]


def plan_comparison(reference: str | Path, target: str | Path, options: CompareOptions) -> Planned:
    """Open both traces and plan their comparison."""
    traces = Pair(open_run(reference), open_run(target))
    mapped = read_mapping(options.mapping) if options.mapping is not None else None
    return Planned(traces, make_plan(traces, steps=options.steps, ranks=options.ranks, mapped=mapped), mapped)


def compare(
    reference: str | Path,
    target: str | Path,
    options: CompareOptions | None = None,
    *,
    advance: "Advance | None" = None,
) -> CompareResult:
    """Compare two traces and name the first operation that went wrong."""
    with collector_paused():
        return _compare(reference, target, options or CompareOptions(), advance or _unseen)


def _unseen(number: int, /, *, text: str | None = None) -> None:
    """Progress that nobody watches."""


def _compare(reference: str | Path, target: str | Path, options: CompareOptions, advance: "Advance") -> CompareResult:
    standard = parse_standard(options.standard)
    if standard is not None and standard.needs_details:
        options = replace(options, details=True)
    planned = plan_comparison(reference, target, options)
    plan, traces, missing = planned.plan, planned.traces, planned.missing()
    if standard is not None and options.replay is Replay.AUTO:
        # A fixed standard asks for metrics only.
        options = replace(options, replay=Replay.OFF)
    unable = obstacles(plan) if options.replay is not Replay.OFF else []
    if unable and options.replay is Replay.ON:
        raise refuse(unable)
    ranks = [_evidence(rank, planned.mapped, options, advance, missing) for rank in plan.ranks]
    judged, ledger = _with_ledger(judge_ranks(ranks), plan, unable, options.replay, advance)
    comparison, table = summarise(
        plan,
        judged,
        names=Pair(str(reference), str(target)),
        levels=(_level(traces.reference), _level(traces.target)),
        missing=missing,
        ledger=ledger,
    )
    if standard is not None:
        comparison, table = judge_by(standard, comparison, table)
    if not comparison.counts.tensors_compared:
        comparison = replace(comparison, advice=(*comparison.advice, *_graph_advice(traces)))
    return CompareResult(comparison, table, plan)


def _graph_advice(traces: Pair[Trace]) -> list[Advice]:
    """Of a network on an NPU only its graph tells which operator is which."""
    dumps = [
        side for side in (traces.reference, traces.target) if side.ranks[0].info.capture.get("tool") == ascend.TOOL
    ]
    return [Advice(AdviceKind.GIVE_GRAPH, str(dump.path)) for dump in dumps]


def _with_ledger(
    judged: list[JudgedRank], plan: Plan, unable: list[str], replay: Replay, advance: "Advance"
) -> tuple[list[JudgedRank], Ledger | None]:
    """Execute calls again where both runs saved their data, and let findings rest on that."""
    if replay is Replay.OFF:
        return judged, None
    if unable:
        return judged, nothing_executed(plan, unable)
    advance(0, text="executing calls again")
    return replay_ranks(judged, replay, advance)


def compare_configured(path: Path) -> Pair[Path] | None:
    """The two dumps that an old compare.json names; none if the file is no such config."""
    return read_compare_config(path) if is_compare_config(path) else None


def _level(trace: Trace) -> str:
    return str(trace.ranks[0].info.capture.get("level", "api"))


def _evidence(
    plan: RankPlan, mapped: Mapped | None, options: CompareOptions, advance: "Advance", failures: list[str]
) -> RankEvidence:
    slots = pair_tensors(plan, mapped)
    unique = slots.select("reference", "target").unique(maintain_order=True).with_row_index("row")
    rows = slots.join(unique, on=["reference", "target"], how="left", maintain_order="left")["row"].to_numpy()
    ids = Pair(unique["reference"].to_numpy(), unique["target"].to_numpy())
    known = Pair(read_values(plan.traces.reference, ids.reference), read_values(plan.traces.target, ids.target))
    pairs = measure(
        known.reference.take(np.searchsorted(known.reference.id, ids.reference)),
        known.target.take(np.searchsorted(known.target.id, ids.target)),
        same_digests=plan.traces.reference.summary_id == plan.traces.target.summary_id,
    )
    return gather(plan, slots, rows, _from_data(plan, pairs, options, advance, failures))


def _from_data(
    plan: RankPlan, pairs: ValuePairs, options: CompareOptions, advance: "Advance", failures: list[str]
) -> ValuePairs:
    """Measure anew, from saved data, what is not identical; what cannot be read is named in `failures`."""
    both = pairs.values.reference.has_data & pairs.values.target.has_data & pairs.compared & ~pairs.identical
    rows = np.flatnonzero(both).tolist()
    if not rows:
        return pairs
    read = _Reader(plan.traces, pairs, rows, detailed=options.details)
    found: dict[int, PairMetrics | None] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for row, metrics in zip(rows, pool.map(read, rows), strict=True):
            found[row] = metrics
            advance(1)
    if read.failures:
        failures.append(f"{len(read.failures)} pairs compared without their data: {read.failures[0]}")
    return replace(refine(pairs, found), score_errors=read.score_errors)


class _Reader:
    """Reads the saved data of pairs of values and compares it."""

    def __init__(self, traces: Pair[RankTrace], pairs: ValuePairs, rows: list[int], *, detailed: bool) -> None:
        self.traces = traces
        self.pairs = pairs
        self.detailed = detailed
        self.failures: list[str] = []
        self.score_errors: dict[int, float] = {}
        self.values = Pair(
            traces.reference.find_values(pairs.values.reference.id[rows].tolist()),
            traces.target.find_values(pairs.values.target.id[rows].tolist()),
        )

    def __call__(self, row: int) -> PairMetrics | None:
        reference = self.values.reference[int(self.pairs.values.reference.id[row])]
        target = self.values.target[int(self.pairs.values.target.id[row])]
        try:
            arrays = self.traces.reference.data(reference), self.traces.target.data(target)
        except TraceError as error:
            self.failures.append(error.seen)
            return None
        if arrays[0] is None or arrays[1] is None:
            return None
        self._note_scores(row, Pair(reference, target), Pair(arrays[0], arrays[1]))
        return compare_arrays(
            arrays[0].reshape(-1) if arrays[0].shape != arrays[1].shape else arrays[0],
            arrays[1].reshape(-1) if arrays[0].shape != arrays[1].shape else arrays[1],
            reference_dtype=reference.dtype,
            target_dtype=target.dtype,
            detailed=self.detailed,
        )

    def _note_scores(self, row: int, values: Pair[Value], arrays: Pair[AnyArray]) -> None:
        """How far attention scores are apart where no mask hides them."""
        alike = arrays.reference.shape == arrays.target.shape
        if not alike or not (_may_be_scores(values.reference) and _may_be_scores(values.target)):
            return
        masked = attention_mask(arrays.reference, arrays.target)
        if masked is not None:
            reference, target = (side[~masked].astype(np.float64) for side in (arrays.reference, arrays.target))
            self.score_errors[row] = float(np.sqrt(np.mean(np.square(target - reference))))


def _may_be_scores(value: Value) -> bool:
    is_float = value.dtype in DTYPES and DTYPES[value.dtype].kind is DtypeKind.FLOAT
    return is_float and value.stats is not None and may_be_masked(value.stats.min, value.stats.max)
