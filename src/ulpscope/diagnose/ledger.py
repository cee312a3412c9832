"""Keeps the error ledger: executes pairs of calls again and books who made which part of their difference, and what
each call's own error adds to the difference at the end of a step's forward.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.limits import REPLAY_BATCH
from ulpscope.diagnose.who_made_it import Measure, finite_part, maker_of, verdicts_of
from ulpscope.operations.names import STARTS_BACKWARD
from ulpscope.records.checks import Direction, OutputResult
from ulpscope.records.enums import LOSS_ROLE, Kind, Phase
from ulpscope.records.ledger import FinalDifference, LedgerEntry, Maker, PairEvidence
from ulpscope.records.pairs import Pair
from ulpscope.replay.recorded import CannotReplayError, RecordedCall, read_calls

if TYPE_CHECKING:
    from ulpscope.replay.torch.ledger import ReplayedPair


Advance = Callable[[int], None]
Left = Counter[str]


def keep_ledger(evidence: RankEvidence, pairs: Sequence[int], left: Left, advance: Advance) -> list[LedgerEntry]:
    """Entries for all outputs and gradients of these pairs of forward calls; what cannot be replayed is counted."""
    from ulpscope.replay.torch.ledger import replay_pair

    found: list[LedgerEntry] = []
    for pair, recorded in recorded_pairs(evidence, pairs):
        with _counted(left):
            found += _entries(evidence, pair, recorded, replay_pair(recorded, evidence.plan.traces))
        advance(1)
    return found


def recorded_pairs(evidence: RankEvidence, pairs: Sequence[int]) -> Iterator[tuple[int, Pair[RecordedCall]]]:
    """Pairs of recorded calls, in this order."""
    ids, traces = evidence.calls, evidence.plan.traces
    for start in range(0, len(pairs), REPLAY_BATCH):
        batch = pairs[start : start + REPLAY_BATCH]
        reference = read_calls(traces.reference, [ids["reference_id"][pair] for pair in batch])
        target = read_calls(traces.target, [ids["id"][pair] for pair in batch])
        for pair in batch:
            yield pair, Pair(reference[ids["reference_id"][pair]], target[ids["id"][pair]])


@contextmanager
def _counted(left: Left) -> Iterator[None]:
    """Counts the reason where a pair cannot be executed again."""
    try:
        yield
    except CannotReplayError as reason:
        left[str(reason)] += 1
    except Exception as error:  # a recorded call may be anything; what cannot run here is named, and the rest goes on
        left[f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"] += 1


def _entries(
    evidence: RankEvidence, pair: int, recorded: Pair[RecordedCall], replayed: "ReplayedPair"
) -> list[LedgerEntry]:
    """Of each output, with the verdicts on both runs' own errors."""
    verdicts = replayed.sides.map(verdicts_of)
    return [
        _entry(evidence, pair, recorded, each, verdicts.map(itemgetter(each.place)), replayed)
        for each in replayed.evidence()
        if each.place in verdicts.reference and each.place in verdicts.target
    ]


def _entry(
    evidence: RankEvidence,
    pair: int,
    recorded: Pair[RecordedCall],
    each: PairEvidence,
    verdicts: Pair[OutputResult],
    replayed: "ReplayedPair",
) -> LedgerEntry:
    parts = _parts(each)
    maker = maker_of(Pair(parts["made_by_reference"], parts["made_by_target"]), verdicts, replayed)
    blamed = verdicts.reference if maker is Maker.REFERENCE else verdicts.target
    computed, exact = blamed.worst_computed, blamed.worst_exact
    return LedgerEntry(
        rank=evidence.plan.rank,
        step=evidence.calls["step"][pair],
        call=recorded.target.call.name,
        call_id=recorded.target.call.id,
        call_reference=recorded.reference.call.name,
        op=recorded.target.call.op,
        module=recorded.target.call.module,
        place=each.place,
        direction=each.direction,
        dtypes=(each.reference.dtype, each.target.dtype),
        verdict_target=verdicts.target.verdict,
        statistic=blamed.statistic,
        message=blamed.message,
        verdict_reference=verdicts.reference.verdict,
        maker=maker,
        worst=blamed.worst,
        worst_values=None if computed is None or exact is None else (computed, exact),
        **parts,
    )


def _parts(each: PairEvidence) -> dict[str, Any]:
    """The difference as a sum, exactly."""
    reference, target = each.reference.computed, each.target.computed
    through = each.exact_target if each.crossed is None else each.crossed
    measure = Measure(each.target, norm=float(np.linalg.norm(finite_part(reference))))
    return {
        "observed": measure.part(target, reference),
        "made_by_target": measure.part(target, each.exact_target),
        "by_arguments": None if each.crossed is None else measure.part(each.exact_target, each.crossed),
        "inherited": measure.part(through, each.exact_reference),
        "made_by_reference": measure.part(each.exact_reference, reference),
    }


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
    from ulpscope.replay.torch.ledger import Sweep, make_ending, replay_pair

    end = _end(evidence, step)
    if end is None:
        return None
    pair, row = end
    traces = evidence.plan.traces
    try:
        values = zip(traces, evidence.sides, strict=True)
        ending = make_ending(Pair(*(trace.value(int(side.id[row])) for trace, side in values)), traces)
    except CannotReplayError:
        ending = None
    if ending is None:
        return None
    sweep = Sweep(ending)
    found: Contributions = {}
    phases = _forward_phases(evidence, step)
    calls = [each for each in range(pair + 1) if _takes_part(evidence, each, step, phases)]
    seen: set[int] = set()
    for _, recorded in recorded_pairs(evidence, calls[::-1]):
        if sweep.wants(recorded.target.outputs):
            # What came through a call that cannot be executed, or differentiated, counts as unseen.
            with suppress(Exception):
                shares = sweep.through(replay_pair(recorded, traces))
                seen.add(recorded.target.call.id)
                found |= {(recorded.target.call.id, place): share for place, share in shares.items()}
        advance(1)
    # All forward calls of the target's step, also those without a partner.
    is_forward = (pl.col("step") == step, pl.col("phase").is_in(list(phases)), pl.col("kind") == Kind.API.value)
    start, unseen = sweep.rest(traces, set(evidence.plan.calls.target.filter(*is_forward)["id"]) - seen)
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


def _end(evidence: RankEvidence, step: int) -> tuple[int, int] | None:
    """The pair of calls at which the forward ends, and the pair of values: the loss, or the last output."""
    calls = evidence.calls
    for slot in evidence.by_role.get(LOSS_ROLE, []):
        if calls["step"][slot.pair] == step and calls["op"][slot.pair] in STARTS_BACKWARD:
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
    return calls["step"][pair] == step and calls["phase"][pair] in phases and is_replayable(evidence, pair)


def is_replayable(evidence: RankEvidence, pair: int) -> bool:
    """Whether these are calls of an operation, made once, and not only the start of a backward."""
    calls = evidence.calls
    is_own = calls["kind"][pair] == Kind.API.value and not calls["recompute"][pair]
    return is_own and calls["op"][pair] not in STARTS_BACKWARD
