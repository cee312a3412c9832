"""How much of an error rounding and the operands explain.

What a collective gives depends on the operands of all ranks.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ulpscope.align.tensors import BACKWARD_KINDS, GRADIENT_ROLES
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.exponents import Exponents
from ulpscope.diagnose.flow.unpaired import Gap, made_roundoff, operations_in, rounds_inside
from ulpscope.diagnose.flow.updates import compare_updates
from ulpscope.diagnose.limits import COARSE_SKETCH, LAST_BITS
from ulpscope.judge.rounding.families import (
    Operand,
    alignment,
    incoming,
    natural_gradient_norm,
    natural_norm,
    repetition,
    scarcity,
    spread_gain,
    summed_length,
)
from ulpscope.judge.rounding.limits import ACCUMULATOR, Limits, floor_of, kink_error, sum_floor, update_error
from ulpscope.operations.registry import SUMMING, Family, Trait
from ulpscope.records.enums import (
    COLLECTIVE_KIND,
    GRAD_INPUT_ROLE,
    GRAD_OUTPUT_ROLE,
    GRADIENT_ROLE,
    INPUT_ROLE,
    OPTIMIZER_KIND,
    OUTPUT_ROLE,
    STATE_AFTER_ROLE,
    STATE_ROLE,
    UPDATE_PHASE,
)
from ulpscope.records.pairs import Measured

STATS = Measured.STATS
ForeignErrors = Mapping[tuple[int, str], float]
"""By pair of calls and place ("" for all): the largest error of the same operands in any rank."""

MOMENTA = ("exp_avg", "momentum_buffer", "momentums")
"""Names of the state that an update is made of, in torch and in Keras."""


@dataclass(frozen=True, slots=True)
class Explained:
    """The error of a tensor beside what explains it."""

    error: float
    incoming: float
    expected: float
    gain: float
    floor: float
    widened: float = 1.0
    """By how much the output has cancelled."""
    rounded: float = 0.0
    """The floor that the dtypes alone set, whatever is resolved."""

    def is_rounding_of(self, incoming: float, gain: float) -> bool:
        """Whether rounding in these dtypes and operands with this error explain all of it, as far as that is told."""
        return self.error <= COARSE_SKETCH * gain * math.hypot(incoming, self.rounded) * self.widened

    def explained_by(self, incoming: float, gain: float) -> bool:
        """Whether operands with this error alone, at this gain, explain all of it."""
        return self.error <= gain * math.hypot(incoming, self.floor) * self.widened


@dataclass(frozen=True, slots=True)
class _Floor:
    """Error that an output has at least."""

    told: float
    """What can be told from rounding, by how it was measured."""
    rounded: float
    """What rounding in the dtypes makes."""
    unit: float
    """Unit roundoff in which sums are made."""

    def of_sum(self, length: float) -> "_Floor":
        """The same of a sum of that many terms."""
        more = sum_floor(length, self.unit)
        return _Floor(math.hypot(self.told, more), math.hypot(self.rounded, more), self.unit)


class _Account(NamedTuple):
    """What goes into an explanation."""

    incoming: float
    floor: _Floor
    norm: float
    """What the error is measured against; larger than the output's own norm where that has cancelled."""
    extra: float = 0.0
    """Error that may be there whatever came in."""


