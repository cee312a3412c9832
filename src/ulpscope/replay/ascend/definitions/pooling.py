"""The largest or the mean of each window of a picture."""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from ulpscope.records.checks import Rule
from ulpscope.replay.ascend.axes import as_picture, as_result, in_order
from ulpscope.replay.ascend.defining import Array, Defined, Definition, Definitions, Operand, Setting, one
from ulpscope.replay.ascend.definitions.windows import Windows, spatial, views, windows


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
