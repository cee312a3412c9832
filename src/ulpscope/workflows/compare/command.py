"""`ulpscope compare`: two runs, aligned, judged, executed again where both saved their data, and told."""

import importlib.util
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.align.mapping import Mapped, read_mapping
from ulpscope.align.plan import Plan, RankPlan, make_plan, plan_json, unused_rules
from ulpscope.align.tensors import pair_tensors
from ulpscope.diagnose.comparing import Captured, Judging, summarise
from ulpscope.diagnose.findings import JudgedRank
from ulpscope.diagnose.flow.evidence import RankEvidence, gather
from ulpscope.diagnose.replaying import judge_by_executing
from ulpscope.dialects.opening import open_run
from ulpscope.dialects.tables import ASCEND, TFDBG, is_network
from ulpscope.judge.rounding.measuring import ValuePairs, measure
from ulpscope.judge.rounding.values import read_values
from ulpscope.judge.standards.by_name import judge_by, parse_standard
from ulpscope.operations.registry import ASKS_FOR_GRADIENTS
from ulpscope.records.enums import ExitCode, Kind, Save
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.evidence import Ledger, Replay
from ulpscope.records.findings import Advice, AdviceKind, Comparison, Outcome, extent_of
from ulpscope.records.pairs import Pair
from ulpscope.records.remarks import remark, within
from ulpscope.records.runs import IntRanges
from ulpscope.replay.frameworks import Framework, framework_of
from ulpscope.report.files.compare_tables import LEDGER_COLUMNS, ledger_table, write_csv, write_parquet, write_xlsx
from ulpscope.report.terminal.compare import compare_json, compare_text
from ulpscope.report.words.language import Language, ranges_text
from ulpscope.trace.frames import outer_calls
from ulpscope.trace.objects import collector_paused
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.trace.twins import fitting_twins
from ulpscope.trace.watched import refuse_gradients
from ulpscope.workflows.answers import TellsItself
from ulpscope.workflows.compare.saved_data import measure_data
from ulpscope.workflows.env.comparing import differences_of_runs
from ulpscope.workflows.report.command import finding_stacks, write_result
from ulpscope.workflows.results import write_json

if TYPE_CHECKING:
    from ulpscope.report.progress import Advance


RAISING_OPTIONS = {"--in-float32": "in_float32", "--on-cpu": "on_cpu"}
"""By which a capture changes a run's numbers."""


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
    require_all: bool = False
    """Runs that agree in what was compared are incomplete, unless that was all of both."""


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


@dataclass(frozen=True, slots=True, repr=False)
class CompareResult(TellsItself):
    """What a comparison found, with the tables behind it."""

    comparison: Comparison
    pairs: pl.DataFrame
    plan: Plan

    @property
    def verdict(self) -> str:
        """agree, diverged, nothing_compared or, where all is required, incomplete."""
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
        return self.comparison.outcome.code

    def text(self, *, width: int = 100, color: bool = False, language: Language = Language.EN) -> str:
        return compare_text(self.comparison, width=width, color=color, language=language)

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        return compare_json(self.comparison, language)

    def write(self, out: str | Path, *, xlsx: bool = False, language: Language = Language.EN) -> Path:
        """Write summary.json, the tables behind it and their page into a directory that is empty; gives the page."""
        tables = partial(self._write_tables, xlsx=xlsx, language=language)
        return write_result(out, self, tables, language=language, stacks=self._stacks())

    def _stacks(self) -> list[list[dict[str, Any]]]:
        return finding_stacks(self.comparison, self.plan)

    def _write_tables(self, out: Path, *, xlsx: bool, language: Language) -> None:
        write_json(out / "plan.json", plan_json(self.plan))
        write_parquet(self.pairs, out / "pairs.parquet")
        write_csv(self.pairs, out / "tensors.csv")
        if self.comparison.ledger is not None:
            executed = ledger_table(self.comparison.ledger)
            write_parquet(executed, out / "ledger.parquet")
            write_csv(executed, out / "ledger.csv", columns=LEDGER_COLUMNS)
        if xlsx:
            write_xlsx(self.pairs, out / "tensors.xlsx", self.comparison, language=language)


