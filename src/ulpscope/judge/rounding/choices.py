"""Choices that two runs made differently: whether what they chose among differs enough to explain it.

A sound call that chooses places (argmax, topk, sort) or compares can give another answer only where its operands are
closer together than the two runs are apart. That holds element by element, whatever the size of the error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.judge.rounding.limits import APART, BLOCK, FLIPPED, NARROW
from ulpscope.judge.rounding.masks import as_numbers
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.operations.registry import Choosing
from ulpscope.records.pairs import Pair

AnyArray = NDArray[Any]
Floats = NDArray[np.float64]
Shape = tuple[int, ...]


def numbers_alike(arrays: Pair[AnyArray | None], dtypes: Pair[str]) -> Pair[AnyArray] | None:
    """Two tensors as numbers, in the target's shape; none if one is not there, or they do not fit."""
    one, other = arrays.reference, arrays.target
    if one is None or other is None or one.size != other.size:
        return None
    if any(name not in DTYPES or DTYPES[name].kind is DtypeKind.COMPLEX for name in dtypes):
        return None
    return Pair(as_numbers(one, dtypes.reference).reshape(other.shape), as_numbers(other, dtypes.target))


def places_explained(
    index: Pair[AnyArray], scores: Pair[AnyArray], values: Pair[AnyArray] | None, choosing: Choosing
) -> bool:
    """Whether chosen places may differ; `values` are what the call itself gave as what lies there.

    Along which axis it chose is seen in the shapes; where several fit, one that explains the places is enough.
    """
    shapes = index.target.shape, scores.target.shape
    ways = [_along(axis, index, scores, values) for axis in _axes(*shapes)]
    if math.prod(shapes[0]) == 1 and len(shapes[1]) != 1:
        ways.append(_Places(index.map(_in_one_row), scores.map(_in_one_row), None))
    return not ways or any(way.explained(choosing) for way in ways)


def _axes(index: Shape, scores: Shape) -> list[int]:
    rests = [(axis, scores[:axis] + scores[axis + 1 :]) for axis in range(len(scores))]
    return [
        axis
        for axis, rest in rests
        if index == rest or (len(index) == len(scores) and index[:axis] + index[axis + 1 :] == rest)
    ]


def _along(axis: int, index: Pair[AnyArray], scores: Pair[AnyArray], values: Pair[AnyArray] | None) -> "_Places":
    axes = scores.target.ndim

    def rows(array: AnyArray) -> AnyArray:
        placed = array if array.ndim == axes else np.expand_dims(array, axis)
        moved = np.moveaxis(placed, axis, -1)
        return moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1])

    return _Places(index.map(rows), scores.map(rows), None if values is None else values.map(rows))


def _in_one_row(array: AnyArray) -> AnyArray:
    return array.reshape(1, -1)


