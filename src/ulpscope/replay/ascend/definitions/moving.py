"""Operators that move, cut, join or convert numbers and compute nothing."""

from collections.abc import Sequence

import numpy as np

from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.records.checks import Rule
from ulpscope.replay.ascend.defining import (
    Array,
    Defined,
    Definition,
    Definitions,
    Form,
    Function,
    Operand,
    Setting,
    Shape,
    axis_of,
    numbers_of,
    one,
    permuted,
    whole_numbers,
)
from ulpscope.replay.recorded import CannotReplayError

_LARGEST_WHOLE = 2.0**62
"""Of floats that become int64 here."""


def _cast(operands: Sequence[Operand], setting: Setting) -> Defined:
    """Floats become integers by cutting off the fraction."""
    return one(_converted(operands[0].array, setting.results[0]))


def _converted(x: Array, form: Form) -> Array:
    kind = DTYPES[form.dtype].kind
    if kind is DtypeKind.BOOL:
        return np.not_equal(x, 0)
    if kind is not DtypeKind.INT or x.dtype.kind != "f":
        return x
    if np.iinfo(form.dtype).bits == 64 and not np.all(np.abs(x) < _LARGEST_WHOLE):
        raise CannotReplayError(f"what a device makes of numbers beyond {form.dtype} is not known")
    # What no smaller type can hold stays beyond it.
    whole = np.trunc(np.nan_to_num(x, nan=_LARGEST_WHOLE, posinf=_LARGEST_WHOLE, neginf=-_LARGEST_WHOLE))
    return np.asarray(np.clip(whole, -_LARGEST_WHOLE, _LARGEST_WHOLE)).astype(np.int64)


def _trans_data(operands: Sequence[Operand], setting: Setting) -> Defined:
    """From one order to another; in the network's order, the same."""
    x, form = operands[0], setting.results[0]
    array = x.array if x.array.shape == form.shape and x.layout == form.layout else _reordered(x, form)
    return one(_converted(array, form))


def _reordered(x: Operand, form: Form) -> Array:
    if x.array.ndim == len(form.shape) == len(x.layout) == len(form.layout):
        return permuted(x.array, x.layout, form.layout)
    if [size for size in x.array.shape if size != 1] != [size for size in form.shape if size != 1]:
        raise CannotReplayError("the order of its axes is not known")
    return x.array.reshape(form.shape)


def _reshape(operands: Sequence[Operand], setting: Setting) -> Defined:
    return one(_reshaped(operands[0].array, setting.results[0].shape))


def _reshaped(x: Array, shape: Shape) -> Array:
    if x.size != int(np.prod(shape)):
        raise CannotReplayError(f"{x.size} elements do not fill {list(shape)}")
    return x.reshape(shape)


def _transpose(operands: Sequence[Operand], setting: Setting) -> Defined:
    x = operands[0].array
    order = numbers_of(operands, 1, setting, "perm")
    if sorted(order) != list(range(x.ndim)):
        raise CannotReplayError(f"its attribute perm is {list(order)} of {x.ndim} axes")
    return one(x.transpose(order))


def _concatenated(parts: Sequence[Operand], axis: int) -> Defined:
    arrays = [permuted(part.array, part.layout, parts[0].layout) for part in parts]
    place = axis_of(axis, arrays[0].ndim)
    widths = {(*array.shape[:place], *array.shape[place + 1 :]) for array in arrays}
    if len(widths) != 1:
        raise CannotReplayError("its operands do not fit beside each other")
    return one(np.concatenate(arrays, place))


def _concat_attribute(operands: Sequence[Operand], setting: Setting) -> Defined:
    return _concatenated(operands, setting.integer("concat_dim"))


def _concat_first(operands: Sequence[Operand], setting: Setting) -> Defined:
    """The axis comes first; in an older version, last."""
    first, last = (_is_number(operand) for operand in (operands[0], operands[-1]))
    if first == last:
        raise CannotReplayError("which of its operands is the axis is not told")
    return _concatenated(operands[1:], whole_numbers(operands[0])[0]) if first else _concat_last(operands, setting)


def _is_number(operand: Operand) -> bool:
    return operand.array.size == 1 and operand.array.dtype.kind in "iu"


def _concat_last(operands: Sequence[Operand], setting: Setting) -> Defined:
    return _concatenated(operands[:-1], whole_numbers(operands[-1])[0])


def _split_attribute(operands: Sequence[Operand], setting: Setting) -> Defined:
    return _split(operands[0].array, setting.integer("split_dim"), setting)


def _split_first(operands: Sequence[Operand], setting: Setting) -> Defined:
    return _split(operands[1].array, whole_numbers(operands[0])[0], setting)


def _split(x: Array, axis: int, setting: Setting) -> Defined:
    """As long as the results are, in their order."""
    place = axis_of(axis, x.ndim)
    lengths = [form.shape[place] if len(form.shape) == x.ndim else 0 for form in setting.results]
    if sum(lengths) != x.shape[place]:
        raise CannotReplayError(f"its results have {sum(lengths)} of {x.shape[place]} elements along axis {place}")
    return Defined(tuple(np.split(x, np.cumsum(lengths)[:-1], place)))


def _pack(operands: Sequence[Operand], setting: Setting) -> Defined:
    arrays = [operand.array for operand in operands]
    if len({array.shape for array in arrays}) != 1:
        raise CannotReplayError("its operands do not fit beside each other")
    return one(np.stack(arrays, axis_of(setting.integer("axis", 0), arrays[0].ndim + 1)))


