"""What msaccucmp computes of each pair of elements, in plain numpy: what the compiled kernels must equal to the bit.

All arithmetic is float32, as there. Results go to the rows of `work`, which numpy then adds up.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]

EPSILON = float(np.finfo(np.float64).eps)
"""What msaccucmp takes for zero."""
FLOOR = np.finfo(np.float32).eps
"""Below this no number falls in its KL divergence."""

APART, SQUARES, GOLDEN_SQUARES, RELATIVE = range(4)
PRODUCT, MY_SHARE, GOLDEN_SHARE = range(3)
MY_LOW, MY_WIDTH, GOLDEN_LOW, GOLDEN_WIDTH, MY_SCALE, GOLDEN_SCALE = range(6)
"""Of a plan: each side's range, and what its numbers (or shares) are divided by."""


def widen(part: AnyArray, out: Singles) -> Singles:
    """The part as float32."""
    return part if part.dtype == np.float32 else part.astype(np.float32)


def differences(my: Singles, golden: Singles, work: Singles) -> None:
    """|my - golden|, its square, golden's square, and |my / golden - 1|, which is 0 where golden is zero or nan."""
    apart, relative = work[APART], work[RELATIVE]
    np.subtract(my, golden, out=apart)
    np.abs(apart, out=apart)
    np.square(apart, out=work[SQUARES])
    np.square(golden, out=work[GOLDEN_SQUARES])
    np.divide(my, golden, out=relative)
    relative -= np.float32(1.0)
    np.abs(relative, out=relative)
    counted = np.abs(golden) > EPSILON
    if not counted.all():
        relative[~counted] = 0.0


def moments(part: Singles, shift: float) -> tuple[float, float]:
    """Sum and sum of squares of the part minus `shift`, in float64."""
    wide = part.astype(np.float64)
    wide -= shift
    return float(wide.sum()), float(np.dot(wide, wide))


def shares(my: Singles, golden: Singles, plan: Singles, work: Singles) -> None:
    """The product of both sides divided by their norms, and each side's numbers as shares of its range."""
    np.divide(my, plan[MY_SCALE], out=work[PRODUCT])
    np.divide(golden, plan[GOLDEN_SCALE], out=work[GOLDEN_SHARE])
    work[PRODUCT] *= work[GOLDEN_SHARE]
    _share(my, plan[MY_LOW], plan[MY_WIDTH], work[MY_SHARE])
    _share(golden, plan[GOLDEN_LOW], plan[GOLDEN_WIDTH], work[GOLDEN_SHARE])


def ratios(my: Singles, golden: Singles, plan: Singles, work: Singles) -> None:
    """Shares of my side divided by their sum, and in golden's place their ratio to golden's."""
    p, q = work[MY_SHARE], work[GOLDEN_SHARE]
    _share(my, plan[MY_LOW], plan[MY_WIDTH], p)
    _share(golden, plan[GOLDEN_LOW], plan[GOLDEN_WIDTH], q)
    p /= plan[MY_SCALE]
    q /= plan[GOLDEN_SCALE]
    np.divide(p, q, out=q)


def _share(part: Singles, low: np.float32, width: np.float32, out: Singles) -> None:
    """Mapped to 0..1, and raised to FLOOR; a side that is constant stays as it is."""
    if width == 0.0:
        np.maximum(part, FLOOR, out=out)
        return
    np.subtract(part, low, out=out)
    out /= width
    np.maximum(out, FLOOR, out=out)
