"""Keeps the error ledger: executes pairs of calls again and books who made which part of their difference, and what
each call's own error adds to the difference at the end of a step's forward.

A verdict on one result knows what rounding can do at all. This machine's kernel, given the same inputs, shows what a
sound one does here: a run that is much worse is to blame although some rounding might explain it, and one that errs
just so is not, although none does.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.limits import (
    ALIKE,
    AS_GOOD,
    FEW_STRANGE,
    LARGEST_ROUNDING,
    LOST_BY_UNDERFLOW,
    MANY_ELEMENTS,
    MUCH_WORSE,
    REPLAY_BATCH,
    WORSE,
)
from ulpscope.judge.soundness.exact import output_result
from ulpscope.judge.soundness.grid import Grid
from ulpscope.judge.soundness.verdicts import judge_output
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.operations.registry import ASKS_FOR_GRADIENTS
from ulpscope.records.checks import Direction, OutputEvidence, OutputResult, Verdict
from ulpscope.records.enums import LOSS_ROLE, Kind, Phase
from ulpscope.records.evidence import FinalDifference, LedgerEntry, Maker, PairEvidence, Part
from ulpscope.records.pairs import Pair
from ulpscope.replay.frameworks import Framework, framework_of
from ulpscope.replay.recorded import CannotReplayError, RecordedCall, read_calls
from ulpscope.trace.reader import RankTrace

if TYPE_CHECKING:
    from ulpscope.replay.tensorflow.ledger import ReplayedCall as ReplayedOp
    from ulpscope.replay.tensorflow.ledger import ReplayedPair as ReplayedOps
    from ulpscope.replay.torch.ledger import ReplayedCall as ReplayedTorchCall
    from ulpscope.replay.torch.ledger import ReplayedPair as ReplayedTorchPair

    ReplayedCall = ReplayedTorchCall | ReplayedOp
    ReplayedPair = ReplayedTorchPair | ReplayedOps


Advance = Callable[[int], None]
Left = Counter[str]


def keep_ledger(evidence: RankEvidence, pairs: Sequence[int], left: Left, advance: Advance) -> list[LedgerEntry]:
    """Entries for all outputs and gradients of these pairs of forward calls; what cannot be replayed is counted."""
    found: list[LedgerEntry] = []
    for pair, recorded in recorded_pairs(evidence, pairs):
        with _counted(left):
            found += _entries(evidence, pair, recorded, _replay_pair(recorded, evidence.plan.traces))
        advance(1)
    return found


def _replay_pair(recorded: Pair[RecordedCall], traces: Pair[RankTrace]) -> "ReplayedPair":
    """Execute both calls of a pair by the framework that made them."""
    if framework_of(traces.target) is Framework.TENSORFLOW:
        from ulpscope.replay.tensorflow.ledger import replay_pair as replay_ops

        return replay_ops(recorded, traces)
    from ulpscope.replay.torch.ledger import replay_pair

    return replay_pair(recorded, traces)


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
    sides, held = replayed.sides, evidence.precision.coarse_types
    explained = Pair(_with_casts(sides.reference, held.reference), _with_casts(sides.target, held.target))
    replayed, verdicts = replayed.with_sides(explained.map(itemgetter(0))), explained.map(itemgetter(1))
    return [
        _entry(evidence, pair, recorded, each, verdicts.map(itemgetter(each.place)), replayed)
        for each in replayed.evidence()
        if each.place in verdicts.reference and each.place in verdicts.target
    ]


def _with_casts(call: "ReplayedCall", held: Collection[str]) -> "tuple[ReplayedCall, dict[str, OutputResult]]":
    """The call with the verdicts on it; as a cast would have made it, where only that explains what it gave.

    `held`: types that this run has elsewhere, without which nothing was cast.
    """
    own = call, verdicts_of(call)
    if _is_explained(own[1]):
        return own
    tried = ((other, verdicts_of(other)) for other in call.casts(held))
    return next((each for each in tried if _is_explained(each[1])), own)


def _is_explained(verdicts: dict[str, OutputResult]) -> bool:
    return not any(each.verdict in SUSPICIOUS for each in verdicts.values())


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
    if framework_of(evidence.plan.traces.target) is not Framework.TORCH:
        return None  # only calls of torch are differentiated half way between the runs
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
        if calls["step"][slot.pair] == step and calls["op"][slot.pair] in ASKS_FOR_GRADIENTS:
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
    return is_own and calls["op"][pair] not in ASKS_FOR_GRADIENTS


SOUND = "sound"
SUSPICIOUS = frozenset((Verdict.WARN, Verdict.FAIL))
# Statistics of errors that all go one way, as no sum of roundings does.
ONE_SIDED = frozenset(("bias", "structure"))


def verdicts_of(call: "ReplayedCall") -> dict[str, OutputResult]:
    """Of each of a call's results; the dear judgement only where this machine's own kernel does better."""
    found = {place: _as_good_as_native(call, each) for place, each in call.evidence().items()}
    if any(result is None for result in found.values()):
        call.executed.refine()
    return {place: result for place, each in call.evidence().items() if (result := found[place] or judge_output(each))}


def _as_good_as_native(call: "ReplayedCall", each: OutputEvidence) -> OutputResult | None:
    cheap = judge_output(each)
    if cheap is not None and cheap.verdict is Verdict.PASS:
        return cheap
    native = call.native().get(each.place)
    if native is None or each.violation is not None:
        return None
    if not np.array_equal(each.computed, native.computed, equal_nan=True) and not _is_as_good(each, native):
        return None
    return output_result(each, Verdict.PASS, "native", "as near to the truth as this machine's own kernel")


def _is_as_good(each: OutputEvidence, native: OutputEvidence) -> bool:
    if not np.array_equal(np.isfinite(as_floats(each.computed)), np.isfinite(as_floats(native.computed))):
        return False
    made, usual = _made(each), _made(native)
    if made.norm > AS_GOOD * usual.norm or made.worst > ALIKE * usual.worst:
        return False
    return not strange_elements(each, native).any()


def strange_elements(each: OutputEvidence, native: OutputEvidence) -> NDArray[np.bool_]:
    """Elements with an error far beyond any that this machine's own kernel makes, each beside what it may have."""
    if not _is_rounded(each):
        return np.zeros(each.exact.shape, dtype=np.bool_)
    may = _expected(each)
    usual = float((_errors(native) / may).max(initial=0.0))
    found: NDArray[np.bool_] = _errors(each) / may > MUCH_WORSE * max(usual, LARGEST_ROUNDING)
    return found


