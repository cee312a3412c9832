"""Windows that move over a picture, and where they may stand if no attribute tells it; pooling; sums of products:
matrices, fully connected layers, convolutions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import product

import numpy as np

from ulpscope.numerics.dtypes import Shape
from ulpscope.records.checks import Rule
from ulpscope.replay.ascend.defining import (
    Array,
    Defined,
    Definition,
    Definitions,
    Operand,
    Operands,
    Setting,
    along,
    as_picture,
    as_result,
    in_order,
    one,
)
from ulpscope.replay.recorded import CannotReplayError

SAME, VALID = "SAME", "VALID"
Pair = tuple[int, int]

MOST_GEOMETRIES = 64
"""That are tried: a window of 7 x 7 has 49."""
REACH = 64
"""How far a window may reach beyond its picture. Real ones stay below; a damaged number could ask for any padding."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Heights, then widths."""

    size: Pair
    stride: Pair
    dilation: Pair
    before: Pair
    """Padding above and to the left."""
    count: Pair
    """Positions of the window: the picture that comes out."""


def spatial(numbers: Shape, layout: str) -> Pair:
    """Height and width of a list that has a number for each axis."""
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    if len(numbers) == 4 and len(layout) == 4:
        return numbers[layout.index("H")], numbers[layout.index("W")]
    raise CannotReplayError(f"an attribute has {len(numbers)} numbers for a picture")


def windows(setting: Setting, size: Pair, picture: Pair, layout: str) -> Windows:
    """Of a picture of this height and width."""
    dilation = _dilation(setting, size, picture, layout)
    stride = spatial(setting.integers("strides"), layout)
    if min(*stride, *dilation) < 1:
        raise CannotReplayError(f"its stride is {list(stride)}, its dilation {list(dilation)}")
    pads = setting.attributes.get("pads")
    if not isinstance(pads, tuple) or len(pads) != 4:
        return _padded(setting.text("padding"), size, stride, dilation, picture)
    top, bottom, left, right = setting.integers("pads")
    if not 0 <= min(top, bottom, left, right) <= max(top, bottom, left, right) <= REACH + max(picture):
        raise CannotReplayError(f"its attribute pads is {[top, bottom, left, right]}")
    count = _counts(size, stride, dilation, (picture[0] + top + bottom, picture[1] + left + right))
    return Windows(size, stride, dilation, (top, left), count)


def geometries(setting: Setting, size: Pair, picture: Pair, layout: str) -> list[Setting]:
    """The setting; if it has no strides, with every stride and padding that make the device's result of the picture."""
    if "strides" in setting.attributes:
        return [setting]
    dilation = _dilation(setting, size, picture, layout)
    form = setting.results[0]
    order = form.layout if len(form.layout) == len(form.shape) and "C" in form.layout else layout
    if len(form.shape) != len(order):
        raise CannotReplayError("the graph does not tell its attribute strides")
    result = form.shape[order.index("H")], form.shape[order.index("W")]
    told = [_along_axis(*each) for each in zip(size, dilation, picture, result, strict=True)]
    if not 0 < len(told[0]) * len(told[1]) <= MOST_GEOMETRIES:
        raise CannotReplayError("the graph does not tell its attribute strides")
    return [
        replace(setting, attributes={**setting.attributes, "strides": (down, right), "pads": (*rows, *columns)})
        for (down, *rows), (right, *columns) in product(*told)
    ]


def _along_axis(length: int, spacing: int, whole: int, count: int) -> list[tuple[int, int, int]]:
    """Every stride and padding before and behind, less than the window is long, that make so many positions."""
    reach = (length - 1) * spacing
    found: dict[Pair, tuple[int, int, int]] = {}
    for step in _steps(whole, reach, count):
        for before, behind in product(range(min(reach, REACH) + 1), repeat=2):
            if whole + before + behind > reach and (whole + before + behind - reach - 1) // step + 1 == count:
                found.setdefault((step, before), (step, before, behind))
        if len(found) > MOST_GEOMETRIES:
            break
    return list(found.values())


