"""Tensors cut into tiles, and tiles joined to tensors, by the names of their axes.

An axis that is cut stands twice in a tiled layout: C is C1 tiles of C0 elements each, the last one padded with zeros.

Weights of convolutions as FRACTAL_Z has them, also of convolutions in groups.

The array is (c1 * h * w, n1, n0, c0). Of a convolution in groups, several groups share a tile, side by side along both
channels and filters, so that tiles are as full as can be; `e` of them, as CANN chooses it:
e = min(lcm(lcm(c, c0) / c, lcm(n, n0) / n), groups), c and n those of one group.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

AnyArray: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
Axes: TypeAlias = tuple[str, ...]

NC1HWC0: Axes = ("N", "C1", "H", "W", "C0")
NDC1HWC0: Axes = ("N", "D", "C1", "H", "W", "C0")
C1HWNC0: Axes = ("C1", "H", "W", "N", "C0")
FRACTAL_Z: Axes = ("C1", "H", "W", "N1", "N0", "C0")
"""The first three are one axis of the array."""
FRACTAL_Z_3D: Axes = ("D", "C1", "H", "W", "N1", "N0", "C0")
"""The first four are one axis of the array."""
FRACTAL_NZ: Axes = ("L", "K1", "M1", "M0", "K0")
"""A stack of matrices of M rows and K columns."""


def join(tiles: AnyArray, axes: Axes, layout: str) -> AnyArray:
    """The whole tensor, padding included, its axes in the order of `layout`."""
    order = [axes.index(part) for axis in layout for part in _parts(axes, axis)]
    sizes = padded_sizes(tiles.shape, axes)
    return _moved(tiles, order).reshape([sizes[axis] for axis in layout])


def _moved(tiles: AnyArray, order: Sequence[int]) -> AnyArray:
    """The axes in another order."""
    last = tiles.ndim - 1
    if order[-1] != last or not tiles.flags.c_contiguous or tiles.size == 0:
        return tiles.transpose(order)
    # The innermost axis stays: moving its bytes at once takes two thirds of the time.
    runs = tiles.view(np.dtype((np.void, tiles.shape[last] * tiles.itemsize)))[..., 0]
    return np.ascontiguousarray(runs.transpose(order[:-1])).view(tiles.dtype)


def cut(array: AnyArray, axes: Axes, layout: str, blocks: Mapping[str, int]) -> AnyArray:
    """A tensor in the order of `layout`, cut into tiles; `blocks` says how long a tile is along an axis."""
    padding, split = [], []
    for axis, size in zip(layout, array.shape, strict=True):
        block = blocks[axis] if f"{axis}0" in axes else 1
        tiles = -(-size // block)
        padding.append((0, tiles * block - size))
        split += [tiles, block] if f"{axis}0" in axes else [size]
    named = [part for axis in layout for part in _parts(axes, axis)]
    whole = np.pad(array, padding) if any(after for _, after in padding) else array
    return np.ascontiguousarray(whole.reshape(split).transpose([named.index(part) for part in axes]))


def padded_sizes(tiles: Sequence[int], axes: Axes) -> dict[str, int]:
    """How long each axis of the whole tensor is, padding included."""
    sizes: dict[str, int] = {}
    for part, size in zip(axes, tiles, strict=True):
        sizes[part[0]] = sizes.get(part[0], 1) * size
    return sizes


def fills(tiles: Sequence[int], axes: Axes, layout: str, shape: Shape) -> bool:
    """Whether a tensor of this shape is what these tiles hold: no tile is without an element of it."""
    if len(shape) != len(layout):
        return False
    sizes = padded_sizes(tiles, axes)
    blocks = {part[0]: size for part, size in zip(axes, tiles, strict=True) if part.endswith("0")}
    return all(0 <= sizes[axis] - size < blocks.get(axis, 1) for axis, size in zip(layout, shape, strict=True))


def _parts(axes: Axes, axis: str) -> tuple[str, ...]:
    return (f"{axis}1", f"{axis}0") if f"{axis}0" in axes else (axis,)


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