@dataclass(frozen=True, slots=True)
class Planned:
    """Two opened traces and the plan of their comparison."""

    traces: Pair[Trace]
    plan: Plan
    mapped: Mapped | None

    def missing(self) -> list[str]:
        """What of the traces is not compared, a sentence each."""
        found = [within(side.path, sentence) for side in self.traces for sentence in side.missing]
        found += [sentence for side in self.traces for sentence in (*_left_processes(side), *_changed_numbers(side))]
        for rank in self.plan.ranks:
            left = sorted(set(self.plan.steps) - set(rank.steps))
            if left:
                found.append(remark("rank_steps", rank=rank.rank, steps=ranges_text(left)))
        return found + (unused_rules(self.plan, self.mapped) if self.mapped is not None else [])


def _left_processes(trace: Trace) -> list[str]:
    names = [rank.name for rank in trace.ranks]
    numbers = [rank.info.rank for rank in trace.ranks]
    again = [name for place, name in enumerate(names) if numbers[place] in numbers[:place]]
    return [within(trace.path, remark("process_not_compared", name=name)) for name in again]


def _changed_numbers(trace: Trace) -> list[str]:
    """That calls of this run ran elsewhere than the script has them run."""
    captured = trace.ranks[0].info.capture
    given = [(option, captured.get(name)) for option, name in RAISING_OPTIONS.items()]
    options = " ".join(f"{option} {shlex.quote(str(call))}" for option, calls in given if calls for call in calls)
    return [within(trace.path, remark("numbers_changed", options=options))] if options else []


def plan_comparison(traces: Pair[Trace], options: CompareOptions) -> Planned:
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
        return _compare(reference, target, options or CompareOptions(), advance or unseen)


def unseen(number: int, /, *, text: str | None = None) -> None:
    """Progress that nobody watches."""


def _compare(reference: str | Path, target: str | Path, options: CompareOptions, advance: "Advance") -> CompareResult:
    traces, names = Pair(open_run(reference), open_run(target)), Pair(str(reference), str(target))
    _refuse_counts(traces)
    for trace in traces:
        refuse_gradients(trace)
    twins, unused = fitting_twins(traces)
    result = _compare_levels(traces, twins, names, options, advance)
    comparison = result.comparison
    missing, environment = (*comparison.missing, *unused), differences_of_runs(traces)
    return replace(result, comparison=replace(comparison, missing=missing, environment=environment))


def _refuse_counts(traces: Pair[Trace]) -> None:
    """A debugger's counts of inf and nan, without shapes, beside numbers: whatever differs would be their form."""
    counted = traces.map(_has_counts_only)
    if counted.reference == counted.target:
        return
    path = (traces.reference if counted.reference else traces.target).path
    raise UlpscopeError(
        f"{path} has counts of inf and nan at most, neither tensors nor their extremes",
        expected="tensors or stats in both, such as a dump with tensor_debug_mode='FULL_TENSOR'",
        next_step=f"what it tells: ulpscope overflow {shlex.quote(str(path))}",
        code=ExitCode.NOTHING,
    )


def _has_counts_only(trace: Trace) -> bool:
    captured = [rank.info.capture for rank in trace.ranks]
    return all(each.get("tool") == TFDBG and each.get("save") == Save.STATS.value for each in captured)


def _compare_levels(
    traces: Pair[Trace], twins: Sequence[Trace], names: Pair[str], options: CompareOptions, advance: "Advance"
) -> CompareResult:
    """Compare calls; of traces with kernels those inside of calls that differ, too."""
    if "kernel" not in (_level(traces.reference), _level(traces.target)):
        return _compare_traces(traces, twins, names, options, advance)

    def looked_into(opened: Pair[_Calls]) -> CompareResult:
        shown = Pair(outer_calls(traces.reference, opened.reference), outer_calls(traces.target, opened.target))
        # A twin makes the calls of its run, under the same numbers.
        alike = [outer_calls(twin, opened.reference) for twin in twins]
        return _compare_traces(shown, alike, names, options, advance)

    # What runs inside of calls that agree differs by nature where they are computed in another way.
    outer = looked_into(Pair(frozenset(), frozenset()))
    if not outer.comparison.findings:
        return outer
    inner = looked_into(_found_calls(outer))
    return inner if inner.comparison.findings else outer


def _level(trace: Trace) -> str:
    return str(trace.ranks[0].info.capture.get("level", "api"))


_Calls = frozenset[tuple[str, int]]
"""By the name of their process and their id."""


