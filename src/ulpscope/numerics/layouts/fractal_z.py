"""Weights of convolutions as FRACTAL_Z has them, also of convolutions in groups.

The array is (c1 * h * w, n1, n0, c0). Of a convolution in groups, several groups share a tile, side by side along both
channels and filters, so that tiles are as full as can be; `e` of them, as CANN chooses it:
e = min(lcm(lcm(c, c0) / c, lcm(n, n0) / n), groups), c and n those of one group.
"""

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.layouts.tiles import FRACTAL_Z, cut, join

AnyArray: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]


def groups_in_tile(*, channels: int, filters: int, groups: int, c0: int, n0: int) -> int:
    """How many groups share a tile; channels and filters are those of one group."""
    if groups == 1 or not channels or not filters:
        return 1
    return min(math.lcm(math.lcm(channels, c0) // channels, math.lcm(filters, n0) // filters), groups)


def grouped_shape(nchw: Shape, *, groups: int, c0: int, n0: int) -> Shape:
    """The shape of the FRACTAL_Z array of a weight (filters of all groups, channels of one, h, w)."""
    filters, channels, height, width = nchw
    filters //= groups
    shared = groups_in_tile(channels=channels, filters=filters, groups=groups, c0=c0, n0=n0)
    sets, c1, n1 = -(-groups // shared), -(-shared * channels // c0), -(-shared * filters // n0)
    return (sets * c1 * height * width, n1, n0, c0)


def join_groups(tiles: AnyArray, nchw: Shape, *, groups: int) -> AnyArray:
    """The NCHW weight of a convolution in groups; `tiles` has the shape that `grouped_shape` says."""
    _, _, n0, c0 = tiles.shape
    filters, channels, height, width = nchw
    filters //= groups
    shared = groups_in_tile(channels=channels, filters=filters, groups=groups, c0=c0, n0=n0)
    sets = tiles.reshape(-(-groups // shared), -1, height, width, *tiles.shape[1:])
    weight = np.empty(nchw, tiles.dtype)
    for group in range(groups):
        place = group % shared
        if place == 0:
            whole = join(sets[group // shared], FRACTAL_Z, "NCHW")
        weight[group * filters : (group + 1) * filters] = whole[
            place * filters : (place + 1) * filters, place * channels : (place + 1) * channels
        ]
    return weight


def cut_groups(weight: AnyArray, *, groups: int, c0: int, n0: int) -> AnyArray:
    """An NCHW weight of a convolution in groups as FRACTAL_Z tiles."""
    filters, channels, height, width = weight.shape
    filters //= groups
    shared = groups_in_tile(channels=channels, filters=filters, groups=groups, c0=c0, n0=n0)
    sets = []
    for first in range(0, groups, shared):
        whole = np.zeros((shared * filters, shared * channels, height, width), weight.dtype)
        for place, group in enumerate(range(first, min(first + shared, groups))):
            part = weight[group * filters : (group + 1) * filters]
            whole[place * filters : (place + 1) * filters, place * channels : (place + 1) * channels] = part
        sets.append(cut(whole, FRACTAL_Z, "NCHW", {"C": c0, "N": n0}))
    return np.concatenate(sets).reshape(grouped_shape(weight.shape, groups=groups, c0=c0, n0=n0))
