"""Books what each call's own error adds to the difference at the end of a step's forward."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.ledger.booking import Advance, recorded_pairs, try_replay
from ulpscope.records.checks import Direction
from ulpscope.records.enums import LOSS_ROLE, Kind, Phase
from ulpscope.records.ledger import FinalDifference, LedgerEntry
from ulpscope.records.pairs import Pair
from ulpscope.replay.operations import STARTS_BACKWARD
from ulpscope.replay.recorded import CannotReplayError

if TYPE_CHECKING:
    from ulpscope.replay.torch.contributions import Sweep
    from ulpscope.replay.torch.ledger import ReplayedPair

Contributions = dict[tuple[int, str], float]


def final_differences(evidence: RankEvidence, advance: Advance) -> tuple[list[FinalDifference], Contributions]:
    """For each step the difference at its end, and what every call and output adds to it."""
    finals: list[FinalDifference] = []
    everything: Contributions = {}
    for step in evidence.plan.steps:
        found = _step(evidence, step, advance)
        if found is not None:
            finals.append(found[0])
            everything |= found[1]
    return finals, everything


def with_contributions(entries: list[LedgerEntry], found: Contributions) -> list[LedgerEntry]:
    return [
        replace(entry, contribution=found.get((entry.call_id, entry.place)))
        if entry.direction is Direction.FORWARD
        else entry
        for entry in entries
    ]


def _step(evidence: RankEvidence, step: int, advance: Advance) -> tuple[FinalDifference, Contributions] | None:
    from ulpscope.replay.torch.contributions import Sweep, make_ending

    end = _end(evidence, step)
    if end is None:
        return None
    pair, row = end
    traces, values = evidence.plan.traces, evidence.sides
    ids = Pair(int(values.reference.id[row]), int(values.target.id[row]))
    try:
        ending = make_ending(Pair(traces.reference.value(ids.reference), traces.target.value(ids.target)), traces)
    except CannotReplayError:
        ending = None
    if ending is None:
        return None
    sweep = Sweep(ending)
    found: Contributions = {}
    ignored: Counter[str] = Counter()
    phases = _forward_phases(evidence, step)
    calls = [each for each in range(pair + 1) if _takes_part(evidence, each, step, phases)]
    seen: set[int] = set()
    for _, recorded in recorded_pairs(evidence, calls[::-1]):
        if sweep.wants(recorded.target.outputs):
            replayed = try_replay(evidence, recorded, ignored)
            shares = None if replayed is None else _through(sweep, replayed)
            if shares is not None:
                seen.add(recorded.target.call.id)
                found |= {(recorded.target.call.id, place): share for place, share in shares.items()}
        advance(1)
    start, unseen = sweep.rest(traces, _calls_of(evidence, step, phases) - seen)
    final = FinalDifference(
        rank=evidence.plan.rank,
        step=step,
        call=evidence.calls["name"][pair],
        difference=ending.difference,
        calls=sum(found.values()),
        start=start,
        unseen=unseen,
    )
    return final, found


def _through(sweep: "Sweep", replayed: "ReplayedPair") -> dict[str, float] | None:
    """None for a call that torch cannot differentiate: what came through it counts as unseen."""
    try:
        return sweep.through(replayed)
    except Exception:  # a recorded call may be anything
        return None


def _calls_of(evidence: RankEvidence, step: int, phases: frozenset[str]) -> set[int]:
    """All forward calls of the target's step, also those without a partner."""
    calls = evidence.plan.calls.target
    forward = (pl.col("step") == step) & pl.col("phase").is_in(list(phases)) & (pl.col("kind") == Kind.API.value)
    return set(calls.filter(forward)["id"].to_list())


def _end(evidence: RankEvidence, step: int) -> tuple[int, int] | None:
    """The pair of calls at which the forward ends, and the pair of values: the loss, or the last output."""
    calls = evidence.calls
    for slot in evidence.slots:
        if slot.role == LOSS_ROLE and calls["step"][slot.pair] == step and calls["op"][slot.pair] in STARTS_BACKWARD:
            maker = evidence.makers[slot.values]
            return (maker, slot.values) if maker >= 0 else None
    phases = _forward_phases(evidence, step)
    last = [slot for slot in evidence.slots if slot.makes and _takes_part(evidence, slot.pair, step, phases)]
    return (last[-1].pair, last[-1].values) if last else None


def _forward_phases(evidence: RankEvidence, step: int) -> frozenset[str]:
    """Where the calls that lead to the end are; a run without modules has no forward."""
    seen = {phase for phase, at in zip(evidence.calls["phase"], evidence.calls["step"], strict=True) if at == step}
    forward = Phase.FORWARD.value
    return frozenset((forward,)) if forward in seen else frozenset((Phase.OTHER.value, Phase.SETUP.value))


def _takes_part(evidence: RankEvidence, pair: int, step: int, phases: frozenset[str]) -> bool:
    calls = evidence.calls
    return bool(
        calls["kind"][pair] == Kind.API.value
        and calls["step"][pair] == step
        and calls["phase"][pair] in phases
        and not calls["recompute"][pair]
        and calls["op"][pair] not in STARTS_BACKWARD
    )
