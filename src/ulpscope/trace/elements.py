"""Picks elements of a saved value, with their indices."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = tuple[int, ...]


def pick_elements(array: NDArray[Any], count: int | None) -> tuple[tuple[Index, ...], NDArray[Any]]:
    """The first and last elements in row-major order, `count` in all, or every one."""
    if count is None or count >= array.size:
        places = np.arange(array.size)
    else:
        head = (count + 1) // 2
        places = np.concatenate([np.arange(head), np.arange(array.size - (count - head), array.size)])
    coordinates = np.unravel_index(places, array.shape) if array.ndim else ()
    picked = array[coordinates] if array.ndim else array.reshape(1)[places]
    indices = tuple(tuple(map(int, index)) for index in zip(*coordinates, strict=True)) if array.ndim else ((),)
    return indices[: len(places)], picked
