"""Windows that move over a picture: where they stand, told by attributes or, without them, by the shapes alone."""

from dataclasses import dataclass

import numpy as np

from ulpscope.replay.ascend.defining import Array, Setting, Shape
from ulpscope.replay.errors import CannotReplayError

SAME, VALID = "SAME", "VALID"
Pair = tuple[int, int]

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
    dilation = spatial(setting.integers("dilations", (1, 1)), layout)
    if any(
        (length - 1) * spacing > whole + REACH for length, spacing, whole in zip(size, dilation, picture, strict=True)
    ):
        raise CannotReplayError("its window is larger than the picture")
    if "strides" not in setting.attributes:
        return _by_shapes(size, dilation, picture, _result(setting, layout))
    stride = spatial(setting.integers("strides"), layout)
    if min(*stride, *dilation) < 1:
        raise CannotReplayError(f"its stride is {list(stride)}, its dilation {list(dilation)}")
    pads = setting.attributes.get("pads")
    if isinstance(pads, tuple) and len(pads) == 4:
        top, bottom, left, right = setting.integers("pads")
        if not 0 <= min(setting.integers("pads")) <= max(setting.integers("pads")) <= REACH + max(picture):
            raise CannotReplayError(f"its attribute pads is {list(setting.integers('pads'))}")
        count = _counts(size, stride, dilation, (picture[0] + top + bottom, picture[1] + left + right))
        return Windows(size, stride, dilation, (top, left), count)
    return _padded(setting.text("padding"), size, stride, dilation, picture)


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


def _by_shapes(size: Pair, dilation: Pair, picture: Pair, result: Pair) -> Windows:
    """The one stride and padding that make this result of this picture; an error if several do."""
    steps = range(1, max(picture) + 1)
    fits = []
    for padding in (SAME, VALID):
        for step in steps:
            try:
                found = _padded(padding, size, (step, step), dilation, picture)
            except CannotReplayError:
                continue
            if found.count == result and found not in fits:
                fits.append(found)
    if len(fits) != 1:
        raise CannotReplayError("the graph does not tell its attribute strides")
    return fits[0]


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
