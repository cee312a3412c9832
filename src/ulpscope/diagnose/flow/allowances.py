"""What a sound call may do beyond the rule of its family, as far as data or stats tell.

What is only added (a bias) counts with what it does to the result. Behind a kink (relu) a single gradient may move, and
that may be the largest there is. A gradient that is summed over many rows keeps what the errors of the rows have in
common: they were all made with the same rounded weights. Choices flip where operands are closer to each other than the
two runs are. What nobody recorded the maker of, and what nobody reads, is excused.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from ulpscope.align.tensors import BACKWARD_KINDS, KEPT_ROLES
from ulpscope.diagnose.arguments import tensor_places
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot, grouped
from ulpscope.diagnose.flow.explaining import Explained
from ulpscope.diagnose.flow.states import SOUND, UNKNOWN, State
from ulpscope.diagnose.flow.unpaired import GapFinder, first_from
from ulpscope.diagnose.limits import STARTING_ERROR
from ulpscope.judge.rounding.choices import (
    AnyArray,
    all_at_the_threshold,
    comparison_explained,
    places_explained,
    whole_explained,
)
from ulpscope.judge.rounding.families import Operand, felt_error, summed_length
from ulpscope.judge.rounding.limits import Limits, update_error
from ulpscope.numerics.summaries.estimates import standard_deviations
from ulpscope.operations.registry import STARTS_BACKWARD, Choosing, Family, Trait
from ulpscope.records.enums import GRAD_OUTPUT_ROLE, GRADIENT_ROLE, INPUT_ROLE, OUTPUT_ROLE, PARAMETER_ROLE, Kind
from ulpscope.records.pairs import Pair


class Allowances:
    """Of the calls of one rank."""

    def __init__(self, evidence: RankEvidence, limits: Limits, parameters: Collection[int]) -> None:
        """`parameters` are their storages in the target."""
        self.evidence = evidence
        self.limits = limits
        self.parameters = parameters

    def applied(self, slot: Slot, sources: Sequence[int], explained: Explained, gain: float) -> Explained:
        """The explanation of an output by its own call's operands, with what else is allowed, or counts for less."""
        if self.evidence.calls["kind"][slot.pair] in BACKWARD_KINDS:
            more = max(explained.expected, self._largest_kinked(slot, sources), self._in_common(slot, explained))
            return replace(explained, expected=math.hypot(more, self.added_in_own_type(slot)))
        felt = self._felt(slot, sources, explained, gain)
        more = max(self._rows_of_small_norm(slot, felt), self._aligned(slot, sources, felt))
        return replace(felt, expected=max(felt.expected, more))

    def _aligned(self, slot: Slot, sources: Sequence[int], explained: Explained) -> float:
        """What a weight's error can do at most: an update that differs lies along the inputs that it was made of."""
        evidence = self.evidence
        operation = evidence.operations[slot.pair]
        if operation.family not in (Family.CONTRACTION, Family.CONVOLUTION) or len(sources) < 2:
            return 0.0
        weight = sources[1]
        rounding = self.limits.gain * self.limits.rounding * evidence.precision.roundoffs[weight]
        is_parameter = int(evidence.sides.target.storage[weight]) in self.parameters
        if not is_parameter or evidence.operands[weight].error <= rounding:
            return 0.0
        operands = [evidence.operands[source] for source in sources]
        length = summed_length(operation, operands, evidence.operands[slot.values])
        most = math.sqrt(length) * evidence.operands[weight].error * explained.widened
        return math.hypot(explained.expected, most)

    def _rows_of_small_norm(self, slot: Slot, explained: Explained) -> float:
        """A norm divides each row by its own size, which stats do not tell: that of padding may be very small."""
        if self.evidence.operations[slot.pair].family is not Family.NORMALIZATION or explained.incoming <= 0:
            return 0.0
        return self.limits.norm_roundings * self.limits.rounding * self.evidence.precision.coarsest

    def _felt(self, slot: Slot, sources: Sequence[int], explained: Explained, gain: float) -> Explained:
        evidence = self.evidence
        addends = evidence.addends(slot.pair)
        if not addends:
            return explained
        others = evidence.worst_error(source for source in sources if source not in addends)
        added = felt_error((evidence.operands[source] for source in addends), evidence.operands[slot.values])
        came_in = min(math.hypot(others, added), explained.incoming)
        if not came_in < explained.incoming:
            return explained
        base = math.hypot(came_in, explained.floor)
        return replace(
            explained,
            incoming=came_in,
            expected=math.inf if came_in > self.limits.saturated else gain * base * explained.widened,
            gain=explained.error / explained.widened / base if base else math.inf,
        )

    def added_in_own_type(self, slot: Slot) -> float:
        """What a norm's weight or bias loses if its gradient is added up, row by row, in the type of these rows."""
        gradients, family = self._gradients(slot), self.evidence.operations[slot.pair].family
        if family is not Family.NORMALIZATION or not gradients:
            return 0.0
        rows = _rows(family, self.evidence.operands[gradients[0]], self.evidence.operands[slot.values])
        unit = max(self.evidence.precision.roundoffs[row] for row in (slot.values, gradients[0]))
        # Rows that are alike are rounded alike: of so many the errors add up like one.
        return min(unit * rows / 2.0, self.limits.saturated) if rows > 1 else 0.0

    def _gradients(self, slot: Slot) -> list[int]:
        return [other.values for other in self.evidence.in_role(slot.pair, GRAD_OUTPUT_ROLE)]

    def _largest_kinked(self, slot: Slot, sources: Sequence[int]) -> float:
        """The error if the largest gradient moved across a kink, and the usual share of the others."""
        evidence = self.evidence
        output, gradients = evidence.operands[slot.values], self._gradients(slot)
        moved = evidence.worst_error(source for source in sources if source not in gradients)
        if not evidence.operations[slot.pair].has(Trait.KINKED) or not gradients or moved <= 0 or output.norm <= 0:
            return 0.0
        stats = evidence.sides.reference.summaries
        largest = max(max(abs(stats.min[row]), abs(stats.max[row])) for row in gradients)
        return float(self.limits.kink * math.sqrt(min(moved, 1.0)) + largest / output.norm)

    def _in_common(self, slot: Slot, explained: Explained) -> float:
        """The error of a sum over rows, if a share of the rows' errors is the same in all."""
        gradients, output = self._gradients(slot), self.evidence.operands[slot.values]
        if not gradients:
            return 0.0
        rows = _rows(self.evidence.operations[slot.pair].family, self.evidence.operands[gradients[0]], output)
        gain = min(self.limits.in_common * math.sqrt(rows), self.limits.in_common_gain)
        return gain * explained.incoming * explained.widened if rows > 1 else 0.0