class Explainer:
    """Explains errors of one rank; `note` tells it what was seen so far."""

    def __init__(self, evidence: RankEvidence, limits: Limits, foreign_errors: ForeignErrors) -> None:
        self.evidence = evidence
        self.limits = limits
        self.foreign_errors = foreign_errors
        self.updates = compare_updates(evidence)
        self._coarse = evidence.precision.coarse_families
        self._exponents = Exponents(evidence)
        self._accounts: dict[int, _Account] = {}
        self._states = {
            (slot.pair, role, slot.place): slot.values
            for role in (STATE_ROLE, STATE_AFTER_ROLE)
            for slot in evidence.by_role.get(role, [])
        }
        """Of optimizers, whose calls have very many."""
        self._worst: dict[int, float] = defaultdict(float)
        """Largest error so far, by step."""
        self._discrete = evidence.values.discrete.tolist()
        self._compared = evidence.values.compared.tolist()
        self._measured = evidence.values.measured.tolist()

    def begin(self) -> None:
        """Forget what was noted: the run is gone through again."""
        self._worst.clear()

    def note(self, slot: Slot, explained: Explained) -> None:
        """Tell of an error that was judged; of what has cancelled it counts for what there was before."""
        step = self.evidence.calls["step"][slot.pair]
        self._worst[step] = max(self._worst[step], explained.error / explained.widened)

    def explain(self, slot: Slot, sources: Sequence[int], gain: float, gap: Gap | None) -> Explained:
        """What of a tensor's error rounding and these sources explain, if a sound operation has at most this gain."""
        if slot.row in self.updates and gap is None:
            return self._update(slot, self.evidence.worst_error(self.floats([*sources, *self._momenta(slot)])), gain)
        # A tensor is explained twice, the second time with what its peers allow.
        account = self._accounts.get(slot.row)
        if account is None or (gap is not None and not gap.sources):
            account = self._accounts[slot.row] = self._account_of(slot, self.floats(sources), gap)
        if self._measured[slot.values] is STATS:
            gain *= self.limits.stats_factor
        output = self.evidence.operands[slot.values]
        # What cancels to zero in the reference is measured against what rounding has left of it in the target.
        size = output.norm or float(self.evidence.sides.target.summaries.norm[slot.values])
        widened = max(account.norm / size, 1.0) if size > 0 else 1.0
        saturated = math.inf if account.incoming > self.limits.saturated else 0.0
        base = math.hypot(account.incoming, account.floor.told)
        return Explained(
            error=output.error,
            incoming=account.incoming,
            expected=max(gain * base * widened, account.extra, saturated),
            gain=output.error / widened / base if base else math.inf,
            floor=account.floor.told,
            widened=widened,
            rounded=account.floor.rounded,
        )

    def floats(self, sources: Sequence[int]) -> list[int]:
        """Those that have a distance: compared, or as far apart as what they were made of."""
        untold = self.evidence.untold
        return [row for row in sources if not self._discrete[row] and (self._compared[row] or untold[row])]

    def _account_of(self, slot: Slot, floats: list[int], gap: Gap | None) -> _Account:
        evidence = self.evidence
        operands = [evidence.operands[source] for source in floats]
        roundoff = max((evidence.precision.roundoffs[source] for source in (*floats, slot.values)), default=0.0)
        if gap is None:
            family = evidence.operations[slot.pair].family
            rounds = evidence.calls["id"][slot.pair] in evidence.rounding_inside.target
            inner = evidence.precision.inner_roundoff(slot.pair) if rounds else 0.0
            roundoff = max(roundoff, inner, self._coarse.get(family, 0.0))
            # What is computed in a type of the operands underflows there, whatever it is stored in afterwards.
            spacing = max((evidence.precision.spacings[source] for source in floats), default=0.0)
            size = evidence.operands[slot.values].rms
            roundoff = max(roundoff, min(spacing / 2.0 / size, 1.0) if size > 0 else 0.0)
        elif gap.calls:
            inner = evidence.precision.inner_roundoff(slot.pair) if rounds_inside(evidence, gap) else 0.0
            roundoff = max(roundoff, inner, *self._coarse.values(), made_roundoff(evidence, gap))
        measured, resolution = self._measured[slot.values], evidence.precision.resolutions[slot.values]
        floor = _Floor(
            told=floor_of(roundoff, measured, self.limits, sketch_floor=resolution),
            rounded=floor_of(roundoff, None, self.limits),
            unit=roundoff or ACCUMULATOR,
        )
        if gap is not None:
            return self._gap(slot, gap, floats, floor)
        is_backward = evidence.calls["kind"][slot.pair] in BACKWARD_KINDS
        if is_backward or evidence.operations[slot.pair].has(Trait.GRADIENT, Trait.GRADIENT_LAST):
            return self._backward(slot, floats, operands, floor)
        if slot.role == STATE_AFTER_ROLE:
            # A momentum is what it was and a gradient, which may cancel.
            before = self._states.get((slot.pair, STATE_ROLE, slot.place), slot.values)
            norm = max(evidence.operands[row].norm for row in (slot.values, before))
            came_in = evidence.worst_error(floats)
            return _Account(came_in, floor, norm, self._adaptive(came_in) if self._is_update(slot) else 0.0)
        return self._forward(slot, operands, floor)

    def _forward(self, slot: Slot, operands: list[Operand], floor: _Floor) -> _Account:
        output = self.evidence.operands[slot.values]
        operation = self.evidence.operations[slot.pair]
        family = operation.family
        if operation.has(Trait.BIAS_FIRST):
            operands = [*operands[1:], *operands[:1]]
        norm = natural_norm(family, operands, output) * scarcity(operation, operands)
        norm *= spread_gain(operation, operands, output) * alignment(family, operands, output)
        came_in = max(incoming(family, operands, output, norm), self.foreign_errors.get((slot.pair, ""), 0.0))
        if family is Family.SELECTION and any(self._discrete[row] for row in self.evidence.given(slot.pair)):
            came_in *= repetition(operands, output)
        floor = floor.of_sum(summed_length(operation, operands, output))
        adaptive = family is Family.DIVISION and self.evidence.calls["phase"][slot.pair] == UPDATE_PHASE
        return _Account(came_in, floor, norm, self._adaptive(came_in) if adaptive else 0.0)

    def _adaptive(self, came_in: float) -> float:
        """What an update may have that follows the signs of gradients."""
        return min(self.limits.adaptive * math.sqrt(came_in), self.limits.update_cap)

    def _is_update(self, slot: Slot) -> bool:
        """Whether a state is made of updates, as the momentum of RMSprop is: beside it is what they are divided by."""
        name, _, state = slot.place.rpartition(".")
        return state == "momentum_buffer" and (slot.pair, STATE_AFTER_ROLE, f"{name}.square_avg") in self._states

    def _backward(self, slot: Slot, sources: list[int], operands: list[Operand], floor: _Floor) -> _Account:
        evidence = self.evidence
        output = evidence.operands[slot.values]
        operation = evidence.operations[slot.pair]
        family = operation.family
        own = {s.values for s in evidence.in_role(slot.pair, GRAD_OUTPUT_ROLE)}
        if operation.has(Trait.GRADIENT):
            own = set(sources[:1])
        if operation.has(Trait.GRADIENT_LAST):
            own = set([source for source in sources if not self._discrete[source]][-1:])
        gradients = [evidence.operands[source] for source in sources if source in own]
        others = [evidence.operands[source] for source in sources if source not in own]
        worst_other = max((operand.error for operand in others), default=0.0)
        came_in = evidence.worst_error(sources)
        if family is Family.EXPONENTIAL:
            came_in = max(came_in, *(operand.absolute for operand in others), 0.0)
        norm = natural_gradient_norm(family, gradients[0], self._factors(slot, others), output) if gradients else 0.0
        if gradients and output.shape == gradients[0].shape:
            norm = max(norm, self._projected(slot, gradients[0]))
        extra = kink_error(operation, worst_other, output.elements, self.limits)
        if family in SUMMING or extra:
            floor = floor.of_sum(max((operand.elements for operand in operands), default=1.0))
        norm = max(norm, output.norm)
        if family is Family.NORMALIZATION:
            given = evidence.in_role(evidence.forwards[slot.pair], INPUT_ROLE)
            norm *= scarcity(operation, [evidence.operands[each.values] for each in given])
        return _Account(came_in, floor, norm, extra)

    def _factors(self, slot: Slot, others: list[Operand]) -> list[Operand]:
        """What a gradient was multiplied with on its way to an operand: the forward's other ones."""
        evidence, forward = self.evidence, self.evidence.forwards[slot.pair]
        if forward < 0:
            output = evidence.operands[slot.values]
            return [other for other in others if (other.shape, other.elements) != (output.shape, output.elements)]
        given = evidence.in_role(forward, INPUT_ROLE)
        return [evidence.operands[s.values] for s in given if s.place != slot.place and not self._discrete[s.values]]

    def _projected(self, slot: Slot, gradient: Operand) -> float:
        """The norm of a gradient before the part is taken out of it that softmax and norms do not feel."""
        evidence, forward = self.evidence, self.evidence.forwards[slot.pair]
        given = [s for s in evidence.in_role(forward, INPUT_ROLE) if s.place == slot.place] if forward >= 0 else []
        made = evidence.in_role(forward, OUTPUT_ROLE) if given else []
        if not made:
            return 0.0
        operand, result = (evidence.operands[slots[0].values] for slots in (given, made))
        family = evidence.operations[slot.pair].family
        if family is Family.NORMALIZATION and operand.rms > 0:
            return gradient.norm * result.rms / operand.rms
        return gradient.norm * min(result.rms, 1.0) if family is Family.EXPONENTIAL else 0.0

    def _gap(self, slot: Slot, gap: Gap, sources: list[int], floor: _Floor) -> _Account:
        output, operands = self.evidence.operands[slot.values], [self.evidence.operands[row] for row in sources]
        came_in = max((operand.error for operand in operands), default=0.0)
        if slot.role in GRADIENT_ROLES and output.norm > 0:
            # The engine adds gradients up, which may cancel.
            parts = [self._distance(row) for row in sources if row in self.evidence.gradients]
            came_in = max(came_in, max(parts, default=0.0) / output.norm)
        if gap.adds and output.norm > 0:
            came_in = sum(map(self._distance, sources)) / output.norm
        came_in = max(came_in, self.foreign_errors.get((slot.pair, slot.place), 0.0))
        # Calls without partners may add up many numbers.
        computing = [each.family for each in operations_in(self.evidence, gap) if not each.has(Trait.MOVING)]
        if gap.adds or any(family in SUMMING or family is Family.OTHER for family in computing):
            floor = floor.of_sum(max(operand.elements for operand in (output, *operands)))
        if gap.adds:
            # Each sum is rounded to the type of its terms.
            terms = [row for row in sources if row in self.evidence.gradients]
            unit = max((self.evidence.precision.roundoffs[row] for row in terms), default=0.0)
            rounded = self.limits.rounding * unit * math.sqrt(len(terms))
            floor = _Floor(math.hypot(floor.told, rounded), math.hypot(floor.rounded, rounded), floor.unit)
        if not gap.sources and not gap.outside:
            # Nobody knows what it was made of: at best of all that was there, in the coarsest type that there is.
            came_in = self._worst[self.evidence.calls["step"][slot.pair]]
            least = self.limits.rounding * self.evidence.precision.coarsest
            floor = _Floor(max(floor.told, least), max(floor.rounded, least), floor.unit)
        norm = self._gradient_norm(slot, output)
        if gap.written and operands:
            # A running mean moves by a share of the operands' size; the mean itself may be next to nothing.
            size = max(operand.rms for operand in operands) * math.sqrt(output.elements)
            norm = max(norm, self.limits.momentum * size)
        came_in *= self._exponents.spread(gap)
        kinks = self._kinks(gap, operands, output, came_in) if slot.role in GRADIENT_ROLES else 0.0
        # Many roundings of sums lie on the way where both runs have calls of their own.
        rounded = 0.0 if gap.one_sided else last_bits(floor.unit)
        return _Account(came_in, floor, norm, max(kinks, rounded))

    def _kinks(self, gap: Gap, operands: list[Operand], output: Operand, came_in: float) -> float:
        """What a gradient may have because operands moved across a kink of a call without a partner."""
        worst = max((operand.error for operand in operands), default=0.0)
        kinked = (each for each in operations_in(self.evidence, gap) if each.has(Trait.KINKED))
        if not gap.sources:
            worst, kinked = came_in, (each for each in self.evidence.unpaired_operations if each.has(Trait.KINKED))
        return max((kink_error(each, worst, output.elements, self.limits) for each in kinked), default=0.0)

    def _distance(self, row: int) -> float:
        """How far apart two gradients are; where one run has none but zeros, as large as the other's."""
        operand = self.evidence.operands[row]
        apart = float(self.evidence.values.distance[row])
        return operand.distance if operand.norm > 0 or not math.isfinite(apart) else apart

    def _gradient_norm(self, slot: Slot, output: Operand) -> float:
        """Of a parameter's gradient that a module's backward shows: it is a sum over all of the module's rows."""
        evidence = self.evidence
        forward = evidence.forwards[slot.pair]
        shown = evidence.in_role(slot.pair, GRAD_OUTPUT_ROLE)
        if slot.role != GRADIENT_ROLE or forward < 0 or not shown:
            return output.norm
        inputs = [evidence.operands[s.values] for s in evidence.in_role(forward, INPUT_ROLE)]
        gradient = evidence.operands[shown[0].values]
        return max(output.norm, natural_gradient_norm(Family.CONTRACTION, gradient, inputs, output))

    def _momenta(self, slot: Slot) -> list[int]:
        """What an update is made of as it goes: a momentum may have cancelled in this step."""
        places = ((slot.pair, STATE_AFTER_ROLE, f"{slot.place}.{state}") for state in MOMENTA)
        return [self._states[place] for place in places if place in self._states]

    def _update(self, slot: Slot, came_in: float, gain: float) -> Explained:
        """An adaptive update follows the sign of a gradient: where that is noise, so is the update."""
        update = self.updates[slot.row]
        rounded = self.limits.rounding * self.evidence.precision.roundoffs[slot.values]
        base = math.hypot(came_in, rounded, update.resolution)
        expected = update_error(base, gain, self.limits, lost=2.0 * math.sqrt(update.uncertain)) * update.shrunk
        gained = update.error / base if base else math.inf
        return Explained(update.error, came_in, expected, gained, base, rounded=base)


