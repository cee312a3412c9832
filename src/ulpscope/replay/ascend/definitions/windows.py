"""Windows that move over a picture: where they stand, where they may stand if no attribute tells it; pooling."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product

import numpy as np

from ulpscope.records.checks import Rule
from ulpscope.replay.ascend.defining import (
    Array,
    Defined,
    Definition,
    Definitions,
    Operand,
    Setting,
    Shape,
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
    told = [_along_axis(*each) for each in zip(size, dilation, picture, _result(setting, layout), strict=True)]
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


def _result(setting: Setting, layout: str) -> Pair:
    form = setting.results[0]
    order = form.layout if len(form.layout) == len(form.shape) and "C" in form.layout else layout
    if len(form.shape) != len(order):
        raise CannotReplayError("the graph does not tell its attribute strides")
    return form.shape[order.index("H")], form.shape[order.index("W")]


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


def views(array: Array, where: Windows, *, fill: float) -> list[list[Array]]:
    """Of an NHWC picture: for each row and column of the window, what it meets at all its positions."""
    height, width = array.shape[1:3]
    ends = [
        (number - 1) * step + (length - 1) * spacing + 1
        for number, step, length, spacing in zip(where.count, where.stride, where.size, where.dilation, strict=True)
    ]
    below = [
        max(end - whole - before, 0) for end, whole, before in zip(ends, (height, width), where.before, strict=True)
    ]
    padding = ((0, 0), (where.before[0], below[0]), (where.before[1], below[1]), (0, 0))
    whole = np.pad(array, padding, constant_values=fill)
    return [[_view(whole, where, row, column) for column in range(where.size[1])] for row in range(where.size[0])]


def _view(whole: Array, where: Windows, row: int, column: int) -> Array:
    top, left = row * where.dilation[0], column * where.dilation[1]
    (rows, columns), (down, right) = where.count, where.stride
    view: Array = whole[:, top : top + (rows - 1) * down + 1 : down, left : left + (columns - 1) * right + 1 : right]
    return view


def _max_pool(operands: Sequence[Operand], setting: Setting) -> Defined:
    picture, x, where = _windows(operands, setting)
    met = (view for row in views(x, where, fill=-np.inf) for view in row)
    return one(as_result(reduce(np.maximum, met), picture, setting))


def _average_pool(operands: Sequence[Operand], setting: Setting) -> Defined:
    """Padding is not counted."""
    picture, x, where = _windows(operands, setting)
    total = _total(x, where)
    inside = _total(np.ones((1, *x.shape[1:3], 1)), where)
    length = float(where.size[0] * where.size[1])
    return one(as_result(total / inside, picture, setting), length=length)


def _windows(operands: Sequence[Operand], setting: Setting) -> tuple[Operand, Array, Windows]:
    picture = as_picture(operands[0], setting)
    x = in_order(picture, "NHWC")
    size = spatial(setting.integers("ksize"), picture.layout)
    return picture, x, windows(setting, size, (x.shape[1], x.shape[2]), picture.layout)


def _total(x: Array, where: Windows) -> Array:
    return reduce(np.add, (view for row in views(x, where, fill=0.0) for view in row))


DEFINITIONS: Definitions = {
    "MaxPool": Definition(_max_pool, least=1, most=1, rule=Rule.EXACT),
    "AvgPool": Definition(_average_pool, least=1, most=1),
}