def _found_calls(result: CompareResult) -> Pair[_Calls]:
    """The calls of all findings, and their partners."""
    found = {(finding.place.rank, finding.place.call_id) for finding in result.comparison.findings}
    sides: Pair[set[tuple[str, int]]] = Pair(set(), set())
    for rank in result.plan.ranks:
        wanted = [call for number, call in found if number == rank.rank]
        for row in rank.pairs.filter(pl.col("target").is_in(wanted)).iter_rows(named=True):
            sides.reference.add((rank.traces.reference.name, row["reference"]))
            sides.target.add((rank.traces.target.name, row["target"]))
    return sides.map(frozenset)


def _compare_traces(
    traces: Pair[Trace], twins: Sequence[Trace], names: Pair[str], options: CompareOptions, advance: "Advance"
) -> CompareResult:
    standard = parse_standard(options.standard)
    if standard is not None and standard.needs_details:
        options = replace(options, details=True)
    planned = plan_comparison(traces, options)
    plan, missing = planned.plan, planned.missing()
    if standard is not None and options.replay is Replay.AUTO:
        # A fixed standard asks for metrics only.
        options = replace(options, replay=Replay.OFF)
    unable = obstacles(plan) if options.replay is not Replay.OFF else []
    if unable and options.replay is Replay.ON:
        raise refuse(unable)
    ranks = [_evidence(rank, planned.mapped, options, advance, missing) for rank in plan.ranks]
    healthy = _twin_evidence(traces.reference, twins, plan)
    judged, ledger = _with_ledger(Judging(ranks, healthy), plan, unable, options.replay, advance)
    comparison, table = summarise(
        plan,
        judged,
        names=names,
        captured=captured_alike(traces, plan),
        missing=missing,
        ledger=ledger,
    )
    if standard is not None:
        comparison, table = judge_by(standard, comparison, table)
    if options.require_all and comparison.outcome is Outcome.AGREE and not extent_of(comparison).is_all:
        comparison = replace(comparison, outcome=Outcome.INCOMPLETE)
    if not comparison.counts.tensors_compared:
        # Of a network on an NPU only its graph tells which operator is which.
        dumps = [side for side in traces if side.ranks[0].info.capture.get("tool") == ASCEND]
        graphs = [Advice(AdviceKind.GIVE_GRAPH, str(dump.path)) for dump in dumps]
        comparison = replace(comparison, advice=(*comparison.advice, *graphs))
    return CompareResult(comparison, table, plan)


def _with_ledger(
    judging: Judging, plan: Plan, unable: list[str], replay: Replay, advance: "Advance"
) -> tuple[list[JudgedRank], Ledger | None]:
    """Execute calls again where both runs saved their data, and let findings rest on that."""
    if replay is Replay.OFF:
        return judging.judge(), None
    if unable:
        return judging.judge(), nothing_executed(plan, unable)
    advance(0, text="executing calls again")
    return judge_by_executing(judging, replay, advance)


def _evidence(
    plan: RankPlan, mapped: Mapped | None, options: CompareOptions, advance: "Advance", failures: list[str]
) -> RankEvidence:
    slots, rows, pairs = paired_values(plan, mapped)
    measured = measure_data(plan.traces, pairs, failures, jobs=options.jobs, detailed=options.details, advance=advance)
    return gather(plan, slots, rows, measured)


def _twin_evidence(reference: Trace, twins: Sequence[Trace], plan: Plan) -> list[list[RankEvidence]]:
    """For each rank: the reference's twins compared with it."""
    steps = IntRanges(tuple((step, step) for step in plan.steps))
    alike = [twin for twin in twins if set(twin.steps) & set(plan.steps)]  # one that died at once has none
    plans = [{rank.rank: rank for rank in make_plan(Pair(reference, twin), steps=steps).ranks} for twin in alike]
    return [
        [gather(known[rank.rank], *paired_values(known[rank.rank])) for known in plans if rank.rank in known]
        for rank in plan.ranks
    ]


def paired_values(plan: RankPlan, mapped: Mapped | None = None) -> tuple[pl.DataFrame, NDArray[Any], ValuePairs]:
    """The tensors of paired calls, for each the row of its values, and these values as far as summaries tell."""
    slots = pair_tensors(plan, mapped)
    unique = slots.select("reference", "target").unique(maintain_order=True).with_row_index("row")
    rows = slots.join(unique, on=["reference", "target"], how="left", maintain_order="left")["row"].to_numpy()
    ids = Pair(unique["reference"].to_numpy(), unique["target"].to_numpy())
    known = Pair(
        read_values(plan.traces.reference, ids.reference, plan.calls.reference["id"].to_numpy()),
        read_values(plan.traces.target, ids.target, plan.calls.target["id"].to_numpy()),
    )
    pairs = measure(
        known.reference.take(np.searchsorted(known.reference.id, ids.reference)),
        known.target.take(np.searchsorted(known.target.id, ids.target)),
        same_digests=plan.traces.reference.summary_id == plan.traces.target.summary_id,
    )
    return slots, rows, pairs


