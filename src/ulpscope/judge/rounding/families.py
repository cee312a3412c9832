"""How operations pass error on: what each family makes of the errors of its operands.

An operation's output error is explained by the errors of its operands and by rounding. How large it may be depends on
what the operation does: a sum that cancels turns a small relative error into a large one, an exponential turns an
absolute error into a relative one. A family says how operand errors combine (`incoming`) and what an output's error
must be measured against where the output itself has cancelled (`natural_norm`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ulpscope.judge.rounding.limits import MANY_VECTORS, RARE_DEVIATIONS, SCARCE
from ulpscope.operations.registry import SUMMING, Family, Operation, Trait

DEVIATIONS = frozenset(("std", "std_mean", "var", "var_mean"))


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand or an output of a call, with its error."""

    error: float
    """Relative L2 distance of the two runs."""
    norm: float
    elements: float
    shape: Sequence[int]
    score_error: float | None = None
    """Of attention scores with a mask: root mean square of the differences of what is not masked."""

    @property
    def rms(self) -> float:
        return self.norm / math.sqrt(self.elements) if self.elements else 0.0

    @property
    def distance(self) -> float:
        return self.error * self.norm

    @property
    def absolute(self) -> float:
        """The error of an element; of what is masked it does not count."""
        return self.rms * self.error if self.score_error is None else self.score_error


def natural_norm(family: Family, operands: Sequence[Operand], output: Operand) -> float:
    """The norm that the output would have if the operands' signs were random: more than its own where it cancelled."""
    count = output.elements
    floats = [operand for operand in operands if operand.elements]
    if not floats:
        return output.norm
    if family is Family.SUM:
        return max(output.norm, math.sqrt(sum(operand.rms**2 * count for operand in floats)))
    if family is Family.LOGARITHM:
        return max(output.norm, math.sqrt(count))
    if family is Family.PRODUCT and len(floats) == 2:
        return max(output.norm, floats[0].rms * floats[1].rms * math.sqrt(count))
    if family in (Family.CONTRACTION, Family.CONVOLUTION) and len(floats) >= 2:
        length = _contracted(family, floats[0], floats[1], output)
        return max(output.norm, floats[0].rms * floats[1].rms * math.sqrt(length * count))
    if family in (Family.REDUCTION, Family.AVERAGE):
        largest = max(floats, key=lambda operand: operand.elements)
        length = max(largest.elements / max(count, 1), 1.0)
        total = largest.rms * math.sqrt(length * count)
        return max(output.norm, total if family is Family.REDUCTION else total / length)
    return output.norm


def _contracted(family: Family, first: Operand, second: Operand, output: Operand) -> float:
    """How many products each element of the output is a sum of."""
    if family is Family.CONVOLUTION:
        return second.elements / max(second.shape[0] if second.shape else 1, 1)
    if min(len(first.shape), len(second.shape), len(output.shape)) >= 2:
        kept, (before, last) = output.shape[-2], first.shape[-2:]
        # Which of its axes a transposed operand (transpose_x1, adj_x1) keeps is seen in the output.
        return before if kept == last != before else last
    return first.shape[-1] if first.shape else 1


def summed_length(operation: Operation, operands: Sequence[Operand], output: Operand) -> float:
    """How many terms an element of the output is a sum of; at least that many."""
    family = operation.family
    if family not in SUMMING or not operands:
        return 1.0
    if family in (Family.CONTRACTION, Family.CONVOLUTION) and len(operands) >= 2:
        return _contracted(family, operands[0], operands[1], output)
    if operation.has(Trait.OVER_LAST_AXIS):
        return operands[0].shape[-1] if operands[0].shape else 1.0
    largest = max(operand.elements for operand in operands)
    inner = family in (Family.NORMALIZATION, Family.ATTENTION, Family.RECURRENT)
    return largest if inner else largest / max(output.elements, 1)


def natural_gradient_norm(family: Family, gradient: Operand, others: Sequence[Operand], output: Operand) -> float:
    """The same for a backward: `gradient` came in, `output` goes to an operand, `others` are its forward's rest."""
    norm = output.norm
    if output.elements < gradient.elements:
        # A bias or a broadcast operand: its gradient is a sum over what it was spread over.
        norm = max(norm, gradient.norm * math.sqrt(_spread(others, output)) if family is not Family.AVERAGE else norm)
    if family is Family.PRODUCT and output.elements == gradient.elements:
        # A factor that is 0 in places leaves a part of what was sent, and perhaps the least.
        norm = max(norm, *(gradient.norm * other.rms for other in others), 0.0)
    if family in (Family.CONTRACTION, Family.CONVOLUTION):
        for other in others:
            length = math.sqrt(max(gradient.elements * other.elements / max(output.elements, 1), 1.0))
            norm = max(norm, gradient.rms * other.rms * math.sqrt(length * output.elements))
    return norm