def _rows(family: Family, gradient: Operand, output: Operand) -> float:
    """Over how many rows, or positions, the gradient of a vector or of a convolution's weight was summed."""
    summed = len(output.shape) == 1 or family is Family.CONVOLUTION
    if not summed or len(gradient.shape) < 2 or output.shape[0] not in gradient.shape:
        return 1.0
    return gradient.elements / max(output.shape[0], 1)


class Excuses:
    """Of differences of one rank that nobody recorded the maker of, or that nobody reads."""

    def __init__(self, evidence: RankEvidence, gaps: GapFinder, limits: Limits) -> None:
        self.evidence = evidence
        self.gaps = gaps
        self.limits = limits

    def is_start(self, slot: Slot, states: Sequence[State]) -> bool:
        """A parameter or state that differs a little because nobody recorded its last update: that was before the first
        compared step, or there is no optimizer."""
        first, step = self.evidence.plan.steps[0], self.evidence.calls["step"][slot.pair]
        updates_seen = self.evidence.has_optimizer and self.evidence.complete
        unseen = (first != 0 and step == first) or (step != first and not updates_seen)
        if not unseen or not self.evidence.values.compared[slot.values]:
            return False
        owned = slot.role in KEPT_ROLES
        persistent = owned or self.gaps.is_parameter(slot) or (step != first and not self.evidence.complete)
        return persistent and 0 < self.evidence.error(slot) <= max(STARTING_ERROR, self._of_update(slot, states))

    def _of_update(self, slot: Slot, states: Sequence[State]) -> float:
        """What the gradient's error makes of a parameter that is all update, as a bias that began at zero."""
        shown = self._gradients.get((self.evidence.calls["module"][slot.pair], slot.place), [])
        before = first_from(shown, slot.row)
        if slot.role != PARAMETER_ROLE or not before or states[shown[before - 1].values] not in SOUND:
            return 0.0
        gradient = shown[before - 1]
        lost = 2.0 * math.sqrt(self._turned(gradient))
        return update_error(self.evidence.error(gradient), self.limits.loose_gain, self.limits, lost=lost)

    def _turned(self, gradient: Slot) -> float:
        """Share of elements with another sign, where data tells it: Adam's first update is the gradient's sign.

        Of a key's bias all are noise, because softmax does not feel it.
        """
        arrays = self.evidence.arrays(gradient)
        if arrays is None or not arrays.target.size:
            return 0.0
        return float(np.mean(np.sign(arrays.reference) != np.sign(arrays.target)))

    @cached_property
    def _gradients(self) -> dict[tuple[str | None, str], list[Slot]]:
        """Parameters' gradients that modules show, by module and name, in order."""
        modules = self.evidence.calls["module"]
        return grouped(self.evidence.by_role.get(GRADIENT_ROLE, []), lambda slot: (modules[slot.pair], slot.place))

    def is_unread(self, slot: Slot, states: Sequence[State]) -> bool:
        """Whether nothing reads this output, and what is read of its call agrees: then it did to no one any harm.

        A kernel may return memory that it reserves for its backward (the batch norm of an inference). A capture of ours
        knows what was never written; another tool's dump shows numbers that lay there before.
        """
        evidence = self.evidence
        is_api = evidence.calls["kind"][slot.pair] == Kind.API.value
        if evidence.complete or not is_api or slot.role != OUTPUT_ROLE or self._readers[slot.values]:
            return False
        others = [other.values for other in evidence.in_role(slot.pair, OUTPUT_ROLE) if self._readers[other.values]]
        return bool(others) and all(states[other] in SOUND - {UNKNOWN} for other in others)

    def only_looks(self, slot: Slot) -> bool:
        """Whether a call makes nothing of what another call has made, as one that prints a number: calls that look at
        other results are no partners, and each result is judged where it was made."""
        evidence, pair = self.evidence, slot.pair
        made = max(int(side.producer[slot.values]) for side in evidence.sides) >= 0
        is_api = evidence.calls["kind"][pair] == Kind.API.value and evidence.calls["op"][pair] not in STARTS_BACKWARD
        return made and is_api and slot.role == INPUT_ROLE and not evidence.made(pair)

    def is_idle_draw(self, slot: Slot) -> bool:
        """Whether these are whole numbers that were drawn, and that no call makes anything of: a data loader's seed."""
        calls, discrete = self.evidence.calls, self.evidence.values.discrete
        drawn = calls["generator"][slot.pair] is not None or calls["random"][slot.pair]
        return bool(drawn) and slot.makes and bool(discrete[slot.values]) and slot.values not in self.gaps.used

    @cached_property
    def _readers(self) -> Counter[int]:
        """How many calls, backwards among them, read each pair of values."""
        return Counter(slot.values for slot in self.evidence.slots if not slot.makes)


