"""Does what a plan asks for: obtains the traces of both runs, and sets them side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ulpscope.diagnose.trainings.losses import Losses, read_losses, step_of
from ulpscope.dialects.opening import open_run
from ulpscope.judge.rounding.limits import unit_roundoff
from ulpscope.records.calls import Call, Value
from ulpscope.records.environments import EnvironmentDifference
from ulpscope.records.findings import Comparison, Finding
from ulpscope.records.investigations import (
    NO_TRACES,
    REFERENCE,
    TARGET,
    Compared,
    Done,
    Plan,
    Raised,
    Stage,
    StepLosses,
    Suspect,
    Watched,
)
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.workflows.compare.command import compare
from ulpscope.workflows.compare.trainings import compare_trainings
from ulpscope.workflows.env.comparing import differences_of_runs
from ulpscope.workflows.investigate.sources import Obtained, Source

Compare = Callable[[Path, Path], Comparison]
"""Compares two traces, and keeps the result where results are kept."""


def compared_only(reference: Path, target: Path) -> Comparison:
    """Where no results are kept."""
    return compare(reference, target).comparison


@dataclass
class Stages:
    """Does one stage after the other; remembers what was watched."""

    source: Source
    compare: Compare = compared_only
    environment: tuple[EnvironmentDifference, ...] = ()
    first: Pair[Path] | None = None
    """The traces whose environments these are."""
    watched: Pair[Mapping[int, Losses]] = field(default_factory=lambda: Pair({}, {}))

    def do(self, plan: Plan, wanted: int | None) -> Done | None:
        """One stage, which looks into watched step `wanted`; None where a trace of it has to be made elsewhere."""
        obtained = {side: self.source.obtain(plan, side) for side in plan.sides}
        found = {side: one for side, one in obtained.items() if one is not None}
        if len(found) < len(obtained):
            return None
        paths = Pair(*(found[side].path if side in found else None for side in (REFERENCE, TARGET)))
        said = self._said(plan, paths, wanted)
        return Done(plan, said, _seconds(found), _ran(found), paths.map(_text) if any(paths) else NO_TRACES)

    def _said(self, plan: Plan, paths: Pair[Path | None], wanted: int | None) -> Watched | Compared | Raised:
        if plan.stage is Stage.RAISED:
            return self._raised(paths.target)
        captured = paths.map(lambda path: path is not None)
        if paths.reference is None or paths.target is None:
            return Watched(captured) if plan.stage is Stage.LOSSES else Compared(captured)
        both = Pair(paths.reference, paths.target)
        self._note_environment(both)
        if plan.stage is Stage.LOSSES:
            return self._watched(both)
        return self._compared(plan, both, wanted)

    def _note_environment(self, paths: Pair[Path]) -> None:
        """Of the first traces, without what differs between two runs of one command, too: that tells nothing."""
        if self.first is None:
            self.first = paths
            self.environment = differences_of_runs(paths.map(open_run))
            return
        again = [Pair(*map(open_run, both)) for both in zip(self.first, paths, strict=True)]
        own = {(each.part, each.name) for both in again for each in differences_of_runs(both)}
        self.environment = tuple(each for each in self.environment if (each.part, each.name) not in own)

    def _watched(self, paths: Pair[Path]) -> Watched:
        traces = paths.map(open_run)
        self.watched = traces.map(lambda trace: read_losses(trace.ranks[0]))
        optimizers = max(trace.ranks[0].info.stepping.optimizers for trace in traces)
        trainings = compare_trainings(paths.reference, paths.target).found
        return Watched(Pair(True, True), trainings, max(1, optimizers))

    def _compared(self, plan: Plan, paths: Pair[Path], wanted: int | None) -> Compared:
        comparison = self.compare(paths.reference, paths.target)
        traces = paths.map(open_run)
        suspect = _suspect(comparison.findings[0], traces.target) if comparison.findings else None
        if wanted is None or plan.steps is None:
            return Compared(Pair(True, True), comparison, suspect)
        now = traces.map(lambda trace: read_losses(trace.ranks[0]).get(plan.steps[1] if plan.steps else 0))
        sides = zip(now, self.watched, strict=True)
        steps = [None if one is None else step_of(one, known, first=wanted) for one, known in sides]
        return Compared(
            Pair(True, True),
            comparison,
            suspect,
            watched_as=next((step for step in steps if step is not None), None),
            losses=self._losses(wanted),
            apart=Pair(*(_apart(one, known.get(wanted)) for one, known in zip(now, self.watched, strict=True))),
        )

    def _losses(self, step: int, raised: float | None = None) -> StepLosses | None:
        known = self.watched.map(lambda side: side.get(step))
        if known.reference is None or known.target is None:
            return None
        return StepLosses(step, known.reference.mean, known.target.mean, raised)

    def _raised(self, path: Path | None) -> Raised:
        if path is None:
            return Raised((), 0)
        rank = open_run(path).ranks[0]
        losses = read_losses(rank)
        found = [self._losses(step, each.mean) for step, each in sorted(losses.items())]
        calls = sum(rank.info.coverage.calls_raised.values())
        return Raised(tuple(each for each in found if each is not None), calls)


def _seconds(obtained: Mapping[str, Obtained]) -> float:
    return sum(each.seconds for each in obtained.values())


def _ran(obtained: Mapping[str, Obtained]) -> tuple[str, ...]:
    return tuple(side for side, each in obtained.items() if each.is_run)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _apart(now: Losses | None, before: Losses | None) -> float | None:
    """How far a loss is from what it was; not known where another number of them was gone back from."""
    if now is None or before is None:
        return None
    return 0.0 if now.digests <= before.digests else abs(now.mean - before.mean)


def _suspect(finding: Finding, trace: Trace) -> Suspect | None:
    """The call of a finding as the target makes it."""
    if finding.place.call_id is None:
        return None
    rank = next((each for each in trace.ranks if each.info.rank == finding.place.rank), None)
    if rank is None:
        return None
    call = rank.call(finding.place.call_id)
    forward = call if call.forward is None else rank.find_calls([call.forward]).get(call.forward, call)
    values = _values(rank, forward)
    roundoffs = [unit_roundoff(value.dtype) for value in values] + [unit_roundoff(forward.autocast or "")]
    return Suspect(
        forward.name,
        forward.op,
        forward.module,
        is_coarse=max(roundoffs) > unit_roundoff("float32"),
        on_device=any(not value.device.startswith("cpu") for value in values),
    )


def _values(rank: RankTrace, call: Call) -> Sequence[Value]:
    return list(rank.find_values([use.value for use in rank.uses(call.id)]).values())
