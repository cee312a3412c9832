"""What msaccucmp adds up over pairs of elements, in plain numpy: what the compiled kernels must equal to the bit.

All arithmetic is float32, as there, but in `moments`.
"""

import numpy as np

from ulpscope.numerics.dtypes import AnyArray, Singles

EPSILON = float(np.finfo(np.float64).eps)
"""What msaccucmp takes for zero."""
FLOOR = np.finfo(np.float32).eps
"""Below this no number falls in its KL divergence."""

AT_ONCE = 1 << 15
"""Numbers of which what is computed fits a core's own cache."""

MY_LOW, MY_WIDTH, GOLDEN_LOW, GOLDEN_WIDTH, MY_SCALE, GOLDEN_SCALE = range(6)
"""Of a plan: each side's range, and what its numbers (or shares) are divided by."""
APART, SQUARES, GOLDEN_SQUARES, RELATIVE, PRODUCT, MY_SHARE, GOLDEN_SHARE = range(7)
"""Of sums."""
SUMS = 7


def readable(part: AnyArray, memory: Singles) -> AnyArray:
    """The part as the functions below take it: float32. `memory` is for those who compute in place."""
    return part if part.dtype == np.float32 else part.astype(np.float32)


def moments(part: AnyArray, shift: float) -> tuple[float, float]:
    """Sum and sum of squares of the part minus `shift`, in float64."""
    wide = part.astype(np.float64)
    wide -= shift
    return float(wide.sum()), float(np.dot(wide, wide))


def sums(my: AnyArray, golden: AnyArray, plan: Singles) -> tuple[Singles, Singles]:
    """Sums of |my - golden|, its square, golden's square, |my / golden - 1| (0 where golden is zero or nan), both sides
    divided by their scales and multiplied, and each side's shares; then the largest of the first and of the fourth."""
    apart = np.abs(my - golden)
    relative = np.abs(my / golden - np.float32(1.0))
    relative[~(np.abs(golden) > EPSILON)] = 0.0
    product = (my / plan[MY_SCALE]) * (golden / plan[GOLDEN_SCALE])
    rows = (apart, np.square(apart), np.square(golden), relative, product, *_shares(my, golden, plan))
    return np.array([row.sum() for row in rows]), np.array([apart.max(), relative.max()])


def divergence(my: AnyArray, golden: AnyArray, plan: Singles, memory: Singles) -> np.float32:
    """Sum of p * ln(p / q), p and q being the sides' shares divided by their scales."""
    p, q = _shares(my, golden, plan)
    p /= plan[MY_SCALE]
    q /= plan[GOLDEN_SCALE]
    return np.float32((p * np.log(p / q)).sum())


def _shares(my: AnyArray, golden: AnyArray, plan: Singles) -> tuple[Singles, Singles]:
    return _share(my, plan[MY_LOW], plan[MY_WIDTH]), _share(golden, plan[GOLDEN_LOW], plan[GOLDEN_WIDTH])


def _share(part: AnyArray, low: np.float32, width: np.float32) -> Singles:
    """Mapped to 0..1, and raised to FLOOR."""
    shares: Singles = np.maximum((part - low) / width, FLOOR)
    return shares
