"""Judges all ranks of a plan, puts what was found together, and what a reader wants to see around the answer."""

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import polars as pl

from ulpscope.align.plan import Plan
from ulpscope.diagnose.advice import advise
from ulpscope.diagnose.detectors.asking import Case
from ulpscope.diagnose.detectors.order import OF_WHAT_IS_NOT_WRONG
from ulpscope.diagnose.findings import JudgedRank, find, finish, name_births, with_left
from ulpscope.diagnose.flow.blaming import blame_loss, blame_stray, unsound_loss
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.exits import left_of, same_backwards
from ulpscope.diagnose.flow.explaining import errors_across_ranks
from ulpscope.diagnose.flow.idle import idle
from ulpscope.diagnose.flow.judging import Follower
from ulpscope.diagnose.flow.spans import healed
from ulpscope.diagnose.flow.states import JUDGEMENTS, Birth, Flow, PeerGains, State, finite
from ulpscope.diagnose.limits import BEFORE_SHOWN
from ulpscope.diagnose.table import pair_table
from ulpscope.operations.registry import Trait
from ulpscope.records.enums import FORWARD_PHASE, INPUT_ROLE, OUTPUT_ROLE, PARAMETER_ROLE
from ulpscope.records.evidence import Ledger
from ulpscope.records.findings import (
    AnchorPart,
    Comparison,
    Counts,
    Nearness,
    Neighbour,
    Outcome,
    Place,
    Scope,
)
from ulpscope.records.pairs import Judgement, Measured, Pair


@dataclass(frozen=True, slots=True)
class Captured:
    """How two runs were captured, beside each other."""

    levels: tuple[str, str]
    filters: tuple[str, str] | None = None
    """Where they differ."""
    same_run: bool = False


def judge_ranks(ranks: Sequence[RankEvidence], twins: Sequence[Sequence[RankEvidence]] = ()) -> list[JudgedRank]:
    """Judge each rank once, by what was recorded."""
    return Judging(ranks, twins).judge()


class Judging:
    """Judges each rank, with what the others sent it, and its reference's twins where there are any."""

    def __init__(self, ranks: Sequence[RankEvidence], twins: Sequence[Sequence[RankEvidence]] = ()) -> None:
        self._followers = [
            Follower(evidence, foreign_errors=errors, twins=twins[number] if twins else ())
            for number, (evidence, errors) in enumerate(zip(ranks, errors_across_ranks(ranks), strict=True))
        ]

    def judge(self, acquitted: Sequence[AbstractSet[int]] = ()) -> list[JudgedRank]:
        """What was found in each rank. `acquitted`: of each, slots whose calls, executed again, made no error."""
        for follower, rows in zip(self._followers, acquitted, strict=False):
            follower.acquitted = rows
        followed = [(follower, _with_peers(follower)) for follower in self._followers]
        _look_further(self._followers)
        left = [_left_of(each) for each in self._followers if each.flow.births]
        gone = max((each for each in left if each is not None), default=None) if None not in left else None
        return [_judged(follower, peers, gone) for follower, peers in followed]


def _left_of(follower: Follower) -> float | None:
    """By how much what leaves the steps differs, if nothing of what was found is to be seen in it, nor in a loss."""
    left = left_of(follower.evidence, follower.flow, follower.gaps)
    in_same_parts = left is not None and same_backwards(follower.evidence)
    return None if in_same_parts and unsound_loss(follower) is not None else left


def _with_peers(follower: Follower) -> PeerGains:
    """Follow the errors of a rank; again, if its calls' peers would have some judged otherwise."""
    peers = PeerGains(follower.evidence, follower.follow())
    if peers.would_change(follower.flow):
        follower.follow(peers.allowed)
    return peers


def _look_further(followers: Sequence[Follower]) -> None:
    """Whom to blame where no call stands out, and what is written otherwise only."""
    if not any(follower.flow.births for follower in followers):
        for follower in followers:
            blame_stray(follower)
    for follower in followers:
        again = healed(follower.evidence, follower.flow, follower.sources, follower.gaps)
        if again:
            follower.flow.put_inside(again)
        unlearned = idle(follower.evidence, follower.flow, follower.sources)
        if unlearned:
            follower.flow.put_inside(unlearned)
    if not any(follower.flow.births or follower.flow.gone for follower in followers):
        for follower in followers:
            blame_loss(follower)


