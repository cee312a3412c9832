"""A dumped tensor in the layout that a user asks for."""

import math
from dataclasses import replace

from ulpscope.dialects.ascend.dump_file.content import AnyArray
from ulpscope.dialects.ascend.dump_file.records import DumpTensor
from ulpscope.dialects.ascend.logical import VECTOR, Logical, Preferred, logical_form
from ulpscope.numerics.layouts.orders import (
    Conversion,
    Converters,
    Shape,
    bad_shape,
    convert_layout,
    is_plain,
    permuted_shape,
)

_ANY = "ND"


def in_layout(
    tensor: DumpTensor,
    layout: str,
    *,
    shape: Shape | None = None,
    preferred: Preferred | None = None,
    own: Converters | None = None,
) -> AnyArray:
    """The elements in `layout`; without a shape, the original one that the dump states, its axes put in order."""
    array = tensor.array()
    source = _source(tensor, array)
    if source == layout and shape is None:
        return array
    stated = tensor if shape is None else replace(tensor, original_shape=shape)
    if layout == _ANY and (source, layout) not in (own or {}):
        return _reshaped(stated, array, shape) if is_plain(source) else _as_it_was(stated, array, preferred)
    target = _target_shape(tensor, array, source, layout) if shape is None else shape
    return convert_layout(array, Conversion(source, layout, target, tensor.groups), own)


def _source(tensor: DumpTensor, array: AnyArray) -> str:
    """The layout that it has: a bias that is said to be NHWC has no such axes."""
    said = tensor.format_name
    return _ANY if is_plain(said) and array.ndim != len(said) else said


def _reshaped(tensor: DumpTensor, array: AnyArray, shape: Shape | None) -> AnyArray:
    if shape is None:
        return array
    if math.prod(shape) != array.size:
        raise bad_shape(f"{tensor.name} is {tensor.format_name} {list(array.shape)}; asked for was {list(shape)}")
    return array.reshape(shape)


def _as_it_was(tensor: DumpTensor, array: AnyArray, preferred: Preferred | None) -> AnyArray:
    form = logical_form(tensor, preferred)
    if form.layout == VECTOR:
        return array.reshape(-1)[: form.shape[0]]
    if form.layout == tensor.format_name:
        original = "none" if tensor.original_shape is None else list(tensor.original_shape)
        raise bad_shape(f"{tensor.name} is {form.layout} {list(array.shape)}; its original shape: {original}")
    return convert_layout(array, Conversion(tensor.format_name, form.layout, form.shape, tensor.groups))


def _target_shape(tensor: DumpTensor, array: AnyArray, source: str, layout: str) -> Shape | None:
    form = Logical(array.shape, source) if is_plain(source) else logical_form(tensor)
    if form.layout == source and not is_plain(source):
        # A converter of the user's own may know what to do with the stated shape, or without any.
        return tensor.original_shape
    if not is_plain(layout):
        return None
    if set(form.layout) == set(layout) and len(form.shape) == len(layout):
        return permuted_shape(form.shape, form.layout, layout)
    return form.shape