def _spread(others: Sequence[Operand], output: Operand) -> float:
    """Mean square of what a broadcast operand was multiplied with; 1 for a bias."""
    factors = [other.rms**2 for other in others if other.elements > output.elements]
    return max(1.0, *factors) if factors else 1.0


def incoming(family: Family, operands: Sequence[Operand], output: Operand, norm: float) -> float:
    """The relative error of the output that the operands' errors explain."""
    if not operands:
        return 0.0
    worst = max(operand.error for operand in operands)
    if family is Family.SUM and norm > 0:
        total = sum(operand.rms * operand.error * math.sqrt(output.elements) for operand in operands)
        return min(worst, total / norm) if math.isfinite(worst) else worst
    if family is Family.SELECTION and output.norm > 0:
        return max(worst, max(operand.distance for operand in operands) / output.norm)
    if family is Family.EXPONENTIAL:
        return max(worst, *(operand.absolute for operand in operands))
    if family is Family.ATTENTION and len(operands) >= 2:
        scores = operands[0].rms * operands[1].rms * (operands[0].error + operands[1].error)
        return max(worst, scores)
    if family is Family.DIFFERENCE_LOSS and output.elements == 1 and output.norm > 0:
        return max(worst, 2 * operands[0].distance / math.sqrt(operands[0].elements * output.norm))
    return worst


def repetition(operands: Sequence[Operand], output: Operand) -> float:
    """By how much the error of a row that is picked by an index can grow: it may be picked for all that there is."""
    row = max(math.prod(operands[0].shape[1:]), 1) if operands else 1
    return math.sqrt(max(output.elements / row, 1.0))


def spread_gain(operation: Operation, operands: Sequence[Operand], output: Operand) -> float:
    """How many times the operand's relative error a deviation or variance has: as often as it goes into the operand."""
    if operation.name not in DEVIATIONS or not operands or output.rms <= 0:
        return 1.0
    deviation = output.rms if operation.name.startswith("std") else math.sqrt(output.rms)
    return max(2.0 * operands[0].rms / deviation, 1.0)


def scarcity(operation: Operation, operands: Sequence[Operand]) -> float:
    """How much more than usual a norm over few elements of a batch amplifies errors.

    It divides by a deviation that a few draws tell: some of many channels have next to none, and these make most of the
    error. Of n normal draws the mean of 1 / deviation^4 is (n - 1)^2 / (n - 3) / (n - 5) times the usual.
    """
    if not operation.has(Trait.RUNNING_STATS) or not operands or len(operands[0].shape) < 2:
        return 1.0
    shape = operands[0].shape
    draws = math.prod(shape[2:]) if operation.name == "instance_norm" else operands[0].elements / max(shape[1], 1)
    return max(draws - 1.0, 1.0) / math.sqrt(max(draws - 3.0, SCARCE) * max(draws - 5.0, SCARCE))


def alignment(family: Family, operands: Sequence[Operand], output: Operand) -> float:
    """How much more than usual a contraction makes of the error of few vectors, which may lie along what they meet.

    Usually one of many directions is met. Of n draws the mean square is so much larger once in a thousand times (by
    Wilson and Hilferty), and never more than where all of an error is met.
    """
    if family not in (Family.CONTRACTION, Family.CONVOLUTION) or len(operands) < 2:
        return 1.0
    length = max(_contracted(family, operands[0], operands[1], output), 1.0)
    draws = max(min(operand.elements for operand in operands[:2]) / length, 1.0)
    return max(min(_by_chance(draws) / _by_chance(MANY_VECTORS), math.sqrt(length)), 1.0)


def _by_chance(draws: float) -> float:
    """The root mean square of so many normal draws that one in a thousand exceeds."""
    spread = 2.0 / (9.0 * draws)
    return float((1.0 - spread + RARE_DEVIATIONS * math.sqrt(spread)) ** 1.5)


def felt_error(addends: Iterable[Operand], output: Operand) -> float:
    """The relative error of an output that the errors of what is only added to it make.

    A bias that began at zero may differ by half of itself after one step, and yet moves the result by next to nothing.
    """
    if output.norm <= 0:
        return 0.0
    spread = (operand.distance * math.sqrt(output.elements / max(operand.elements, 1.0)) for operand in addends)
    return math.fsum(spread) / output.norm