def _judged(follower: Follower, peers: PeerGains, gone: float | None) -> JudgedRank:
    """`gone`: by how much what leaves the steps differs, if nothing of what was found is to be seen in it."""
    evidence, flow = follower.evidence, follower.flow
    told, gone_inside = (Case(evidence, follower.gaps, births) for births in (flow.births, flow.gone))
    named = name_births(told)
    found, healed_first = find(told, flow, peers, named), find(gone_inside, flow, peers, name_births(gone_inside))[:1]
    notes = [with_left(entry.finding, None) for entry in healed_first]
    if gone is not None:
        notes = [with_left(entry.finding, gone) for entry in found[:1]] + notes
        found = []
        flow.put_inside(flow.births)
    notes += [note for look in OF_WHAT_IS_NOT_WRONG for note in look(evidence, flow)]
    return JudgedRank(evidence, flow, found, notes, pair_table(evidence, flow), named)


def summarise(
    plan: Plan,
    judged: Sequence[JudgedRank],
    *,
    names: Pair[str],
    captured: Captured,
    missing: Sequence[str],
    ledger: Ledger | None = None,
) -> tuple[Comparison, pl.DataFrame]:
    """The comparison as one value, and its table."""
    table = pl.concat([rank.table for rank in judged])
    counts = _counts(judged, table)
    finished = finish(judged, counts)
    # A run computed on something else than the CPU, or none says on what.
    devices = [name for rank in plan.ranks for trace in rank.traces for name in trace.info.devices]
    on_device = not devices or any(not name.startswith("cpu") for name in devices)
    sound = Outcome.AGREE if counts.tensors_compared else Outcome.NOTHING_COMPARED
    neighbours: list[Neighbour] = []
    if finished.answer is not None:
        entry, rank = finished.answer
        neighbours = neighbours_of(rank.evidence, rank.flow, entry.birth, entry.finding.place)
    comparison = Comparison(
        reference=names.reference,
        target=names.target,
        outcome=Outcome.DIVERGED if finished.findings else sound,
        findings=tuple(finished.findings),
        notes=tuple(finished.notes),
        counts=counts,
        scope=_scope(plan, table, captured),
        anchor=_anchor(judged),
        neighbours=tuple(neighbours),
        advice=tuple(advise(finished.findings, table, on_device=on_device)) if counts.tensors_compared else (),
        missing=tuple(missing),
        ledger=ledger,
    )
    return comparison, table


def _counts(judged: Sequence[JudgedRank], table: pl.DataFrame) -> Counts:
    by_judgement = dict(table["judgement"].drop_nulls().value_counts().iter_rows())
    plans = [rank.evidence.plan for rank in judged]
    matched = sum(plan.pairs.height for plan in plans)
    reference = sum(plan.calls.reference.height for plan in plans)
    target = sum(plan.calls.target.height for plan in plans)
    return Counts(
        calls_reference=reference,
        calls_target=target,
        matched=matched,
        unmatched_reference=reference - matched,
        unmatched_target=target - matched,
        tensors_compared=sum(by_judgement.values()),
        **{word.value: by_judgement.get(word.value, 0) for word in Judgement},
    )


def _scope(plan: Plan, table: pl.DataFrame, captured: Captured) -> Scope:
    compared = table.filter(pl.col("judgement").is_not_null())
    measured = Counter(dict(compared["measured"].drop_nulls().value_counts().iter_rows()))
    unresolved = pl.col("judgement") == Judgement.UNRESOLVED.value
    return Scope(
        ranks=tuple(rank.rank for rank in plan.ranks),
        steps=plan.steps,
        ranks_reference_only=plan.ranks_only.reference,
        ranks_target_only=plan.ranks_only.target,
        steps_reference_only=plan.steps_only.reference,
        steps_target_only=plan.steps_only.target,
        levels=captured.levels,
        filters=captured.filters,
        same_run=captured.same_run,
        measured=tuple((word, measured[word.value]) for word in Measured if measured[word.value]),
        not_compared=_reasons(table.filter(pl.col("judgement").is_null())),
        unresolved=_reasons(table.filter(unresolved)),
    )


