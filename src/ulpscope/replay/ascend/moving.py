"""Operators that move, cut, join or convert numbers and compute nothing."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from ulpscope.numerics.dtypes import DTYPES, DtypeKind, Shape
from ulpscope.records.checks import Rule
from ulpscope.replay.ascend.defining import (
    Array,
    Defined,
    Definition,
    Definitions,
    Form,
    Function,
    Operands,
    Setting,
    axis_of,
    numbers_of,
    one,
    permuted,
    whole_numbers,
    without_ones,
)
from ulpscope.replay.recorded import CannotReplayError

_LARGEST_WHOLE = 2.0**62
"""Of floats that become int64 here."""


def _cast(operands: Operands, setting: Setting) -> Defined:
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


def _trans_data(operands: Operands, setting: Setting) -> Defined:
    """From one order to another; in the network's order, the same."""
    x, form = operands[0], setting.results[0]
    array = x.array
    if array.shape != form.shape or x.layout != form.layout:
        if array.ndim == len(form.shape) == len(x.layout) == len(form.layout):
            array = permuted(array, x.layout, form.layout)
        elif without_ones(array.shape) == without_ones(form.shape):
            array = array.reshape(form.shape)
        else:
            raise CannotReplayError("the order of its axes is not known")
    return one(_converted(array, form))


def _reshape(operands: Operands, setting: Setting) -> Defined:
    x, shape = operands[0].array, setting.results[0].shape
    if x.size != int(np.prod(shape)):
        raise CannotReplayError(f"{x.size} elements do not fill {list(shape)}")
    return one(x.reshape(shape))


def _transpose(operands: Operands, setting: Setting) -> Defined:
    x = operands[0].array
    order = numbers_of(operands, 1, setting, "perm")
    if sorted(order) != list(range(x.ndim)):
        raise CannotReplayError(f"its attribute perm is {list(order)} of {x.ndim} axes")
    return one(x.transpose(order))


def _concatenated(parts: Operands, axis: int) -> Defined:
    arrays = [permuted(part.array, part.layout, parts[0].layout) for part in parts]
    place = axis_of(axis, arrays[0].ndim)
    widths = {(*array.shape[:place], *array.shape[place + 1 :]) for array in arrays}
    if len(widths) != 1:
        raise CannotReplayError("its operands do not fit beside each other")
    return one(np.concatenate(arrays, place))


def _concat_attribute(operands: Operands, setting: Setting) -> Defined:
    return _concatenated(operands, setting.integer("concat_dim"))


def _concat_first(operands: Operands, setting: Setting) -> Defined:
    """The axis comes first; in an older version, last."""
    first, last = (each.array.size == 1 and each.array.dtype.kind in "iu" for each in (operands[0], operands[-1]))
    if first == last:
        raise CannotReplayError("which of its operands is the axis is not told")
    return _concatenated(operands[1:], whole_numbers(operands[0])[0]) if first else _concat_last(operands, setting)


def _concat_last(operands: Operands, setting: Setting) -> Defined:
    return _concatenated(operands[:-1], whole_numbers(operands[-1])[0])


def _split(operands: Operands, setting: Setting) -> Defined:
    """Along an axis that comes first, or is an attribute; as long as the results are, in their order."""
    axis = whole_numbers(operands[0])[0] if len(operands) > 1 else setting.integer("split_dim")
    x = operands[-1].array
    place = axis_of(axis, x.ndim)
    lengths = [form.shape[place] if len(form.shape) == x.ndim else 0 for form in setting.results]
    if sum(lengths) != x.shape[place]:
        raise CannotReplayError(f"its results have {sum(lengths)} of {x.shape[place]} elements along axis {place}")
    return Defined(tuple(np.split(x, np.cumsum(lengths)[:-1], place)))


def _pack(operands: Operands, setting: Setting) -> Defined:
    arrays = [operand.array for operand in operands]
    if len({array.shape for array in arrays}) != 1:
        raise CannotReplayError("its operands do not fit beside each other")
    return one(np.stack(arrays, axis_of(setting.integer("axis", 0), arrays[0].ndim + 1)))


def _unpack(operands: Operands, setting: Setting) -> Defined:
    x = operands[0].array
    return Defined(tuple(np.moveaxis(x, axis_of(setting.integer("axis", 0), x.ndim), 0)))


