"""Are the models built alike, and do both runs make the same steps: an optimizer's update, a whole iteration?

A run that leaves an update out goes on to the next forward in the same step: its step has more backwards before the
update than the other run's. From there on the steps of the two runs are not the same iterations.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import itemgetter
from typing import Any

import polars as pl

from ulpscope.align.tensors import BACKWARD_KINDS, GRADIENT_ROLES
from ulpscope.diagnose.detectors.asking import Answer, Detector
from ulpscope.diagnose.detectors.parameters import REFERENCE, TARGET
from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.exits import given_gradients
from ulpscope.diagnose.flow.states import Birth, Flow
from ulpscope.diagnose.flow.unpaired import Gap, calls_in
from ulpscope.diagnose.limits import FEW_PAIRED, NAMES_LISTED
from ulpscope.diagnose.places import place_of_birth, place_of_pair, place_of_row
from ulpscope.operations.registry import STARTS_BACKWARD
from ulpscope.records.enums import (
    FORWARD_PHASE,
    INPUT_ROLE,
    MODULE_KIND,
    OPTIMIZER_KIND,
    Kind,
    Phase,
    Role,
)
from ulpscope.records.evidence import Amount, Evidence, OneRun, ParameterHistory
from ulpscope.records.findings import Counts, Finding, FindingKind, Place
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import RankTrace


class LoneStructure(Detector):
    """Did it come through a collective or a whole module that only one run has?"""

    def ask(self, birth: Birth) -> Answer | None:
        if birth.gap is None or not self._is_structural(birth.gap):
            return None
        return Answer(FindingKind.STRUCTURE, place_of_birth(self.evidence, birth))

    def _is_structural(self, gap: Gap) -> bool:
        calls = calls_in(self.evidence, gap)
        if any((frame["kind"] == Kind.COLLECTIVE.value).any() for frame in calls):
            return True
        if self.evidence.has_compiled:
            return False
        sides = zip(calls, self.evidence.plan.shared_modules, strict=True)
        return any(module not in known for frame, known in sides for module in frame["module"].drop_nulls())


def other_program(ranks: Sequence[RankEvidence], counts: Counts) -> Finding | None:
    """Where hardly any call has a partner: what differs between two models is no fault of any call.

    Of what other tools have dumped, networks with fused operators for one, many may have none.
    """
    fewer = min(counts.calls_reference, counts.calls_target)
    if counts.matched >= FEW_PAIRED * fewer or not all(evidence.complete for evidence in ranks):
        return None
    plans = [evidence.plan for evidence in ranks]
    first_step = min(step for plan in plans for step in plan.steps)
    place = Place(rank=plans[0].rank, step=first_step, phase=Phase.FORWARD)
    return Finding(FindingKind.STRUCTURE, place, Evidence(one_run=OneRun(paired=(counts.matched, fewer))))


def unshared_parameters(evidence: RankEvidence) -> Finding | None:
    """The first pair of modules that do not own the same parameters and buffers."""
    plan, calls = evidence.plan, evidence.calls
    names = [_owned(trace, plan.steps) for trace in plan.traces]
    for pair, kind in enumerate(calls["kind"]):
        if kind != Kind.MODULE.value:
            continue
        reference = names[0].get(calls["reference_id"][pair], set())
        target = names[1].get(calls["id"][pair], set())
        if reference != target:
            only = OneRun(tuple(sorted(reference - target)), tuple(sorted(target - reference)))
            place = replace(place_of_pair(evidence, pair), tensor=(only.only_target or only.only_reference)[0])
            return Finding(FindingKind.STRUCTURE, place, Evidence(one_run=only))
    return None


def missing_module(evidence: RankEvidence) -> Finding | None:
    """The first module with parameters that one run calls in every step and the other never."""
    plan = evidence.plan
    if evidence.has_compiled:
        return None
    sides = zip(plan.calls, plan.traces, plan.shared_modules, strict=True)
    for number, (calls, trace, shared) in enumerate(sides):
        owned = _owned(trace, plan.steps)
        modules = calls.filter(pl.col("kind") == Kind.MODULE.value)
        steps = dict(modules.group_by("module").agg(pl.col("step").n_unique()).iter_rows())
        for row in modules.sort("id").iter_rows(named=True):
            absent = row["module"] not in shared and steps[row["module"]] == len(plan.steps)
            if absent and owned.get(row["id"]):
                outermost, in_target = _outermost(modules, row["module"], shared), number == 1
                place, names = place_of_row(evidence, outermost, in_target=in_target), (outermost["name"],)
                only = OneRun(only_target=names) if in_target else OneRun(only_reference=names)
                return Finding(FindingKind.STRUCTURE, place, Evidence(one_run=only))
    return None


def untrained_parameters(evidence: RankEvidence, flow: Flow) -> Finding | None:
    """Parameters for which the optimizer of one run has a gradient and that of the other never has one, not even zeros.

    Not behind a choice that flipped: an expert without a token has no gradient.
    """
    if flow.choices or not evidence.complete:
        return None
    given, calls = given_gradients(evidence.plan), evidence.plan.calls
    known = given.map(
        lambda frame: frame.filter(pl.col("norm") != 0.0).unique("name", keep="first", maintain_order=True)
    )
    for run, in_target in ((TARGET, False), (REFERENCE, True)):
        own, other = (known.target, given.reference) if in_target else (known.reference, given.target)
        known_names = given.target if in_target else given.reference
        lost = own.join(other, on="name", how="anti", maintain_order="left")
        unknown = other.join(known_names, on="name", how="anti").unique("name", keep="first", maintain_order=True)
        lost, unknown = _without(lost, unknown), _without(unknown, lost)
        # What is left of both may be the same parameters in other pieces: three projections, or one.
        if not lost.is_empty() and not other.is_empty() and _elements(unknown) < _elements(lost):
            first, names = lost.row(0, named=True), tuple(lost["place"].head(NAMES_LISTED))
            made = calls.target if in_target else calls.reference
            row = made.row(by_predicate=pl.col("id") == first["call"], named=True)
            module, _, tensor = first["place"].rpartition(".")
            place = replace(place_of_row(evidence, row, in_target=in_target), module=module, tensor=tensor)
            history = ParameterHistory(without_gradient=run, parameters=names)
            return Finding(FindingKind.OPTIMIZER, place, Evidence(history=history, amount=Amount(count=lost.height)))
    return None


def _without(parameters: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Parameters without as many of each shape as there are others: these bear other names."""
    numbered = pl.int_range(pl.len()).over("shape").alias("time")
    known = others.with_columns(numbered).select("shape", "time")
    return parameters.with_columns(numbered).join(known, on=["shape", "time"], how="anti", maintain_order="left")