def captured_alike(traces: Pair[Trace], plan: Plan) -> Captured:
    """What was captured of both runs, as far as it bears on what can be compared."""
    filters = traces.map(lambda trace: _filters(trace.ranks[0].info.capture))
    return Captured(
        levels=(_level(traces.reference), _level(traces.target)),
        filters=(filters.reference, filters.target) if filters.reference != filters.target else None,
        same_run=all(_is_one(rank.traces) for rank in plan.ranks),
    )


def _filters(capture: dict[str, object]) -> str:
    """`--only torch.relu --skip torch.mul`; empty where every call was captured."""
    given = [(option, capture.get(option)) for option in ("only", "skip")]
    return " ".join(f"--{option} {name}" for option, names in given if isinstance(names, list) for name in names)


def _is_one(traces: Pair[RankTrace]) -> bool:
    """Whether both are one process of one run."""
    one, other = traces.reference, traces.target
    return (one.directory.resolve(), one.name) == (other.directory.resolve(), other.name)


NOT_INSTALLED = {
    Framework.TORCH: "torch is not installed here",
    Framework.TENSORFLOW: "TensorFlow is not installed here",
}
OTHER_FRAMEWORK = "the runs are of two frameworks"
NO_CALLS = "no pair of API calls"
NOT_TORCH = "the operators are a network's, which torch does not have"
NO_DATA = {side: f"the {side} has no saved data" for side in ("reference", "target")}
_NEXT_STEPS = {
    **{text: f"install {each.value}, or leave --replay on out" for each, text in NOT_INSTALLED.items()},
    OTHER_FRAMEWORK: "leave --replay on out",
    NO_CALLS: "capture both runs again at level api with --save tensors, or leave --replay on out",
    NOT_TORCH: "leave --replay on out; ulpscope check DUMP --graph GRAPH computes operators that an NPU dumped",
}
_CAPTURE_AGAIN = "capture both runs again with --save tensors, or leave --replay on out"


def obstacles(plan: Plan) -> list[str]:
    """Why these calls cannot be executed again; the dearest to mend first."""
    if any(is_network(trace.info) for side in NO_DATA for trace in _side(plan, side)):
        return [NOT_TORCH]
    frameworks = {framework_of(trace) for side in NO_DATA for trace in _side(plan, side)}
    if len(frameworks) > 1:
        return [OTHER_FRAMEWORK]
    without = [text for side, text in NO_DATA.items() if not all(_has_data(traces) for traces in _side(plan, side))]
    found = [*without, *([] if api_pairs(plan) else [NO_CALLS])]
    return [*found, *(NOT_INSTALLED[each] for each in frameworks if importlib.util.find_spec(each.value) is None)]


def refuse(seen: list[str]) -> UlpscopeError:
    """What to say to a user who asked for it."""
    return UlpscopeError(
        f"--replay on, but {seen[0]}",
        expected="two traces with API calls and the data of their tensors, and their framework to execute them with",
        next_step=_NEXT_STEPS.get(seen[0], _CAPTURE_AGAIN),
    )


def nothing_executed(plan: Plan, seen: list[str]) -> Ledger | None:
    """What to say to a user who did not ask: nothing, if no trace holds data, or calls that could be executed."""
    if NOT_TORCH in seen or OTHER_FRAMEWORK in seen or all(text in seen for text in NO_DATA.values()):
        return None
    return Ledger(Replay.AUTO, left=((seen[0], api_pairs(plan)),))


def api_pairs(plan: Plan) -> int:
    """How many pairs of API calls there are, beside those that only run backwards."""
    found = 0
    for rank in plan.ranks:
        calls = rank.calls.target.filter(pl.col("kind") == Kind.API.value, ~pl.col("op").is_in(ASKS_FOR_GRADIENTS))
        found += rank.pairs.join(calls, left_on="target", right_on="id", how="semi").height
    return found


def _side(plan: Plan, side: str) -> list[RankTrace]:
    return [getattr(rank.traces, side) for rank in plan.ranks]


def _has_data(trace: RankTrace) -> bool:
    saved = trace.values().filter(pl.col("data_file").is_not_null()).select("id").head(1)
    return not trace.collect(saved).is_empty()