def _pad(operands: Operands, setting: Setting) -> Defined:
    """Before and behind each axis: pairs in an operand or an attribute."""
    x = operands[0].array
    if len(operands) > 1:
        numbers = whole_numbers(operands[1])
        paddings: Sequence[Shape] = tuple(zip(numbers[::2], numbers[1::2], strict=False))
    else:
        paddings = setting.rows("paddings")
    if len(paddings) != x.ndim or any(len(pair) != 2 or min(pair) < 0 for pair in paddings):
        raise CannotReplayError("its paddings do not fit its axes")
    if tuple(size + sum(pair) for size, pair in zip(x.shape, paddings, strict=True)) != setting.results[0].shape:
        raise CannotReplayError("its paddings do not make its result")
    return one(np.pad(x, [(pair[0], pair[1]) for pair in paddings]))


def _gather(operands: Operands, setting: Setting) -> Defined:
    axis = whole_numbers(operands[2])[0] if len(operands) > 2 else setting.integer("axis")
    return _gathered(operands, setting, axis=axis)


def _gathered(operands: Operands, setting: Setting, *, axis: int) -> Defined:
    setting.need("batch_dims", 0)
    x, indices = operands[0].array, operands[1].array
    place = axis_of(axis, x.ndim)
    if indices.dtype.kind not in "iu" or (indices.size and not 0 <= indices.min() <= indices.max() < x.shape[place]):
        raise CannotReplayError("an index is out of its range")
    setting.expect((*x.shape[:place], *indices.shape, *x.shape[place + 1 :]))
    return one(np.take(x, indices, place))


def _tile(operands: Operands, setting: Setting) -> Defined:
    x, multiples = operands[0].array, numbers_of(operands, 1, setting, "multiples")
    # What is asked for is made sure of before it is made: a damaged number could ask for anything.
    lengths = tuple(size * times for size, times in zip(x.shape, multiples, strict=False))
    if len(multiples) != x.ndim or lengths != setting.results[0].shape:
        raise CannotReplayError("its multiples do not make its result")
    return one(np.tile(x, multiples))


def _broadcast(operands: Operands, setting: Setting) -> Defined:
    try:
        return one(np.broadcast_to(operands[0].array, setting.results[0].shape))
    except ValueError as error:
        raise CannotReplayError("its operand cannot be spread over its result") from error


def _slice(operands: Operands, setting: Setting) -> Defined:
    """A size of -1 is what is left."""
    x = operands[0].array
    offsets, sizes = numbers_of(operands, 1, setting, "offsets"), numbers_of(operands, 2, setting, "size")
    if len(offsets) != x.ndim or len(sizes) != x.ndim:
        raise CannotReplayError("its offsets do not fit its axes")
    pairs = zip(offsets, sizes, strict=True)
    return one(x[tuple(slice(start, None if size == -1 else start + size) for start, size in pairs)])


_SAME_ELEMENTS = "Reshape Flatten FlattenV2 Squeeze SqueezeV2 Unsqueeze ExpandDims Identity".split()
_FUNCTIONS: dict[str, tuple[Function, int, int | None]] = {
    **dict.fromkeys(_SAME_ELEMENTS, (_reshape, 1, 2)),
    "Cast": (_cast, 1, 1),
    "TransData": (_trans_data, 1, 1),
    "Transpose": (_transpose, 2, 2),
    "TransposeD": (_transpose, 1, 1),
    "Concat": (_concat_first, 2, None),
    "ConcatD": (_concat_attribute, 1, None),
    "ConcatV2": (_concat_last, 2, None),
    "ConcatV2D": (_concat_attribute, 1, None),
    "Split": (_split, 2, 2),
    "SplitD": (_split, 1, 1),
    "SplitVD": (_split, 1, 1),
    "Pack": (_pack, 1, None),
    "Unpack": (_unpack, 1, 1),
    "Pad": (_pad, 2, 2),
    "PadD": (_pad, 1, 1),
    "Gather": (partial(_gathered, axis=0), 2, 2),
    "GatherV2": (_gather, 3, 3),
    "GatherV2D": (_gather, 2, 2),
    "Tile": (_tile, 2, 2),
    "TileD": (_tile, 1, 1),
    "BroadcastTo": (_broadcast, 1, 2),
    "BroadcastToD": (_broadcast, 1, 1),
    "Slice": (_slice, 3, 3),
    "SliceD": (_slice, 1, 1),
}
"""What computes it, and how many operands it has at least and at most."""

DEFINITIONS: Definitions = {name: Definition(*entry, Rule.EXACT) for name, entry in _FUNCTIONS.items()}
