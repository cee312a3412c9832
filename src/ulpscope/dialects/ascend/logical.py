"""A dumped tensor as the operator's author knows it: tiles joined, padding taken off, in its original shape.

A dump does not say in which order its original shape is. Most shapes fill the device's tiles in one order only; for the
others, the order that most tensors of the same run have is taken.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ulpscope.dialects.ascend.dump_file.codes import format_name
from ulpscope.dialects.ascend.dump_file.content import AnyArray, Shape
from ulpscope.dialects.ascend.dump_file.records import DumpTensor
from ulpscope.dialects.ascend.elements import plain_type, widened
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.layouts.orders import TILED, Conversion, convert_layout, plain_layouts

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
    array = tensor.array()
    if form.layout == VECTOR:
        array = array.reshape(-1)[: form.shape[0]]
    elif form.layout != tensor.format_name:
        array = convert_layout(array, Conversion(tensor.format_name, form.layout, form.shape, tensor.groups))
    kind = tensor.element_type
    return widened(array, kind) if kind is not None and kind not in DTYPES else array


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
