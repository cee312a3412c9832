"""Keeps the error ledger: executes pairs of calls again and books who made which part of their difference."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.ledger.who_made_it import Measure, finite_part, maker_of, verdicts_of
from ulpscope.diagnose.limits import REPLAY_BATCH
from ulpscope.records.checks import OutputResult
from ulpscope.records.ledger import LedgerEntry, Maker, PairEvidence
from ulpscope.records.pairs import Pair
from ulpscope.replay.recorded import CannotReplayError, RecordedCall, read_calls

if TYPE_CHECKING:
    from ulpscope.replay.torch.ledger import ReplayedPair

Advance = Callable[[int], None]
Left = Counter[str]


def keep_ledger(evidence: RankEvidence, pairs: Sequence[int], left: Left, advance: Advance) -> list[LedgerEntry]:
    """Entries for all outputs and gradients of these pairs of forward calls; what cannot be replayed is counted."""
    found: list[LedgerEntry] = []
    for pair, recorded in recorded_pairs(evidence, pairs):
        replayed = try_replay(evidence, recorded, left)
        if replayed is not None:
            found += _entries(evidence, pair, recorded, replayed, left)
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


def try_replay(evidence: RankEvidence, recorded: Pair[RecordedCall], left: Left) -> "ReplayedPair | None":
    """Execute a pair again; a reason is counted where that cannot be."""
    from ulpscope.replay.torch.ledger import replay_pair

    try:
        return replay_pair(recorded, evidence.plan.traces)
    except CannotReplayError as reason:
        left[str(reason)] += 1
    except Exception as error:  # a recorded call may be anything; what cannot run here is named, and the rest goes on
        left[_reason(error)] += 1
    return None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"


def _entries(
    evidence: RankEvidence, pair: int, recorded: Pair[RecordedCall], replayed: "ReplayedPair", left: Left
) -> Iterable[LedgerEntry]:
    try:
        judged = _judged(replayed)
        return [_entry(evidence, pair, recorded, each, verdicts, replayed) for each, verdicts in judged]
    except CannotReplayError as reason:
        left[str(reason)] += 1
    except Exception as error:
        left[_reason(error)] += 1
    return ()


def _judged(replayed: "ReplayedPair") -> list[tuple[PairEvidence, Pair[OutputResult]]]:
    """Each output with the verdicts on both runs' own errors."""
    sides = replayed.sides
    verdicts = sides.map(verdicts_of)
    return [
        (each, Pair(verdicts.reference[each.place], verdicts.target[each.place]))
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
    entry = LedgerEntry(
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
        statistic=verdicts.target.statistic,
        message=verdicts.target.message,
        verdict_reference=verdicts.reference.verdict,
        maker=Maker.NEITHER,
        worst=verdicts.target.worst,
        worst_values=_worst_values(verdicts.target),
        **parts,
    )
    maker = maker_of(entry, verdicts, replayed)
    if maker is not Maker.REFERENCE:
        return replace(entry, maker=maker)
    blamed = verdicts.reference
    return replace(
        entry,
        maker=maker,
        statistic=blamed.statistic,
        message=blamed.message,
        worst=blamed.worst,
        worst_values=_worst_values(blamed),
    )


def _worst_values(result: OutputResult) -> tuple[float, float] | None:
    if result.worst_computed is None or result.worst_exact is None:
        return None
    return result.worst_computed, result.worst_exact


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
