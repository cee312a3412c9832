"""The ten metrics of msaccucmp's result tables, as it prints them, edge cases included.

    figures = msaccucmp_metrics(my, golden, names=("a.npy", "b.npy"))
    figures["CosineSimilarity"]                   Figure(text="0.978645", message="")

Two generations differ: that of 2022, and that from 2025 on (measured with 26.2.0). Both read numbers as float32, which
hides differences of integers beyond 2**24 and lets the cosine of equal data of 1e30 be 0: for figures without these
faults see numerics.metrics. Of complex numbers the real part counts, as there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from ulpscope.numerics.dtypes import AnyArray
from ulpscope.numerics.pairs.msaccucmp.sums import (
    APART,
    EPSILON,
    GOLDEN_SQUARES,
    PRODUCT,
    RELATIVE,
    SQUARES,
    Gathered,
    Single,
    Spread,
    TwoSides,
    gather,
    kl_divergence,
    old_accumulated_relative,
    old_divergence,
    old_relative,
    spreads,
)

FP16_LARGEST = 65504.0
SHOWN_DEVIATION = 0.001
"""A mean or deviation below it is printed as 0.000."""

FAILED = "NaN"
SCALAR = "This tensor is scalar."
_NO_BOOL = "Algorithm {name} does not support Boolean types."
_BOOL_SUBTRACTED = (
    "Failed to execute 'compare' in 'RelativeEuclideanDistance'. numpy boolean subtract, the `-` operator, is not "
    "supported, use the bitwise_xor, the `^` operator, or the logical_xor function instead."
)
_EMPTY = "Failed to execute 'compare' in '{name}'. zero-size array to reduction operation maximum which has no identity"
_ALL_ZERO = "Cannot compare by Cosine Similarity. All the data is zero in {name}."
_OLD_KL = "Cannot compare by KL Divergence. The data contains 0 in {golden}."
_OLD_RELATIVE = "Cannot compare by {name}, The data contains 0 or nan in {my} or {golden}."
_SIZES = (
    "The my output dump data size ({mine}) in ''{my}'' does not match the ground truth dump data size ({theirs}) in "
    "''{golden}''."
)


class Generation(str, Enum):
    """Whose figures are wanted."""

    OF_2022 = "2022"
    OF_2025 = "2025"
    """2025-09 to 26.2.0 and later."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One cell of the result table, and what it adds to CompareFailReason."""

    text: str
    message: str = ""


class SizesDifferError(ValueError):
    """Arrays that cannot be compared: msaccucmp leaves the whole row empty and gives this reason."""


def overflow_flag(array: AnyArray) -> str:
    """The OverFlow column: YES where a float16 tensor reaches its largest number, NaN for other types."""
    if array.dtype != np.float16:
        return FAILED
    if not array.size:
        return "NO"
    # As there: one nan in the data and neither extreme says anything.
    return "YES" if max(float(array.max()), -float(array.min())) >= FP16_LARGEST else "NO"


@dataclass
class _Comparison:
    """Both sides, read for the first time when a figure needs it."""

    sides: TwoSides
    names: tuple[str, str]
    is_old: bool
    known: tuple[Spread, Spread] | None

    @property
    def count(self) -> int:
        return len(self.sides.my)

    @cached_property
    def found(self) -> Gathered:
        return gather(self.sides, *(self.known or spreads(self.sides)))

    @cached_property
    def old_relative(self) -> tuple[np.float32, np.float32]:
        return old_relative(self.sides)

    def mean(self, total: Single) -> np.float32:
        # numpy's own mean divides in float64 and rounds once.
        return np.float32(np.divide(np.float64(total), self.count))


def _printed(number: Single) -> Figure:
    return Figure(f"{float(number):.6f}")


def _cosine_similarity(compared: _Comparison) -> Figure:
    if compared.count == 1:
        return Figure("1.000000", SCALAR)
    my, golden = compared.found.my.norm, compared.found.golden.norm
    if my <= EPSILON and golden <= EPSILON:
        return Figure("1.0")
    for norm, name in ((my, compared.names[0]), (golden, compared.names[1])):
        if np.sqrt(norm) <= EPSILON:
            return Figure(FAILED, _ALL_ZERO.format(name=name))
    # nan stays nan: it is not greater than 1.
    similarity = compared.found.sums[PRODUCT]
    return _printed(1.0 if similarity > 1.0 else similarity)


def _accumulated_relative_error(compared: _Comparison) -> Figure:
    return _printed(old_accumulated_relative(compared.sides) if compared.is_old else compared.found.sums[RELATIVE])


