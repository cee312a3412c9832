"""Attention scores beside their masks: what is masked drowns everything else.

Networks add -10000 and less to what is to be left out. float16 rounds such numbers to steps of 8, which is more than
most scores are; a softmax makes 0 of them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]

MASK, SCORES = -4096.0, 256.0
"""What is masked is less than the one, all else smaller than the other: scores have two digits, masks five and more."""


def may_be_masked(least: float | None, most: float | None) -> bool:
    """Whether a tensor of this range may be scores with a mask."""
    return least is not None and most is not None and least <= MASK and most < SCORES


def attention_mask(reference: AnyArray, target: AnyArray) -> NDArray[np.bool_] | None:
    """Which elements are masked on both sides; none if that is not all that is far away.

    Nor if all of a row is masked: what a softmax makes of that depends on how the mask was rounded.
    """
    masked: NDArray[np.bool_] = np.asarray(reference <= MASK, dtype=np.bool_)
    if not masked.ndim or not np.array_equal(masked, target <= MASK) or not masked.any() or masked.all(axis=-1).any():
        return None
    smaller = all(bool(np.all(np.abs(side[~masked]) < SCORES)) for side in (reference, target))
    return masked if smaller else None