def _errors(each: OutputEvidence) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return np.abs(finite_part(each.computed - each.exact))


def _is_rounded(each: OutputEvidence) -> bool:
    known = DTYPES.get(each.dtype)
    return known is not None and known.unit_roundoff > 0 and each.exact.dtype == np.float64


def _expected(each: OutputEvidence) -> NDArray[np.float64]:
    """RMS error of each element of a sound kernel: it rounds its result, and adds up in its accumulator's precision."""
    grid = Grid.of(each.dtype)
    exact = np.abs(finite_part(np.atleast_1d(each.exact)))
    rounding: NDArray[np.float64] = grid.spacing(grid.exponents(exact)) / 12.0**0.5
    if each.sensitivity is None:
        return rounding
    inside = each.accumulation * np.sqrt(1.0 + each.reduction / 2.0) * finite_part(np.atleast_1d(each.sensitivity))
    found: NDArray[np.float64] = np.hypot(rounding, inside)
    return found


def _made(each: OutputEvidence) -> Part:
    return Measure(each).part(each.computed, each.exact)


def maker_of(made: Pair[Part], verdicts: Pair[OutputResult], replayed: "ReplayedPair") -> Maker:
    """Whose call gave what no rounding of its own inputs explains, by what each made itself."""
    # Unless it is as good as this machine's own kernel, or within half a unit of the truth everywhere.
    wrong = verdicts.map(lambda result: result.verdict in SUSPICIOUS or result.statistic == SOUND)
    smaller, larger = sorted(part.norm for part in made)
    if wrong.reference and wrong.target and larger <= ALIKE * smaller:
        return Maker.BOTH
    if wrong.target and (not wrong.reference or made.target.norm > made.reference.norm):
        return _blamed(Maker.TARGET, replayed.sides.target, verdicts.target, made.target)
    if wrong.reference:
        return _blamed(Maker.REFERENCE, replayed.sides.reference, verdicts.reference, made.reference)
    return Maker.NEITHER