def _relative_euclidean_distance(compared: _Comparison) -> Figure:
    found = compared.found
    if found.golden.norm <= EPSILON:
        return _printed(0.0)
    return _printed(np.sqrt(found.sums[SQUARES] / found.sums[GOLDEN_SQUARES]))


def _kullback_leibler_divergence(compared: _Comparison) -> Figure:
    if compared.is_old:
        plain = old_divergence(compared.sides, compared.found)
        return Figure("inf", _OLD_KL.format(golden=compared.names[1])) if np.isposinf(plain) else _printed(plain)
    number = kl_divergence(compared.sides, compared.found)
    return _printed(0.0 if abs(number) < EPSILON else number)


def _standard_deviation(compared: _Comparison) -> Figure:
    if not compared.count:
        return Figure("(nan;nan),(nan;nan)")
    sides = (compared.found.my, compared.found.golden)
    shown = [0.0 if abs(each) < SHOWN_DEVIATION else each for side in sides for each in (side.mean, side.deviation)]
    return Figure("({:.3f};{:.3f}),({:.3f};{:.3f})".format(*shown))


def _max_relative_error(compared: _Comparison) -> Figure:
    if compared.is_old:
        return _old_relative("MaxRelativeError", compared.old_relative[0], compared)
    return _printed(compared.found.largest_relative)


def _mean_relative_error(compared: _Comparison) -> Figure:
    if compared.is_old and compared.count:
        return _old_relative("MeanRelativeError", compared.mean(compared.old_relative[1]), compared)
    return _printed(compared.mean(compared.found.sums[RELATIVE]))


def _old_relative(name: str, number: np.float32, compared: _Comparison) -> Figure:
    if np.isnan(number):
        my, golden = compared.names
        return Figure(FAILED, _OLD_RELATIVE.format(name=name, my=my, golden=golden))
    return _printed(number)


FORMULAS: Mapping[str, Callable[[_Comparison], Figure]] = {
    "CosineSimilarity": _cosine_similarity,
    "MaxAbsoluteError": lambda compared: _printed(compared.found.largest),
    "AccumulatedRelativeError": _accumulated_relative_error,
    "RelativeEuclideanDistance": _relative_euclidean_distance,
    "KullbackLeiblerDivergence": _kullback_leibler_divergence,
    "StandardDeviation": _standard_deviation,
    "MeanAbsoluteError": lambda compared: _printed(compared.mean(compared.found.sums[APART])),
    "RootMeanSquareError": lambda compared: _printed(np.sqrt(compared.mean(compared.found.sums[SQUARES]))),
    "MaxRelativeError": _max_relative_error,
    "MeanRelativeError": _mean_relative_error,
}
ALGORITHMS = tuple(FORMULAS)
"""In the order of their columns."""
_OF_SOME = frozenset(("MaxAbsoluteError", "KullbackLeiblerDivergence", "MaxRelativeError"))
"""What needs an element at least."""


def _figure(name: str, compared: _Comparison, *, both_bool: bool) -> Figure:
    if both_bool and name == "RelativeEuclideanDistance" and not compared.is_old:
        return Figure(FAILED, _BOOL_SUBTRACTED)
    if both_bool and name not in ("CosineSimilarity", "RelativeEuclideanDistance"):
        return Figure(FAILED, _NO_BOOL.format(name=name))
    if name in _OF_SOME and not compared.count:
        return Figure(FAILED, _EMPTY.format(name=name))
    return FORMULAS[name](compared)


def msaccucmp_metrics(
    my: AnyArray,
    golden: AnyArray,
    *,
    names: tuple[str, str] = ("my", "golden"),
    generation: Generation = Generation.OF_2025,
    algorithms: Iterable[str] = ALGORITHMS,
    known: tuple[Spread, Spread] | None = None,
) -> dict[str, Figure]:
    """The figures of two arrays of equal size by algorithm; `names` stand in messages. SizesDifferError else.

    What is known of the sides already is not read from them again.
    """
    if my.size != golden.size:
        raise SizesDifferError(_SIZES.format(mine=my.size, theirs=golden.size, my=names[0], golden=names[1]))
    both_bool = my.dtype == np.bool_ and golden.dtype == np.bool_
    comparison = _Comparison(TwoSides.of(my, golden), names, generation is Generation.OF_2022, known)
    with np.errstate(all="ignore"):
        return {name: _figure(name, comparison, both_bool=both_bool) for name in algorithms}