def _reasons(table: pl.DataFrame) -> tuple[tuple[str, int], ...]:
    return tuple(table["reason"].drop_nulls().value_counts(sort=True).iter_rows())


def _anchor(judged: Sequence[JudgedRank]) -> tuple[AnchorPart, ...]:
    """What both runs started from in the first compared step, of all ranks together."""
    errors: dict[str, list[float]] = {}
    for rank in judged:
        values = rank.evidence.values
        for what, chosen in _starts(rank.evidence).items():
            rows = [row for row in chosen if values.compared[row]]
            errors.setdefault(what, []).extend(np.where(values.identical[rows], 0.0, values.error[rows]).tolist())
    return tuple(
        AnchorPart(what, len(told), told.count(0.0), max(filter(None, map(finite, told)), default=None))
        for what, told in errors.items()
        if told
    )


def _starts(evidence: RankEvidence) -> dict[str, list[int]]:
    """Rows of what both runs started from."""
    calls, first = evidence.calls, evidence.plan.steps[0] if evidence.plan.steps else 0
    slots = [slot for slot in evidence.slots if calls["step"][slot.pair] == first]
    owned = [s for s in slots if s.role == PARAMETER_ROLE and calls["phase"][s.pair] == FORWARD_PHASE]
    made = [s for s in slots if s.role == OUTPUT_ROLE]
    embedded = [s.values for s in made if evidence.operations[s.pair].name in ("embedding", "embedding_bag")]
    parameters = list(dict.fromkeys(slot.values for slot in owned))
    return {"inputs": _first_inputs(evidence, slots), "parameters": parameters, "embedding": embedded[:1]}


def _first_inputs(evidence: RankEvidence, slots: list[Slot]) -> list[int]:
    """What goes into the outermost modules."""
    calls = evidence.calls
    outer = {slot.pair for slot in slots if evidence.is_outermost_module(slot.pair)}
    if not outer:
        return [s.values for s in slots if s.role == INPUT_ROLE and evidence.makers[s.values] < 0]
    first = min(outer, key=lambda pair: calls["id"][pair])
    return [slot.values for slot in evidence.in_role(first, INPUT_ROLE)]


def neighbours_of(evidence: RankEvidence, flow: Flow, birth: Birth, place: Place) -> list[Neighbour]:
    """The calls that led to the answer, the worst operand's way back, and the answer itself."""
    before: list[Neighbour] = []
    seen = {birth.slot.pair}
    sources = list(birth.gap.sources) if birth.gap is not None else evidence.given(birth.slot.pair)
    while len(before) < BEFORE_SHOWN:
        made = [row for row in sources if evidence.makers[row] >= 0 and evidence.makers[row] not in seen]
        if not made:
            break
        maker = evidence.makers[max(made, key=lambda row: evidence.operands[row].error)]
        seen.add(maker)
        sources = evidence.given(maker)
        if not evidence.operations[maker].has(Trait.VIEW):
            before.append(_neighbour(evidence, flow, maker))
    return [*reversed(before), _here(birth, place)]


def _neighbour(evidence: RankEvidence, flow: Flow, pair: int) -> Neighbour:
    made = [slot for slot in evidence.made(pair) if evidence.values.compared[slot.values]]
    worst = max(made, key=evidence.error, default=None)
    state = State.UNKNOWN if worst is None else flow.states[worst.values]
    return Neighbour(
        nearness=Nearness.BEFORE,
        call=str(evidence.calls["name"][pair]),
        op=str(evidence.calls["op"][pair]),
        module=evidence.calls["module"][pair],
        error_in=finite(evidence.worst_error(evidence.given(pair))),
        error_out=None if worst is None else finite(evidence.error(worst)),
        judgement=JUDGEMENTS[state].value if state is not State.UNKNOWN else "",
    )


def _here(birth: Birth, place: Place) -> Neighbour:
    return Neighbour(
        nearness=Nearness.HERE,
        call=place.call or "",
        op=place.op or "",
        module=place.module,
        error_in=finite(birth.error_in),
        error_out=finite(birth.error_out),
        judgement=JUDGEMENTS[State.MADE].value,
    )