def _elements(parameters: pl.DataFrame) -> int:
    return sum(math.prod(shape) for shape in parameters["shape"])


def lone_update(evidence: RankEvidence, flow: Flow) -> Finding | None:
    """The first step of an optimizer that is given parameters' gradients more often than the other run's ever is, zeros
    among these: where what cancels is exactly zero in one run, it is rounding in the other.

    Not where gradients are always added up otherwise, or hold inf or nan: GradScaler rightly leaves such a step out.
    """
    plan = evidence.plan
    if flow.choices or not evidence.complete or _accumulates(plan.calls.map(_events)) is not None:
        return None
    given = given_gradients(plan)
    used = given.map(lambda frame: frame.filter(pl.col("norm") > 0.0).select("call", "name"))
    totals = given.map(lambda frame: frame.group_by("name").len())
    for in_target, (own, other, calls, behind) in (
        (True, (used.target, totals.reference, plan.calls.target, plan.traces.reference)),
        (False, (used.reference, totals.target, plan.calls.reference, plan.traces.target)),
    ):
        more = own.with_columns(time=pl.int_range(1, pl.len() + 1).over("name")).join(other, on="name")
        beyond = more.filter(pl.col("time") > pl.col("len")).select("call").unique()
        rows = calls.join(beyond, left_on="id", right_on="call", how="semi").sort("id")
        if not rows.is_empty() and not any(_overflowed(behind, step) for step in plan.steps):
            sides = (used.target, given.reference) if in_target else (used.reference, given.target)
            return _told_alone(evidence, *sides, in_target=in_target)
    return None


def _told_alone(evidence: RankEvidence, used: pl.DataFrame, given: pl.DataFrame, *, in_target: bool) -> Finding | None:
    """The first step in which one run uses a parameter's gradient more often than the other is given it, at its last
    call that does."""
    calls, others = evidence.plan.calls if not in_target else tuple(evidence.plan.calls)[::-1]
    own, other = (
        frame.join(known.select("step", call="id"), on="call") for frame, known in ((used, calls), (given, others))
    )
    times = own.group_by("step", "name").agg(pl.len(), pl.col("call").max())
    partners = other.group_by("step", "name").len("others")
    more = times.join(partners, on=["step", "name"], how="left").filter(pl.col("len") > pl.col("others").fill_null(0))
    # The last step of a capture may have ended before its update.
    last = more.filter(pl.col("step") == evidence.plan.steps[-1], pl.col("others").is_null())
    if more.height == last.height:
        return None
    first = more.sort("step", "call").row(0, named=True)
    row = calls.row(by_predicate=pl.col("id") == first["call"], named=True)
    concerned = more.filter(pl.col("step") == first["step"])["name"].sort()
    run = TARGET if in_target else REFERENCE
    history = ParameterHistory(updated_in=run, parameters=tuple(concerned.head(NAMES_LISTED).to_list()))
    alone = OneRun(only_target=(row["name"],)) if in_target else OneRun(only_reference=(row["name"],))
    place = place_of_row(evidence, row, in_target=in_target)
    return Finding(
        FindingKind.OPTIMIZER, place, Evidence(one_run=alone, history=history, amount=Amount(count=more.height))
    )