def _blamed(run: Maker, call: "ReplayedCall", result: OutputResult, made: Part) -> Maker:
    """The run, unless this machine's own kernel errs as much with the same inputs: then no run is to blame."""
    failed = result.verdict is Verdict.FAIL
    if _underflows(call.evidence()[result.place]) and made.norm < LOST_BY_UNDERFLOW:
        return Maker.KERNEL if failed else Maker.NEITHER
    each = call.native().get(result.place)
    native = None if each is None else judge_output(each)
    if each is None or native is None:
        return run if failed else Maker.NEITHER
    usual = _made(each)
    if failed:
        return Maker.KERNEL if native.verdict in SUSPICIOUS and made.norm <= ALIKE * usual.norm else run
    if each.exact.size < MANY_ELEMENTS:
        return Maker.NEITHER
    # How much worse than this machine's kernel a run may be; another device may compose a call of other kernels.
    limit = ALIKE if result.statistic in ONE_SIDED else (WORSE if call.on_cpu else np.inf)
    if result.verdict is Verdict.WARN and made.norm > limit * usual.norm:
        return run
    return run if _has_few_strange(call.evidence()[result.place], each) else Maker.NEITHER


def _underflows(each: OutputEvidence) -> bool:
    """Whether most of it lies below the normal numbers of its type: what its kernels hand on may be lost there."""
    known = DTYPES.get(each.dtype)
    exact = finite_part(each.exact)
    return known is not None and bool(np.linalg.norm(exact) < known.smallest_normal * max(exact.size, 1) ** 0.5)


def _has_few_strange(each: OutputEvidence, native: OutputEvidence) -> bool:
    """Whether all is as this machine's kernel gives it, but for a few elements: a rounding that is stored hits many."""
    strange = np.reshape(strange_elements(each, native), each.exact.shape)
    few = 0 < int(strange.sum()) <= max(1.0, FEW_STRANGE * strange.size)
    if not few:
        return False
    rest = replace(each, computed=np.where(strange, each.exact, each.computed))
    return _made(rest).norm <= AS_GOOD * _made(native).norm


class Measure:
    """Sizes of parts beside one output."""

    def __init__(self, beside: OutputEvidence, *, norm: float | None = None) -> None:
        exact = np.atleast_1d(np.abs(finite_part(beside.exact)))
        own = float(np.linalg.norm(exact))
        self._norm = own if norm is None else norm
        self._spacing: NDArray[np.float64] | float = 1.0
        if _is_rounded(beside):
            grid = Grid.of(beside.dtype)
            # Of elements near zero the last place says little: at least that of a typical element counts.
            size = np.maximum(exact, own / max(exact.size, 1) ** 0.5)
            self._spacing = grid.spacing(grid.exponents(size))

    def part(self, of: NDArray[Any], beside: NDArray[Any]) -> Part:
        with np.errstate(invalid="ignore"):
            apart = finite_part(as_floats(of) - as_floats(beside))
        norm = float(np.linalg.norm(apart))
        units = np.atleast_1d(np.abs(apart)) / self._spacing
        return Part(norm / self._norm if self._norm else norm, float(units.max(initial=0.0)))


def as_floats(array: NDArray[Any]) -> NDArray[np.float64]:
    return array.astype(np.float64, copy=False)


def finite_part(array: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        floats = as_floats(array)
        return np.where(np.isfinite(floats), floats, 0.0)
