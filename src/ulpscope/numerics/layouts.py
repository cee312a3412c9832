"""Orders in which a tensor's elements lie: the plain ones (NCHW, NHWC, ...) and the tiled ones of Ascend devices.

    convert_layout(array, Conversion("NC1HWC0", "NHWC", shape=(2, 12, 12, 6)))      tiles joined, padding taken off
    convert_layout(array, Conversion("NHWC", "NC1HWC0", block=Block(c0=16)))        and back

Tiles are as large as the array's own shape says: their size depends on the element type and the device.

An axis that is cut stands twice in a tiled layout: C is C1 tiles of C0 elements each, the last one padded with zeros.

Weights of convolutions as FRACTAL_Z: the array is (c1 * h * w, n1, n0, c0). Of a convolution in groups, several groups
share a tile, side by side along both channels and filters, so that tiles are as full as can be; `e` of them, as CANN
chooses it: e = min(lcm(lcm(c, c0) / c, lcm(n, n0) / n), groups), c and n those of one group.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ulpscope.numerics.dtypes import AnyArray, Shape
from ulpscope.records.errors import UlpscopeError

Axes: TypeAlias = tuple[str, ...]

IMAGES = ("NCHW", "NHWC", "HWCN", "CHWN")
VOLUMES = ("NCDHW", "NDHWC", "DHWCN", "DHWNC")
_AXES: dict[str, Axes] = {
    "NC1HWC0": ("N", "C1", "H", "W", "C0"),
    "NC1HWC0_C04": ("N", "C1", "H", "W", "C0"),
    "C1HWNC0": ("C1", "H", "W", "N", "C0"),
    "NDC1HWC0": ("N", "D", "C1", "H", "W", "C0"),
    "FRACTAL_Z": ("C1", "H", "W", "N1", "N0", "C0"),
    "FRACTAL_Z_3D": ("D", "C1", "H", "W", "N1", "N0", "C0"),
}
_FOLDED = {"FRACTAL_Z": 3, "FRACTAL_Z_3D": 4}
"""How many of a layout's axes are the first axis of its arrays."""
_MATRIX_AXES: Axes = ("L", "K1", "M1", "M0", "K0")
"""A stack of matrices of M rows and K columns."""
_MATRIX, _ANY = "FRACTAL_NZ", "ND"
_IN_GROUPS_UNKNOWN = "FRACTAL_Z_3D"
TILED = (*_AXES, _MATRIX)
LAYOUTS = (_ANY, *IMAGES, *VOLUMES, *TILED)
"""All that are known here."""

BLOCK = 16
"""Edge of a tile of float16 elements; other types have 8 or 32 along the inner axis."""


@dataclass(frozen=True, slots=True)
class Block:
    """The size of new tiles: c0 along channels or columns, n0 along filters or rows."""

    c0: int = BLOCK
    n0: int = BLOCK


@dataclass(frozen=True, slots=True)
class Conversion:
    """From which layout to which."""

    source: str
    target: str
    shape: Shape | None = None
    """Of the result, if that is a plain layout; what is beyond it is padding. None keeps the padding."""
    groups: int = 1
    """Of a convolution whose weight this is."""
    block: Block = Block()


Converter: TypeAlias = Callable[[AnyArray, Conversion], AnyArray]
Converters: TypeAlias = Mapping[tuple[str, str], Converter]
"""By source and target."""


def convert_layout(array: AnyArray, wanted: Conversion, own: Converters | None = None) -> AnyArray:
    """The same tensor in another layout; converters of the user's `own` come before those that are known here."""
    converter = (own or {}).get((wanted.source, wanted.target)) or _built_in(wanted.source, wanted.target)
    if converter is None:
        raise UlpscopeError(
            f"no way from {wanted.source} to {wanted.target} is known",
            expected=f"one of {', '.join(TILED)} and a plain layout with the same axes",
            next_step="name another layout, or a converter of your own: --converter convert_A_to_B.py",
        )
    return converter(array, wanted)


def plain_layouts(source: str, tiles: Shape, shape: Shape, *, groups: int = 1) -> list[str]:
    """The plain layouts in which a tensor of this shape would fill a tiled array of the shape `tiles`."""
    if source == _MATRIX:
        return [_ANY] if _fills_matrix(tiles, shape) else []
    if source not in _AXES:
        return []
    family = VOLUMES if "D" in _AXES[source] else IMAGES
    return [layout for layout in family if _fills(source, tiles, layout, shape, groups)]