def _outermost(modules: pl.DataFrame, path: str, shared: frozenset[str]) -> dict[str, Any]:
    """The first call of the outermost module around this one that the other run has not."""
    names = path.split(".")
    paths = [".".join(names[: length + 1]) for length in range(len(names))]
    called = set(modules["module"].to_list())
    found = next(outer for outer in paths if outer not in shared and outer in called)
    return modules.filter(pl.col("module") == found).sort("id").row(0, named=True)


def _owned(trace: RankTrace, steps: Sequence[int]) -> dict[int, set[str]]:
    if not steps:
        return {}
    owned = trace.tensors(steps[0]).filter(pl.col("role") == Role.PARAMETER.value)
    rows = trace.collect(owned.group_by("call").agg("place"))
    return {call: set(places) for call, places in rows.iter_rows()}


BACKWARD, UPDATE = "B", "U"
OUTERMOST = (pl.col("kind") == MODULE_KIND) & pl.col("parent").is_null() & (pl.col("phase") == FORWARD_PHASE)
NOT_FINITE = pl.sum_horizontal(pl.col("nan", "pos_inf", "neg_inf").fill_null(0)) > 0


@dataclass(frozen=True, slots=True)
class Skip:
    """A step that one run leaves out, and from where on it explains what differs."""

    finding: Finding
    step: int
    last: int
    """Id of the target's last call of that step before it."""


@dataclass(frozen=True, slots=True)
class _Events:
    """Backwards and updates of one step of one run, in order."""

    kinds: str
    """`BBU`: two backwards, then an update."""
    rows: tuple[dict[str, Any], ...]
    """The call that starts each of them."""


def skipped_update(evidence: RankEvidence, first: Finding) -> Skip | None:
    """The first update, or backward before one, that only one run makes; another accumulation of gradients is none."""
    runs = evidence.plan.calls.map(_events)
    if not all(any(UPDATE in step.kinds for step in run.values()) for run in runs) or _accumulates(runs) is not None:
        return None
    for step in evidence.plan.steps:
        reference, target = (run.get(step, _Events("", ())) for run in runs)
        if reference.kinds != target.kinds:
            return _skip(evidence, step, reference, target)
    return None


def other_accumulation(evidence: RankEvidence) -> Finding | None:
    """A note: the runs always add gradients up over another number of backwards."""
    runs = evidence.plan.calls.map(_events)
    found = _accumulates(runs)
    if found is None:
        return None
    update = next(row for step in runs.target.values() for row in step.rows if _kind(row) == UPDATE)
    place = place_of_row(evidence, update, in_target=True)
    return Finding(FindingKind.OPTIMIZER, place, Evidence(one_run=OneRun(backwards=found)))


def left_out_step(evidence: RankEvidence, first: Finding) -> Skip | None:
    """A whole step that only one run makes, if the first finding is that it does not get the same inputs."""
    plan, step = evidence.plan, first.place.step
    is_fed_otherwise = first.place.rank == plan.rank and first.kind in (FindingKind.INPUT, FindingKind.RANDOMNESS)
    if not is_fed_otherwise or step == plan.steps[0]:
        return None
    inputs = [_first_inputs(trace) for trace in plan.traces]
    for shifted, (early, late) in ((1, inputs), (-1, inputs[::-1])):
        following = [number for number in sorted(late) if number >= step and number + 1 in early]
        # The same data in every step say nothing about which step it is.
        following = [number for number in following if early.get(number) != early[number + 1]]
        if following and all(late[number] == early[number + 1] != () for number in following):
            return _left_out(evidence, step, shifted)
    return None


def _left_out(evidence: RankEvidence, step: int, shifted: int) -> Skip | None:
    in_target = shifted < 0
    calls = evidence.plan.calls.target if in_target else evidence.plan.calls.reference
    row = calls.filter(pl.col("step") == step, OUTERMOST).sort("id").row(0, named=True)
    before = evidence.plan.calls.target.filter(pl.col("step") < step)
    place = place_of_row(evidence, row, in_target=in_target)
    return Skip(Finding(FindingKind.STRUCTURE, place, Evidence(one_run=OneRun(shifted=shifted))), step, _last(before))


