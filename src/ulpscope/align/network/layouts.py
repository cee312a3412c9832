"""The form in which a device's tensor is compared: the order and shape that its partner has.

The graph says in which order the original's axes are. Where the partner's shape is another order of the same axes (a
network of one framework, a reference of another), that is the order.
"""

import math
from dataclasses import dataclass

from ulpscope.dialects.ascend.dump_file.records import AnyArray, DumpTensor, Shape
from ulpscope.dialects.ascend.logical import VECTOR, Logical, logical_array, logical_form
from ulpscope.numerics.layouts.orders import IMAGES, TILED, is_plain, permuted_shape, plain_layouts

_ANY = "ND"


@dataclass(frozen=True, slots=True)
class Stated:
    """What the graph says about the tensor that one stands for."""

    layout: str | None = None
    shape: Shape | None = None


def comparable_form(tensor: DumpTensor, stated: Stated, partner: Shape | None = None) -> Logical:
    """How a tensor is told beside a partner of this shape, or by itself."""
    device = tensor.shape
    if device is None:
        return logical_form(tensor)
    if tensor.format_name in TILED:
        return _untiled(tensor, device, stated, partner)
    if partner is not None and len(device) == len(partner) == 4 and tensor.format_name in IMAGES:
        return _reordered(tensor.format_name, device, stated, partner)
    return Logical(device, tensor.format_name)


def in_form(tensor: DumpTensor, form: Logical) -> AnyArray:
    """The elements in that form."""
    if form.layout == tensor.format_name or form.layout == VECTOR or tensor.format_name in TILED:
        return logical_array(tensor, form)
    order = [tensor.format_name.index(axis) for axis in form.layout]
    return logical_array(tensor, Logical(tensor.array().shape, tensor.format_name)).transpose(order)


def _untiled(tensor: DumpTensor, device: Shape, stated: Stated, partner: Shape | None) -> Logical:
    """The partner's own shape if it fills the tiles; else the one that dump or graph state."""
    known = [shape for shape in (tensor.original_shape, stated.shape) if shape and min(shape) >= 0]
    if partner and (not known or math.prod(partner) in map(math.prod, known)):
        known.insert(0, partner)
    for shape in known:
        layouts = plain_layouts(tensor.format_name, device, shape, groups=tensor.groups)
        if layouts:
            return Logical(shape, stated.layout if stated.layout in layouts else layouts[0])
    return logical_form(tensor)


def _reordered(layout: str, device: Shape, stated: Stated, partner: Shape) -> Logical:
    wanted = [stated.layout] if stated.layout in IMAGES else []
    if device != partner:
        wanted += [other for other in IMAGES if other not in wanted]
    for other in wanted:
        assert other is not None
        if permuted_shape(device, layout, other) == partner:
            return Logical(partner, other)
    return Logical(device, layout)


def is_flat(tensor: DumpTensor, form: Logical) -> bool:
    """Whether msaccucmp tells this tensor's elements in one row: ND, single numbers, pictures without four axes."""
    device = tensor.shape or ()
    if all(size == 1 for size in device):
        return True
    if tensor.format_name in TILED:
        return form.layout == VECTOR
    return form.layout == _ANY or (is_plain(form.layout) and len(form.layout) != len(device))
