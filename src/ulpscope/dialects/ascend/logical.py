"""A dumped tensor as the operator's author knows it: tiles joined, padding taken off, in its original shape.

A dump does not say in which order its original shape is. Most shapes fill the device's tiles in one order only; for the
others, the order that most tensors of the same run have is taken, unless a user asks for a layout.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from ulpscope.dialects.ascend.dump_file.records import AnyArray, DumpTensor, Shape, format_name, plain_type, widened
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.layouts import (
    TILED,
    Conversion,
    Converters,
    bad_shape,
    convert_layout,
    is_plain,
    permuted_shape,
    plain_layouts,
)

VECTOR = "C"
"""The order of a tensor with one axis, such as a bias, in tiles that are made for pictures."""

_CHANNEL_TILES = {"NC1HWC0": 1, "NDC1HWC0": 2}
"""Which axis counts the tiles of channels."""

Preferred: TypeAlias = Mapping[str, str]
"""By tiled layout: the plain one that most tensors have."""


@dataclass(frozen=True, slots=True)
class Logical:
    """How a tensor is told."""

    shape: Shape
    layout: str
    """The device's own where the original one cannot be known."""
    guessed: bool = False
    """Whether the shape allows other orders, too, and nothing tells which it is."""


def logical_form(tensor: DumpTensor, preferred: Preferred | None = None) -> Logical:
    """The original shape of a tensor and its order, or the device's own if that is all that is known."""
    device = tensor.array().shape if tensor.shape is None else tensor.shape
    choices = _choices(tensor)
    if not choices or tensor.original_shape is None:
        return Logical(device, tensor.format_name)
    usual = (preferred or {}).get(tensor.format_name)
    if usual in choices:
        return Logical(tensor.original_shape, usual)
    return Logical(tensor.original_shape, choices[0], guessed=len(choices) > 1 and math.prod(tensor.original_shape) > 1)


def preferred_layouts(tensors: Iterable[DumpTensor]) -> Preferred:
    """What the tensors say whose shape allows one order only."""
    votes: dict[str, Counter[str]] = {}
    for tensor in tensors:
        choices = _choices(tensor)
        if len(choices) == 1:
            votes.setdefault(tensor.format_name, Counter())[choices[0]] += 1
    return {tiled: counted.most_common(1)[0][0] for tiled, counted in votes.items()}


def logical_array(tensor: DumpTensor, form: Logical) -> AnyArray:
    """The elements in that form, as a type that traces know (`logical_type`)."""
    array = _arranged(tensor, tensor.array(), form)
    kind = tensor.element_type
    return widened(array, kind) if kind is not None and kind not in DTYPES else array


def _arranged(tensor: DumpTensor, array: AnyArray, form: Logical) -> AnyArray:
    if form.layout == VECTOR:
        return array.reshape(-1)[: form.shape[0]]
    if form.layout == tensor.format_name:
        return array
    return convert_layout(array, Conversion(tensor.format_name, form.layout, form.shape, tensor.groups))


def logical_type(tensor: DumpTensor) -> str:
    """The type of `logical_array`'s elements: a name of numerics.dtypes, or the device's word for others."""
    kind = tensor.element_type
    return tensor.type_name.lower() if kind is None else plain_type(kind)


def has_data(tensor: DumpTensor) -> bool:
    """Whether there is something to read: strings have no elements, unconnected inputs no bytes."""
    return tensor.element_type is not None and tensor.content.size > 0


def _choices(tensor: DumpTensor) -> list[str]:
    """The orders in which the original shape fills the tiles; the one that the dump itself names alone, if it does."""
    device, shape = tensor.shape, tensor.original_shape
    if tensor.format_name not in TILED or not shape or device is None:
        return []
    if len(shape) == 1 and _is_vector(tensor.format_name, device, shape[0]):
        return [VECTOR]
    choices = plain_layouts(tensor.format_name, device, shape, groups=tensor.groups)
    named = None if tensor.original_op is None else format_name(tensor.original_op.format)
    return [named] if named is not None and named in choices else choices


def _is_vector(tiled: str, device: Shape, length: int) -> bool:
    tiles = _CHANNEL_TILES.get(tiled)
    if tiles is None or len(device) != tiles + 4:
        return False
    others = [size for place, size in enumerate(device[:-1]) if place != tiles]
    return set(others) == {1} and 0 <= device[tiles] * device[-1] - length < device[-1]


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
    said = tensor.format_name
    # A bias that is said to be NHWC has no such axes.
    source = _ANY if is_plain(said) and array.ndim != len(said) else said
    if source == layout and shape is None:
        return array
    stated = tensor if shape is None else replace(tensor, original_shape=shape)
    if layout == _ANY and (source, layout) not in (own or {}):
        return _reshaped(stated, array, shape) if is_plain(source) else _as_it_was(stated, array, preferred)
    target = _target_shape(tensor, array, source, layout) if shape is None else shape
    return convert_layout(array, Conversion(source, layout, target, tensor.groups), own)


def _reshaped(tensor: DumpTensor, array: AnyArray, shape: Shape | None) -> AnyArray:
    if shape is None:
        return array
    if math.prod(shape) != array.size:
        raise bad_shape(f"{tensor.name} is {tensor.format_name} {list(array.shape)}; asked for was {list(shape)}")
    return array.reshape(shape)


def _as_it_was(tensor: DumpTensor, array: AnyArray, preferred: Preferred | None) -> AnyArray:
    form = logical_form(tensor, preferred)
    if form.layout == tensor.format_name:
        original = "none" if tensor.original_shape is None else list(tensor.original_shape)
        raise bad_shape(f"{tensor.name} is {form.layout} {list(array.shape)}; its original shape: {original}")
    return _arranged(tensor, array, form)


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