def _unpack(operands: Sequence[Operand], setting: Setting) -> Defined:
    x = operands[0].array
    return Defined(tuple(np.moveaxis(x, axis_of(setting.integer("axis", 0), x.ndim), 0)))


def _pad_attribute(operands: Sequence[Operand], setting: Setting) -> Defined:
    return _padded(operands[0].array, setting.rows("paddings"), setting)


def _pad_operand(operands: Sequence[Operand], setting: Setting) -> Defined:
    numbers = whole_numbers(operands[1])
    return _padded(operands[0].array, tuple(zip(numbers[::2], numbers[1::2], strict=False)), setting)


def _padded(x: Array, paddings: Sequence[Shape], setting: Setting) -> Defined:
    if len(paddings) != x.ndim or any(len(pair) != 2 or min(pair) < 0 for pair in paddings):
        raise CannotReplayError("its paddings do not fit its axes")
    if tuple(size + sum(pair) for size, pair in zip(x.shape, paddings, strict=True)) != setting.results[0].shape:
        raise CannotReplayError("its paddings do not make its result")
    return one(np.pad(x, [(pair[0], pair[1]) for pair in paddings]))


def _gather_rows(operands: Sequence[Operand], setting: Setting) -> Defined:
    return _gathered(operands, 0, setting)


def _gather(operands: Sequence[Operand], setting: Setting) -> Defined:
    axis = whole_numbers(operands[2])[0] if len(operands) > 2 else setting.integer("axis")
    return _gathered(operands, axis, setting)


def _gathered(operands: Sequence[Operand], axis: int, setting: Setting) -> Defined:
    setting.need("batch_dims", 0)
    x, indices = operands[0].array, operands[1].array
    place = axis_of(axis, x.ndim)
    if indices.dtype.kind not in "iu" or (indices.size and not 0 <= indices.min() <= indices.max() < x.shape[place]):
        raise CannotReplayError("an index is out of its range")
    setting.expect((*x.shape[:place], *indices.shape, *x.shape[place + 1 :]))
    return one(np.take(x, indices, place))


def _tile(operands: Sequence[Operand], setting: Setting) -> Defined:
    x, multiples = operands[0].array, numbers_of(operands, 1, setting, "multiples")
    # What is asked for is made sure of before it is made: a damaged number could ask for anything.
    lengths = tuple(size * times for size, times in zip(x.shape, multiples, strict=False))
    if len(multiples) != x.ndim or lengths != setting.results[0].shape:
        raise CannotReplayError("its multiples do not make its result")
    return one(np.tile(x, multiples))


def _broadcast(operands: Sequence[Operand], setting: Setting) -> Defined:
    try:
        return one(np.broadcast_to(operands[0].array, setting.results[0].shape))
    except ValueError as error:
        raise CannotReplayError("its operand cannot be spread over its result") from error


def _slice(operands: Sequence[Operand], setting: Setting) -> Defined:
    """A size of -1 is what is left."""
    x = operands[0].array
    offsets, sizes = numbers_of(operands, 1, setting, "offsets"), numbers_of(operands, 2, setting, "size")
    if len(offsets) != x.ndim or len(sizes) != x.ndim:
        raise CannotReplayError("its offsets do not fit its axes")
    pairs = zip(offsets, sizes, strict=True)
    return one(x[tuple(slice(start, None if size == -1 else start + size) for start, size in pairs)])


def _exact(function: Function, least: int, most: int | None) -> Definition:
    return Definition(function, least, most, Rule.EXACT)


_SAME_ELEMENTS = "Reshape Flatten FlattenV2 Squeeze SqueezeV2 Unsqueeze ExpandDims Identity".split()

DEFINITIONS: Definitions = {
    **{name: _exact(_reshape, 1, 2) for name in _SAME_ELEMENTS},
    "Cast": _exact(_cast, 1, 1),
    "TransData": _exact(_trans_data, 1, 1),
    "Transpose": _exact(_transpose, 2, 2),
    "TransposeD": _exact(_transpose, 1, 1),
    "Concat": _exact(_concat_first, 2, None),
    "ConcatD": _exact(_concat_attribute, 1, None),
    "ConcatV2": _exact(_concat_last, 2, None),
    "ConcatV2D": _exact(_concat_attribute, 1, None),
    "Split": _exact(_split_first, 2, 2),
    "SplitD": _exact(_split_attribute, 1, 1),
    "SplitVD": _exact(_split_attribute, 1, 1),
    "Pack": _exact(_pack, 1, None),
    "Unpack": _exact(_unpack, 1, 1),
    "Pad": _exact(_pad_operand, 2, 2),
    "PadD": _exact(_pad_attribute, 1, 1),
    "Gather": _exact(_gather_rows, 2, 2),
    "GatherV2": _exact(_gather, 3, 3),
    "GatherV2D": _exact(_gather, 2, 2),
    "Tile": _exact(_tile, 2, 2),
    "TileD": _exact(_tile, 1, 1),
    "BroadcastTo": _exact(_broadcast, 1, 2),
    "BroadcastToD": _exact(_broadcast, 1, 1),
    "Slice": _exact(_slice, 3, 3),
    "SliceD": _exact(_slice, 1, 1),
}