def permuted_shape(shape: Shape, source: str, target: str) -> Shape:
    """The shape of a tensor in another plain layout with the same axes."""
    return tuple(shape[source.index(axis)] for axis in target)


def is_plain(layout: str) -> bool:
    """Whether the elements lie in rows, without tiles."""
    return layout == _ANY or layout in IMAGES or layout in VOLUMES


def _built_in(source: str, target: str) -> Converter | None:
    if source == _MATRIX and is_plain(target):
        return _from_matrix
    if target == _MATRIX and is_plain(source):
        return _to_matrix
    for family in (IMAGES, VOLUMES):
        if source in family and target in family:
            return _permute
        if source in _AXES and target in family and _same_axes(source, target):
            return _from_tiles
        if target in _AXES and source in family and _same_axes(target, source):
            return _to_tiles
    return None


def _same_axes(tiled: str, plain: str) -> bool:
    return {part[0] for part in _AXES[tiled]} == set(plain)


def _permute(array: AnyArray, wanted: Conversion) -> AnyArray:
    source, target = wanted.source, wanted.target
    if array.ndim != len(source):
        raise bad_shape(f"{source} has {len(source)} axes, the tensor is {list(array.shape)}")
    permuted = array.transpose([source.index(axis) for axis in target])
    if wanted.shape is not None and wanted.shape != permuted.shape:
        raise bad_shape(f"{source} {list(array.shape)} is {target} {list(permuted.shape)}, not {list(wanted.shape)}")
    return permuted


def _from_tiles(array: AnyArray, wanted: Conversion) -> AnyArray:
    source, target, shape = wanted.source, wanted.target, wanted.shape
    if _in_groups(source, wanted.groups):
        return _from_groups(array, wanted)
    tiles = array.reshape(_unfolded(source, array.shape, target, shape))
    if shape is not None and not fills(tiles.shape, _AXES[source], target, shape):
        raise bad_shape(f"{source} {list(array.shape)} as {target} {list(shape)}")
    whole = join(tiles, _AXES[source], target)
    return whole if shape is None else whole[tuple(slice(size) for size in shape)]


def _in_groups(tiled: str, groups: int) -> bool:
    """Whether groups share tiles. How those of volumes do is not known, and a shape alone does not show it."""
    if groups > 1 and tiled == _IN_GROUPS_UNKNOWN:
        raise UlpscopeError(
            f"{tiled} of {groups} groups is not known",
            expected="one group, or FRACTAL_Z",
            next_step="take it as it lies on the device, or name a converter of your own: --converter FILE",
        )
    return groups > 1 and tiled == "FRACTAL_Z"


def _from_groups(array: AnyArray, wanted: Conversion) -> AnyArray:
    shape = wanted.shape
    if shape is None or not _fills("FRACTAL_Z", array.shape, wanted.target, shape, wanted.groups):
        raise bad_shape(f"FRACTAL_Z {list(array.shape)} of {wanted.groups} groups as {wanted.target} {_listed(shape)}")
    weight = join_groups(array, permuted_shape(shape, wanted.target, "NCHW"), groups=wanted.groups)
    return _permute(weight, replace(wanted, source="NCHW"))


def _to_tiles(array: AnyArray, wanted: Conversion) -> AnyArray:
    source, target, block = wanted.source, wanted.target, wanted.block
    if array.ndim != len(source):
        raise bad_shape(f"{source} has {len(source)} axes, the tensor is {list(array.shape)}")
    if _in_groups(target, wanted.groups):
        weight = array.transpose([source.index(axis) for axis in "NCHW"])
        if weight.shape[0] % wanted.groups:
            raise bad_shape(f"{weight.shape[0]} filters in {wanted.groups} groups")
        return cut_groups(weight, groups=wanted.groups, c0=block.c0, n0=block.n0)
    tiles = cut(array, _AXES[target], source, {"C": block.c0, "N": block.n0})
    folded = _FOLDED.get(target, 0)
    return tiles.reshape(math.prod(tiles.shape[:folded]), *tiles.shape[folded:]) if folded else tiles