@dataclass(frozen=True, slots=True)
class _Places:
    """Places that were chosen in each row, what they were chosen among, and what the call says lies there."""

    index: Pair[AnyArray]
    scores: Pair[AnyArray]
    values: Pair[AnyArray] | None

    def explained(self, choosing: Choosing) -> bool:
        size = self.scores.target.shape[1]
        if not _lie_within(self.index.reference, size):
            # Places are counted otherwise than thought here.
            return True
        if not _lie_within(self.index.target, size):
            return False
        flipped = np.flatnonzero((self.index.reference != self.index.target).any(axis=1))
        step = max(BLOCK // max(size, 1), 1)
        blocks = (flipped[start : start + step] for start in range(0, len(flipped), step))
        return all(self._rows_explained(rows, choosing) for rows in blocks)

    def _rows_explained(self, rows: NDArray[np.intp], choosing: Choosing) -> bool:
        index = Pair(self.index.reference[rows], self.index.target[rows])
        scores = Pair(_wide(self.scores.reference[rows]), _wide(self.scores.target[rows]))
        errors = _distance(*scores)
        if choosing is Choosing.EXTREME:
            allowed = _at(errors, index.reference) + _at(errors, index.target)
        else:
            allowed = 2 * errors.max(axis=1, keepdims=True, initial=0.0)
        in_any_order = choosing is Choosing.LARGEST
        if in_any_order and self.values is not None:
            # The values that a call gives beside the places tell in which order it gives them.
            in_any_order = False
            allowed = allowed + _distance(_wide(self.values.reference[rows]), _wide(self.values.target[rows]))
        margins = (_margin(each, index, in_any_order=in_any_order) for each in scores)
        return not bool(np.any(np.minimum(*margins) > allowed))


def _lie_within(index: AnyArray, size: int) -> bool:
    return not index.size or (int(index.min()) >= 0 and int(index.max()) < size)


def _margin(scores: Floats, index: Pair[AnyArray], *, in_any_order: bool) -> Floats:
    """How far apart what the two runs chose lies in one run's own scores."""
    chosen = _at(scores, index.reference), _at(scores, index.target)
    if in_any_order:
        return _distance(np.sort(chosen[0], axis=1), np.sort(chosen[1], axis=1))
    return _distance(*chosen)


def _at(scores: Floats, index: AnyArray) -> Floats:
    found: Floats = np.take_along_axis(scores, index.astype(np.int64), axis=1)
    return found


def _wide(array: AnyArray) -> Floats:
    return array.astype(np.float64)


def _distance(one: Floats, other: Floats) -> Floats:
    """Elements apart; the same inf is not, and of nan nothing is known."""
    with np.errstate(invalid="ignore", over="ignore"):
        found: Floats = np.where(one == other, 0.0, np.abs(one - other))
    return found


def comparison_explained(flags: Pair[AnyArray], operands: Sequence[Pair[AnyArray]], roundoff: float) -> bool:
    """Whether bools may differ that tell which of two operands, or of one and the same number, is larger.

    `roundoff` is that of the coarsest type: a plain number may have been rounded to it.
    """
    flipped = flags.reference.astype(np.bool_) != flags.target.astype(np.bool_)
    try:
        sides = [each.map(lambda side: _wide(np.broadcast_to(side, flipped.shape)[flipped])) for each in operands]
    except ValueError:
        return True
    size = roundoff * np.max([np.abs(array) for each in sides for array in each], axis=0)
    if len(sides) == 1:
        return _meet(sides[0], size)
    one, other = sides
    gaps = _distance(one.reference, other.reference), _distance(one.target, other.target)
    allowed = _distance(*one) + _distance(*other) + size
    return not bool(np.any(np.minimum(*gaps) > allowed))


def _meet(sides: Pair[Floats], allowance: Floats) -> bool:
    """Whether one number lies between the two runs wherever they flipped."""
    lows, highs = np.minimum(*sides) - allowance, np.maximum(*sides) + allowance
    # Of nan nothing is known, and fmax and fmin pass it over.
    return not bool(np.fmax.reduce(lows, initial=-np.inf) > np.fmin.reduce(highs, initial=np.inf))


def whole_explained(whole: Pair[AnyArray], numbers: Pair[AnyArray], roundoff: float) -> bool:
    """Whether numbers without their fractions may differ; what their type cannot hold is anything."""
    limits = [np.iinfo(side.dtype) for side in whole]
    least, most = max(float(each.min) for each in limits), min(float(each.max) for each in limits)
    differ = (whole.reference != whole.target).reshape(-1)
    given, made = (each.map(lambda side: _wide(side.reshape(-1)[differ])) for each in (numbers, whole))
    held = np.all([(side > least) & (side < most) for side in given], axis=0)
    allowed = 1.0 + _distance(*given) + roundoff * np.abs(given.reference)
    return not bool(np.any(held & (_distance(*made) > allowed)))


def all_at_the_threshold(share: float, *, deviation: float, error: float, width: float) -> bool:
    """Whether so many bools may have flipped, by what stats tell of the operand: nearly all of it in one point.

    `deviation` is the operand's own, `error` how far its elements are apart in the two runs, and `width` from its
    smallest to its largest element.
    """
    return share < FLIPPED or not (deviation > APART * error and deviation > width / NARROW)
