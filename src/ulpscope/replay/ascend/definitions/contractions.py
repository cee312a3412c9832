"""Sums of products: matrices, fully connected layers, convolutions."""

from collections.abc import Sequence

import numpy as np

from ulpscope.replay.ascend.defining import (
    Array,
    Defined,
    Definition,
    Definitions,
    Operand,
    Setting,
    along,
    as_picture,
    as_result,
    in_order,
    one,
)
from ulpscope.replay.ascend.definitions.windows import geometries, views, windows
from ulpscope.replay.recorded import CannotReplayError

_NO_OFFSET = ("offset_x", 0)
"""Quantised products subtract it; they are not defined here."""


def _matmul(operands: Sequence[Operand], setting: Setting) -> Defined:
    turned = setting.flag("transpose_x1", "transpose_a"), setting.flag("transpose_x2", "transpose_b")
    return _product(operands, setting, transposed=turned)


def _batch_matmul(operands: Sequence[Operand], setting: Setting) -> Defined:
    turned = setting.flag("adj_x1", "adj_x"), setting.flag("adj_x2", "adj_y")
    return _product(operands, setting, transposed=turned)


def _product(operands: Sequence[Operand], setting: Setting, *, transposed: tuple[bool, bool]) -> Defined:
    setting.need(*_NO_OFFSET)
    first, second = (
        np.swapaxes(operand.array, -1, -2) if turned and operand.array.ndim > 1 else operand.array
        for operand, turned in zip(operands[:2], transposed, strict=True)
    )
    if min(first.ndim, second.ndim) < 2 or first.shape[-1] != second.shape[-2]:
        raise CannotReplayError(f"matrices of {list(first.shape)} and {list(second.shape)} have no product")
    stack = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    setting.expect((*stack, first.shape[-2], second.shape[-1]))
    result = np.matmul(first, second)
    if len(operands) > 2:
        result += operands[2].array.ravel()
    return one(result, length=float(first.shape[-1]))


def _fully_connected(operands: Sequence[Operand], setting: Setting) -> Defined:
    """A picture is one row of numbers, in the order NCHW; weights are a row a result."""
    setting.need("axis", 1)
    setting.need("transpose", False)
    setting.need(*_NO_OFFSET)
    x, weight = (_rows(operand) for operand in operands[:2])
    if x.shape[-1] != weight.shape[-1]:
        raise CannotReplayError(f"its weight is {list(weight.shape)} for rows of {x.shape[-1]}")
    setting.expect((x.shape[0], weight.shape[0]))
    result = x @ weight.T
    if len(operands) > 2:
        result += operands[2].array.ravel()
    return one(result.reshape(setting.results[0].shape), length=float(x.shape[-1]))


def _rows(operand: Operand) -> Array:
    array = in_order(operand, "NCHW") if operand.array.ndim == 4 else operand.array
    return array.reshape(array.shape[0], -1)


def _conv2d(operands: Sequence[Operand], setting: Setting) -> Defined:
    setting.need(*_NO_OFFSET)
    picture, x, weight = _picture_and_weight(operands, setting)
    groups = setting.integer("groups", 1)
    if groups < 1 or weight.shape[2] * groups != x.shape[3] or weight.shape[3] % groups:
        raise CannotReplayError(f"its weight is {list(weight.shape)} for {x.shape[3]} channels in {groups} groups")
    where = windows(setting, (weight.shape[0], weight.shape[1]), (x.shape[1], x.shape[2]), picture.layout)
    setting.expect((x.shape[0], *where.count, weight.shape[3]))
    inner, outer = weight.shape[2], weight.shape[3] // groups
    result = np.zeros((x.shape[0], *where.count, weight.shape[3]))
    for row, met in enumerate(views(x, where, fill=0.0)):
        for column, view in enumerate(met):
            for group in range(groups):
                part = slice(group * outer, (group + 1) * outer)
                result[..., part] += view[..., group * inner : (group + 1) * inner] @ weight[row, column][:, part]
    if len(operands) > 2:
        result += along(operands[2].array.ravel(), 3, 4)
    length = float(weight.shape[0] * weight.shape[1] * inner)
    return one(as_result(result, picture, setting), length=length)


def _picture_and_weight(operands: Sequence[Operand], setting: Setting) -> tuple[Operand, Array, Array]:
    picture = as_picture(operands[0], setting)
    if operands[1].array.ndim != 4 or "N" not in operands[1].layout:
        raise CannotReplayError("the order of its weight's axes is not known")
    return picture, in_order(picture, "NHWC"), in_order(operands[1], "HWCN")


def _conv2d_readings(operands: Sequence[Operand], setting: Setting) -> Sequence[Setting]:
    picture, x, weight = _picture_and_weight(operands, setting)
    return geometries(setting, (weight.shape[0], weight.shape[1]), (x.shape[1], x.shape[2]), picture.layout)


DEFINITIONS: Definitions = {
    "MatMul": Definition(_matmul, least=2, most=3, multiplies=True),
    "MatMulV2": Definition(_matmul, least=2, most=3, multiplies=True),
    "BatchMatMul": Definition(_batch_matmul, least=2, most=2, multiplies=True),
    "BatchMatMulV2": Definition(_batch_matmul, least=2, most=3, multiplies=True),
    "FullyConnection": Definition(_fully_connected, least=2, most=3, multiplies=True),
    "Conv2D": Definition(_conv2d, least=2, most=3, multiplies=True, readings=_conv2d_readings),
}