def last_bits(unit: float) -> float:
    """What many roundings of sums come to, in types of this unit roundoff: float32's, or finer ones'."""
    return LAST_BITS * min(unit / ACCUMULATOR, 1.0)


def errors_across_ranks(ranks: Sequence[RankEvidence]) -> list[dict[tuple[int, str], float]]:
    """For each rank: by pair of calls and place, the largest error among the same operands of all ranks."""
    if len(ranks) == 1:
        return [{}]
    worst: dict[tuple[object, ...], float] = defaultdict(float)
    shared = [_shared(evidence) for evidence in ranks]
    for evidence, known in zip(ranks, shared, strict=True):
        for pair, key in known.items():
            worst[key] = max(worst[key], _error(evidence, *pair))
    return [{pair: worst[key] for pair, key in known.items()} for known in shared]


def _shared(evidence: RankEvidence) -> dict[tuple[int, str], tuple[object, ...]]:
    """Collectives, and gradients that a data-parallel wrapper has reduced out of sight."""
    calls = evidence.calls
    found: dict[tuple[int, str], tuple[object, ...]] = {}
    for pair, kind in enumerate(calls["kind"]):
        if kind == COLLECTIVE_KIND:
            found[pair, ""] = (calls["step"][pair], calls["name"][pair])
        elif kind == OPTIMIZER_KIND:
            gradients = evidence.in_role(pair, GRADIENT_ROLE)
            found |= {(pair, slot.place): (calls["step"][pair], slot.place) for slot in gradients}
    return found


def _error(evidence: RankEvidence, pair: int, place: str) -> float:
    """Of what these calls were given; of what this rank's own backwards gave to a parameter, before it was reduced."""
    if not place:
        return evidence.worst_error(evidence.given(pair))
    backwards = evidence.backwards_of.get((evidence.calls["step"][pair], place.rpartition(".")[0]), ())
    slots = (slot for backward in backwards for slot in evidence.in_role(backward, GRAD_INPUT_ROLE))
    return evidence.worst_error(slot.values for slot in slots)