def _steps(whole: int, reach: int, count: int) -> range:
    """Strides that may make so many positions; all are the same if there is one only."""
    if count < 2:
        return range(whole + reach + 1, whole + reach + 2)
    return range(max((whole - reach - 1) // count, 1), (whole + reach) // (count - 1) + 1)


def _dilation(setting: Setting, size: Pair, picture: Pair, layout: str) -> Pair:
    dilation = spatial(setting.integers("dilations", (1, 1)), layout)
    if any(
        (length - 1) * spacing > whole + REACH for length, spacing, whole in zip(size, dilation, picture, strict=True)
    ):
        raise CannotReplayError("its window is larger than the picture")
    return dilation


def _padded(padding: str, size: Pair, stride: Pair, dilation: Pair, picture: Pair) -> Windows:
    if padding == VALID:
        return Windows(size, stride, dilation, (0, 0), _counts(size, stride, dilation, picture))
    if padding != SAME:
        raise CannotReplayError(f"its attribute padding is {padding:.20}")
    count = -(-picture[0] // stride[0]), -(-picture[1] // stride[1])
    needed = [
        max((number - 1) * step + (length - 1) * spacing + 1 - whole, 0)
        for number, step, length, spacing, whole in zip(count, stride, size, dilation, picture, strict=True)
    ]
    return Windows(size, stride, dilation, (needed[0] // 2, needed[1] // 2), count)


def _counts(size: Pair, stride: Pair, dilation: Pair, padded: Pair) -> Pair:
    counts = [
        (whole - (length - 1) * spacing - 1) // step + 1
        for whole, length, spacing, step in zip(padded, size, dilation, stride, strict=True)
    ]
    if min(counts) < 0:
        raise CannotReplayError("its window is larger than the picture")
    return counts[0], counts[1]


def views(array: Array, where: Windows, *, fill: float) -> Iterator[tuple[int, int, Array]]:
    """Of an NHWC picture: row and column of each element of the window, and what it meets at all its positions."""
    # How far each element reaches, and what lies below the last.
    down, right = ((number - 1) * step + 1 for number, step in zip(where.count, where.stride, strict=True))
    below = [
        max(reach + (length - 1) * spacing - whole - before, 0)
        for reach, length, spacing, whole, before in zip(
            (down, right), where.size, where.dilation, array.shape[1:3], where.before, strict=True
        )
    ]
    padding = ((0, 0), (where.before[0], below[0]), (where.before[1], below[1]), (0, 0))
    whole = np.pad(array, padding, constant_values=fill)
    for row, column in np.ndindex(where.size):
        top, left = row * where.dilation[0], column * where.dilation[1]
        yield row, column, whole[:, top : top + down : where.stride[0], left : left + right : where.stride[1]]


def _max_pool(operands: Operands, setting: Setting) -> Defined:
    picture, x, where = _windows(operands, setting)
    met = (view for _, _, view in views(x, where, fill=-np.inf))
    return one(as_result(reduce(np.maximum, met), picture, setting))


def _average_pool(operands: Operands, setting: Setting) -> Defined:
    """Padding is not counted."""
    picture, x, where = _windows(operands, setting)
    total = _total(x, where)
    inside = _total(np.ones((1, *x.shape[1:3], 1)), where)
    length = float(where.size[0] * where.size[1])
    return one(as_result(total / inside, picture, setting), length=length)


def _windows(operands: Operands, setting: Setting) -> tuple[Operand, Array, Windows]:
    picture = as_picture(operands[0], setting)
    x = in_order(picture, "NHWC")
    size = spatial(setting.integers("ksize"), picture.layout)
    return picture, x, windows(setting, size, (x.shape[1], x.shape[2]), picture.layout)


def _total(x: Array, where: Windows) -> Array:
    return reduce(np.add, (view for _, _, view in views(x, where, fill=0.0)))


_NO_OFFSET = ("offset_x", 0)
"""Quantised products subtract it; they are not defined here."""


def _product(flags: Sequence[tuple[str, str]], operands: Operands, setting: Setting) -> Defined:
    """`flags`: of each matrix, the names of what says that it is transposed."""
    setting.need(*_NO_OFFSET)
    first, second = (
        np.swapaxes(operand.array, -1, -2) if setting.flag(*names) and operand.array.ndim > 1 else operand.array
        for operand, names in zip(operands[:2], flags, strict=True)
    )
    if min(first.ndim, second.ndim) < 2 or first.shape[-1] != second.shape[-2]:
        raise CannotReplayError(f"matrices of {list(first.shape)} and {list(second.shape)} have no product")
    stack = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    setting.expect((*stack, first.shape[-2], second.shape[-1]))
    result = np.matmul(first, second)
    if len(operands) > 2:
        result += operands[2].array.ravel()
    return one(result, length=float(first.shape[-1]))


def _fully_connected(operands: Operands, setting: Setting) -> Defined:
    """A picture is one row of numbers, in the order NCHW; weights are a row a result."""
    setting.need("axis", 1)
    setting.need("transpose", False)
    setting.need(*_NO_OFFSET)
    rows = [in_order(each, "NCHW") if each.array.ndim == 4 else each.array for each in operands[:2]]
    x, weight = (array.reshape(array.shape[0], -1) for array in rows)
    if x.shape[-1] != weight.shape[-1]:
        raise CannotReplayError(f"its weight is {list(weight.shape)} for rows of {x.shape[-1]}")
    setting.expect((x.shape[0], weight.shape[0]))
    result = x @ weight.T
    if len(operands) > 2:
        result += operands[2].array.ravel()
    return one(result.reshape(setting.results[0].shape), length=float(x.shape[-1]))


def _conv2d(operands: Operands, setting: Setting) -> Defined:
    setting.need(*_NO_OFFSET)
    picture, x, weight = _picture_and_weight(operands, setting)
    groups = setting.integer("groups", 1)
    if groups < 1 or weight.shape[2] * groups != x.shape[3] or weight.shape[3] % groups:
        raise CannotReplayError(f"its weight is {list(weight.shape)} for {x.shape[3]} channels in {groups} groups")
    where = windows(setting, (weight.shape[0], weight.shape[1]), (x.shape[1], x.shape[2]), picture.layout)
    setting.expect((x.shape[0], *where.count, weight.shape[3]))
    inner, outer = weight.shape[2], weight.shape[3] // groups
    result = np.zeros((x.shape[0], *where.count, weight.shape[3]))
    for row, column, view in views(x, where, fill=0.0):
        for group in range(groups):
            part = slice(group * outer, (group + 1) * outer)
            result[..., part] += view[..., group * inner : (group + 1) * inner] @ weight[row, column][:, part]
    if len(operands) > 2:
        result += along(operands[2].array.ravel(), 3, 4)
    length = float(weight.shape[0] * weight.shape[1] * inner)
    return one(as_result(result, picture, setting), length=length)


def _picture_and_weight(operands: Operands, setting: Setting) -> tuple[Operand, Array, Array]:
    picture = as_picture(operands[0], setting)
    if operands[1].array.ndim != 4 or "N" not in operands[1].layout:
        raise CannotReplayError("the order of its weight's axes is not known")
    return picture, in_order(picture, "NHWC"), in_order(operands[1], "HWCN")


def _conv2d_readings(operands: Operands, setting: Setting) -> Sequence[Setting]:
    picture, x, weight = _picture_and_weight(operands, setting)
    return geometries(setting, (weight.shape[0], weight.shape[1]), (x.shape[1], x.shape[2]), picture.layout)


_MATRICES = (("transpose_x1", "transpose_a"), ("transpose_x2", "transpose_b"))
_STACKS = (("adj_x1", "adj_x"), ("adj_x2", "adj_y"))

DEFINITIONS: Definitions = {
    "MaxPool": Definition(_max_pool, least=1, most=1, rule=Rule.EXACT),
    "AvgPool": Definition(_average_pool, least=1, most=1),
    "MatMul": Definition(partial(_product, _MATRICES), least=2, most=3, multiplies=True),
    "MatMulV2": Definition(partial(_product, _MATRICES), least=2, most=3, multiplies=True),
    "BatchMatMul": Definition(partial(_product, _STACKS), least=2, most=2, multiplies=True),
    "BatchMatMulV2": Definition(partial(_product, _STACKS), least=2, most=3, multiplies=True),
    "FullyConnection": Definition(_fully_connected, least=2, most=3, multiplies=True),
    "Conv2D": Definition(_conv2d, least=2, most=3, multiplies=True, readings=_conv2d_readings),
}