class Choosers:
    """Of the calls of one rank; each is looked at once."""

    def __init__(self, evidence: RankEvidence) -> None:
        self.evidence = evidence
        self._known: dict[int, bool] = {}

    def explain(self, slot: Slot) -> bool:
        """Whether an output of integers or bools may differ for what its call was given; so if nothing tells."""
        if slot.row not in self._known:
            self._known[slot.row] = self._explains(slot)
        return self._known[slot.row]

    def _explains(self, slot: Slot) -> bool:
        evidence, pair = self.evidence, slot.pair
        choosing = evidence.operations[pair].chooses
        drawn = evidence.calls["random"][pair] or evidence.calls["reference_random"][pair]
        if choosing is None or drawn or evidence.calls["kind"][pair] != Kind.API.value:
            return True
        is_bool = {side.dtype[slot.values] for side in evidence.sides} == {"bool"}
        if choosing is Choosing.COMPARISON:
            return not is_bool or self._compares(slot)
        given = next((each for each in self._operands(slot) if not evidence.values.discrete[each.values]), None)
        made, scores = evidence.arrays(slot), None if given is None else evidence.arrays(given)
        if is_bool or given is None or made is None or scores is None:
            return True
        if choosing is Choosing.WHOLE:
            same_size = made.target.size == scores.target.size
            return not same_size or whole_explained(made, scores, evidence.precision.roundoffs[given.values])
        return places_explained(made, scores, self._values(slot, made), choosing)

    def _compares(self, slot: Slot) -> bool:
        operands, made = self._operands(slot), self.evidence.arrays(slot)
        found = [self.evidence.arrays(each) for each in operands]
        known = [each for each in found if each is not None]
        if made is None or len(known) < len(operands) or len(known) != self._compared_tensors(slot, operands):
            return self._may_all_flip(slot, operands)
        roundoffs = self.evidence.precision.roundoffs
        return comparison_explained(made, known, max(roundoffs[each.values] for each in operands))

    def _compared_tensors(self, slot: Slot, operands: list[Slot]) -> int:
        """How many tensors a comparison was given; one alone was compared with a number only if its call says so."""
        calls, pair = self.evidence.calls, slot.pair
        places = tensor_places(calls["reference_arguments"][pair]), tensor_places(calls["arguments"][pair])
        return len(operands) if len(operands) == 2 or len(places[0]) == len(places[1]) == 1 else 2

    def _may_all_flip(self, slot: Slot, operands: list[Slot]) -> bool:
        evidence, row = self.evidence, slot.values
        spread = [each.values for each in operands if evidence.operands[each.values].elements > 1]
        if len(spread) != 1 or evidence.operations[slot.pair].has(Trait.EXACT_COMPARISON):
            return True
        sides, metrics = evidence.sides, evidence.values.metrics.get(row)
        share = float(abs(sides.reference.summaries.mean[row] - sides.target.summaries.mean[row]))
        if metrics is not None and metrics.elements:
            share = metrics.different / metrics.elements
        stats, operand = sides.reference.summaries, spread[0]
        return math.isnan(share) or all_at_the_threshold(
            share,
            deviation=float(standard_deviations(stats)[operand]),
            error=evidence.operands[operand].absolute,
            width=float(stats.max[operand] - stats.min[operand]),
        )

    def _operands(self, slot: Slot) -> list[Slot]:
        return [each for each in self.evidence.slots_of[slot.pair] if not each.makes]

    def _values(self, slot: Slot, index: Pair[AnyArray]) -> Pair[AnyArray] | None:
        """What the call gave as what lies at the places that it gave."""
        others = [each for each in self.evidence.made(slot.pair) if each is not slot]
        arrays = [self.evidence.arrays(each) for each in others if not self.evidence.values.discrete[each.values]]
        found = [each for each in arrays if each is not None and each.target.shape == index.target.shape]
        return found[0] if len(found) == 1 else None