def _unfolded(source: str, tiles: Shape, target: str, shape: Shape | None) -> Shape:
    """One length an axis, where an array has several axes in one: those of the picture are known from its shape."""
    axes, folded = _AXES[source], _FOLDED.get(source, 0)
    if len(tiles) != len(axes) - max(folded - 1, 0):
        raise bad_shape(f"{source} has {len(axes) - max(folded - 1, 0)} axes, the tensor is {list(tiles)}")
    if not folded:
        return tiles
    if shape is None or len(shape) != len(target):
        raise bad_shape(f"{source} {list(tiles)} as {target} {_listed(shape)}")
    known = {axis: size for axis, size in zip(target, shape, strict=True) if axis in "DHW"}
    area = math.prod(known.values())
    if area == 0 or tiles[0] % area:
        raise bad_shape(f"{source} {list(tiles)} as {target} {list(shape)}")
    return (*(known.get(axis, tiles[0] // area) for axis in axes[:folded]), *tiles[1:])


def _fills(source: str, tiles: Shape, layout: str, shape: Shape, groups: int) -> bool:
    if len(shape) != len(layout) or not _same_axes(source, layout):
        return False
    if groups > 1 and source == _IN_GROUPS_UNKNOWN:
        return False
    if _in_groups(source, groups):
        nchw = permuted_shape(shape, layout, "NCHW")
        fits = len(tiles) == 4 and min(tiles) > 0 and nchw[0] % groups == 0
        return fits and tiles == grouped_shape(nchw, groups=groups, c0=tiles[3], n0=tiles[2])
    try:
        whole = _unfolded(source, tiles, layout, shape)
    except UlpscopeError:
        return False
    return fills(whole, _AXES[source], layout, shape)


def _from_matrix(array: AnyArray, wanted: Conversion) -> AnyArray:
    """FRACTAL_NZ: (..., k1, m1, m0, k0) as (..., m, k)."""
    if array.ndim < 4:
        raise bad_shape(f"FRACTAL_NZ has at least 4 axes, the tensor is {list(array.shape)}")
    if wanted.shape is not None and not _fills_matrix(array.shape, wanted.shape):
        raise bad_shape(f"FRACTAL_NZ {list(array.shape)} as {wanted.target} {list(wanted.shape)}")
    stack = array.reshape(math.prod(array.shape[:-4]), *array.shape[-4:])
    whole = join(stack, _MATRIX_AXES, "LMK")
    if wanted.shape is None:
        return whole.reshape(*array.shape[:-4], *whole.shape[1:])
    rows, columns = _matrix(wanted.shape)
    return whole[:, :rows, :columns].reshape(wanted.shape)


def _to_matrix(array: AnyArray, wanted: Conversion) -> AnyArray:
    if array.ndim == 0:
        raise bad_shape("a scalar has no rows and columns")
    lead = array.shape[:-2]
    stack = array.reshape(math.prod(lead), *_matrix(array.shape))
    tiles = cut(stack, _MATRIX_AXES, "LMK", {"M": wanted.block.n0, "K": wanted.block.c0})
    return tiles.reshape(*lead, *tiles.shape[1:])


def _matrix(shape: Shape) -> tuple[int, int]:
    """Rows and columns; a vector is one row."""
    return (shape[-2] if len(shape) > 1 else 1), shape[-1]


def _fills_matrix(tiles: Shape, shape: Shape) -> bool:
    if len(tiles) < 4 or not shape or math.prod(tiles[:-4]) != math.prod(shape[:-2]):
        return False
    return fills((1, *tiles[-4:]), _MATRIX_AXES, "LMK", (1, *_matrix(shape)))


def _listed(shape: Shape | None) -> str:
    return "without a shape" if shape is None else str(list(shape))


def bad_shape(problem: str) -> UlpscopeError:
    """A tensor that does not have the shape of its layout, or not the one that was asked for."""
    return UlpscopeError(
        problem,
        expected="a shape that the tensor fills, padding aside",
        next_step="give the right one with --shape, in the order of the layout that is asked for",
    )


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
            whole = join(sets[group // shared], _AXES["FRACTAL_Z"], "NCHW")
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
        sets.append(cut(whole, _AXES["FRACTAL_Z"], "NCHW", {"C": c0, "N": n0}))
    return np.concatenate(sets).reshape(grouped_shape(weight.shape, groups=groups, c0=c0, n0=n0))
