"""Strided arrays in row-major order, box by box.

What lies together in memory is read together: elements are first copied in the order in which they lie, and put into
row-major order within that copy, which a cache holds. Copied at once, each of them would fetch a cache line of its own.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
Shape = tuple[int, ...]


def boxes(shape: Shape, most: int) -> Iterator[tuple[slice, ...]]:
    """Parts of at most `most` elements, in row-major order: one index of each leading axis, some of the next one, all
    of the rest, so that each is a range of flat indices."""
    if 0 in shape:
        return
    axis, inner = len(shape) - 1, 1
    while axis > 0 and inner * shape[axis] <= most:
        inner *= shape[axis]
        axis -= 1
    step = max(most // inner, 1)
    rest = tuple(slice(0, size) for size in shape[axis + 1 :])
    for leading in np.ndindex(*shape[:axis]):
        lead = tuple(slice(place, place + 1) for place in leading)
        for start in range(0, shape[axis], step):
            yield (*lead, slice(start, min(start + step, shape[axis])), *rest)


class Packer:
    """Memory for one box, used again for every box: pages that are new cost more than the copy."""

    def __init__(self, dtype: np.dtype[Any], most: int) -> None:
        self._as_it_lies, self._in_order = np.empty(most, dtype), np.empty(most, dtype)

    def packed(self, part: AnyArray) -> AnyArray:
        """Its elements in row-major order; valid until the next call."""
        if part.flags.c_contiguous:
            return part.reshape(-1)
        axes = np.argsort([-abs(stride) for stride in part.strides], kind="stable")
        lying = part.transpose(axes)
        copied = self._as_it_lies[: part.size].reshape(lying.shape)
        np.copyto(copied, lying)
        ordered = self._in_order[: part.size]
        np.copyto(ordered.reshape(part.shape), copied.transpose(np.argsort(axes)))
        return ordered
