"""A dumped tensor in the layout that a user asks for."""

from ulpscope.dialects.ascend.content import AnyArray
from ulpscope.dialects.ascend.dump_records import DumpTensor
from ulpscope.dialects.ascend.logical import VECTOR, Logical, logical_form
from ulpscope.numerics.layouts import Conversion, Converters, Shape, bad_shape, convert_layout, is_plain, permuted_shape
from ulpscope.records.errors import UlpscopeError

_ANY = "ND"


def in_layout(
    tensor: DumpTensor, layout: str, *, shape: Shape | None = None, own: Converters | None = None
) -> AnyArray:
    """The elements in `layout`; without a shape, the original one that the dump states, its axes put in order."""
    array, source = tensor.array(), tensor.format_name
    if source == layout and shape is None:
        return array
    if is_plain(source) and array.ndim != len(source) and source != _ANY:
        raise bad_shape(f"{tensor.name} is said to be {source} and has the shape {list(array.shape)}")
    form = Logical(array.shape, source) if is_plain(source) else logical_form(tensor)
    if layout == _ANY and shape is None and (source, layout) not in (own or {}):
        return _as_it_was(tensor, array, form)
    target = shape if shape is not None else _target_shape(tensor, form, layout)
    return convert_layout(array, Conversion(source, layout, target, tensor.groups), own)


def _as_it_was(tensor: DumpTensor, array: AnyArray, form: Logical) -> AnyArray:
    if form.layout == VECTOR:
        return array.reshape(-1)[: form.shape[0]]
    if form.layout == tensor.format_name and not is_plain(form.layout):
        raise _unknown_shape(tensor)
    if form.layout == tensor.format_name:
        return array
    return convert_layout(array, Conversion(tensor.format_name, form.layout, form.shape, tensor.groups))


def _target_shape(tensor: DumpTensor, form: Logical, layout: str) -> Shape | None:
    if form.layout == tensor.format_name and not is_plain(form.layout):
        # A converter of the user's own may know what to do with the stated shape, or without any.
        return tensor.original_shape
    if not is_plain(layout):
        return None
    if set(form.layout) == set(layout) and len(form.shape) == len(layout):
        return permuted_shape(form.shape, form.layout, layout)
    return form.shape


def _unknown_shape(tensor: DumpTensor) -> UlpscopeError:
    original = "none" if tensor.original_shape is None else list(tensor.original_shape)
    return bad_shape(
        f"{tensor.name} is {tensor.format_name} {list(tensor.shape or ())}; its original shape: {original}"
    )