def _first_inputs(trace: RankTrace) -> dict[int, tuple[int, ...]]:
    """By step: digests of what the first outermost module gets; nothing where one is not known."""
    outer = trace.calls().filter(OUTERMOST).group_by("step").agg(call=pl.col("id").min())
    uses = trace.tensors().filter(pl.col("role") == INPUT_ROLE).select("call", "place", "value")
    values = trace.values().select("digest", value="id")
    rows = trace.collect(uses.join(outer, on="call").join(values, on="value").sort("call", "place"))
    by_step = rows.group_by("step", maintain_order=True).agg("digest")
    return {step: () if None in digests else tuple(digests) for step, digests in by_step.iter_rows()}


def _events(calls: pl.DataFrame) -> dict[int, _Events]:
    is_event = pl.col("op").is_in(list(STARTS_BACKWARD)) | (pl.col("kind") == OPTIMIZER_KIND)
    found: dict[int, list[dict[str, Any]]] = {}
    for row in calls.filter(is_event).sort("id").iter_rows(named=True):
        rows = found.setdefault(row["step"], [])
        # An optimizer with several groups has a call a group.
        if not (rows and _kind(row) == _kind(rows[-1]) == UPDATE):
            rows.append(row)
    return {step: _Events("".join(map(_kind, rows)), tuple(rows)) for step, rows in found.items()}


def _kind(row: dict[str, Any]) -> str:
    return UPDATE if row["kind"] == OPTIMIZER_KIND else BACKWARD


def _accumulates(runs: Pair[dict[int, _Events]]) -> tuple[int, int] | None:
    """Backwards before an update, where each run usually makes as many, and not both the same number."""
    usual = [_usual([step.kinds for step in run.values() if UPDATE in step.kinds]) for run in runs]
    if None in usual or usual[0] == usual[1]:
        return None
    reference, target = (str(kinds).count(BACKWARD) for kinds in usual)
    return reference, target


def _usual(kinds: list[str]) -> str | None:
    """What most steps have, at least two of them."""
    word, number = max(Counter(kinds).items(), key=itemgetter(1), default=("", 0))
    return word if number >= 2 and 2 * number > len(kinds) else None


def _skip(evidence: RankEvidence, step: int, reference: _Events, target: _Events) -> Skip | None:
    """Where the two part: the run that makes another backward, or nothing, instead of the update leaves it out."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(reference.kinds, target.kinds, strict=False)))
    traces = evidence.plan.traces
    for made, other, behind in ((reference, target, traces.target), (target, reference, traces.reference)):
        if made.kinds[same : same + 1] != UPDATE or _overflowed(behind, step):
            continue
        goes_on = other.kinds[same : same + 1] == BACKWARD
        if goes_on and not _is_out_of_step(evidence, step, behind):
            kind, row, in_target = FindingKind.STRUCTURE, other.rows[same], other is target
        else:
            kind, row, in_target = FindingKind.OPTIMIZER, made.rows[same], made is target
        backwards = _until_update(reference, same), _until_update(target, same)
        told = Evidence(one_run=OneRun(backwards=backwards))
        finding = Finding(kind, place_of_row(evidence, row, in_target=in_target), told)
        return Skip(finding, step, _last_backward(evidence, step, target, same))
    return None


def _is_out_of_step(evidence: RankEvidence, step: int, behind: RankTrace) -> bool:
    """Whether a run that goes on to another backward is an iteration behind from there; else it made one more."""
    traces = evidence.plan.traces
    if len(behind.steps) < max(len(traces.reference.steps), len(traces.target.steps)):
        return True
    reference, target = _first_inputs(traces.reference), _first_inputs(traces.target)
    later = [number for number in reference if number > step and number in target]
    return any(reference[number] != target[number] for number in later)


def _until_update(events: _Events, same: int) -> int:
    """Backwards up to the next update; all of the step if there is none."""
    end = events.kinds.find(UPDATE, same)
    return events.kinds[: end if end >= 0 else None].count(BACKWARD)


def _overflowed(trace: RankTrace, step: int) -> bool:
    """Whether a run's gradients hold inf or nan in a step: GradScaler, or the program itself, rightly leaves it out."""
    uses = trace.tensors(step).filter(pl.col("role").is_in(GRADIENT_ROLES)).select("value").unique()
    bad = trace.values(step).filter(NOT_FINITE).select(value="id")
    return not trace.collect(uses.join(bad, on="value").head(1)).is_empty()


def _last_backward(evidence: RankEvidence, step: int, target: _Events, same: int) -> int:
    """Id of the target's last backward before the two runs part; what comes after is another iteration."""
    following = target.rows[same]["id"] if same < len(target.rows) else None
    calls = evidence.plan.calls.target.filter(pl.col("step") == step, pl.col("kind").is_in(list(BACKWARD_KINDS)))
    return _last(calls if following is None else calls.filter(pl.col("id") < following))


def _last(calls: pl.DataFrame) -> int:
    """Its id; -1 if there is none."""
    return max(calls["id"].to_list(), default=-1)
