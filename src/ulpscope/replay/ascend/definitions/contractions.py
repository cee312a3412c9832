"""Sums of products: matrices, fully connected layers, convolutions."""

from collections.abc import Sequence

import numpy as np

from ulpscope.replay.ascend.axes import along, as_picture, in_order, permuted
from ulpscope.replay.ascend.defining import Array, Defined, Definition, Definitions, Operand, Setting, one
from ulpscope.replay.ascend.definitions.windows import views, windows
from ulpscope.replay.errors import CannotReplayError


def _matmul(operands: Sequence[Operand], setting: Setting) -> Defined:
    return _product(operands, setting, transposed=(setting.flag("transpose_x1"), setting.flag("transpose_x2")))


def _batch_matmul(operands: Sequence[Operand], setting: Setting) -> Defined:
    return _product(operands, setting, transposed=(setting.flag("adj_x1"), setting.flag("adj_x2")))


def _product(operands: Sequence[Operand], setting: Setting, *, transposed: tuple[bool, bool]) -> Defined:
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
    axis = setting.integer("axis", 1)
    if axis != 1 or setting.flag("transpose"):
        raise CannotReplayError("a fully connected layer with a transposed weight or another axis is not defined here")
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
    picture = as_picture(operands[0], setting)
    if operands[1].array.ndim != 4 or "N" not in operands[1].layout:
        raise CannotReplayError("the order of its weight's axes is not known")
    x, weight = in_order(picture, "NHWC"), in_order(operands[1], "HWCN")
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
    form = setting.results[0]
    length = float(weight.shape[0] * weight.shape[1] * inner)
    return one(permuted(result, "NHWC", form.layout if len(form.layout) == 4 else picture.layout), length=length)


DEFINITIONS: Definitions = {
    "MatMul": Definition(_matmul, least=2, most=3, multiplies=True),
    "MatMulV2": Definition(_matmul, least=2, most=3, multiplies=True),
    "BatchMatMul": Definition(_batch_matmul, least=2, most=2, multiplies=True),
    "BatchMatMulV2": Definition(_batch_matmul, least=2, most=3, multiplies=True),
    "FullyConnection": Definition(_fully_connected, least=2, most=3, multiplies=True),
    "Conv2D": Definition(_conv2d, least=2, most=3, multiplies=True),
}
