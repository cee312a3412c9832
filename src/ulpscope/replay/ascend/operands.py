"""Dumped tensors as a definition needs them: in the network's order, with names of their axes, in high precision."""

from dataclasses import dataclass

import numpy as np

from ulpscope.dialects.ascend.dump_file.records import DumpTensor
from ulpscope.dialects.ascend.logical import (
    VECTOR,
    Logical,
    Preferred,
    logical_array,
    logical_form,
    logical_type,
)
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.numerics.layouts.orders import TILED, is_plain, plain_layouts
from ulpscope.records.graphs import TensorDesc
from ulpscope.replay.ascend.defining import Array, Form, Operand
from ulpscope.replay.recorded import CannotReplayError

NO_NAMES = "ND"


@dataclass(frozen=True, slots=True)
class KnownTensor:
    """A dumped tensor whose order in the network is known."""

    tensor: DumpTensor
    logical: Logical
    form: Form

    def operand(self) -> Operand:
        """What a definition reads: floats as float64, integers as int64."""
        array = self._array()
        if array.dtype.kind in "iu" and array.dtype.itemsize < 8:
            return Operand(array.astype(np.int64), self.form.dtype, self.form.layout)
        return Operand(array, self.form.dtype, self.form.layout)

    def result(self) -> Array:
        """What a definition's result is set against: floats as float64, all else in its own type."""
        return self._array()

    def _array(self) -> Array:
        array = logical_array(self.tensor, self.logical)
        return array.astype(np.float64) if DTYPES[self.form.dtype].kind is DtypeKind.FLOAT else array


def known_tensor(tensor: DumpTensor, desc: TensorDesc | None, preferred: Preferred) -> KnownTensor:
    """The graph's word on its order counts where it fits the dump; CannotReplayError if nothing is known."""
    logical = _told(tensor, desc) or logical_form(tensor, preferred)
    if logical.layout == tensor.format_name and not is_plain(logical.layout):
        raise CannotReplayError(f"its {tensor.side.value} is {tensor.format_name}, whose order is not known")
    if logical.guessed:
        told = f"{tensor.format_name} of {list(logical.shape)}, which may be {logical.layout} or another order"
        raise CannotReplayError(f"its {tensor.side.value} is {told}: neither graph nor dump tells")
    dtype = logical_type(tensor)
    if dtype not in DTYPES or DTYPES[dtype].kind is DtypeKind.COMPLEX:
        raise CannotReplayError(f"its {tensor.side.value} is {dtype}")
    return KnownTensor(tensor, logical, Form(logical.shape, dtype, _named_axes(logical, desc)))


def _told(tensor: DumpTensor, desc: TensorDesc | None) -> Logical | None:
    """What the graph says about a tensor in tiles."""
    if desc is None or desc.origin_layout is None or tensor.format_name not in TILED or tensor.shape is None:
        return None
    shape = tensor.original_shape or desc.origin_shape
    if not shape:
        return None
    fitting = plain_layouts(tensor.format_name, tensor.shape, shape, groups=tensor.groups)
    return Logical(shape, desc.origin_layout) if desc.origin_layout in fitting else None


def _named_axes(logical: Logical, desc: TensorDesc | None) -> str:
    """The dump's own word; a dump that says ND may be of a tensor whose axes the graph names."""
    if logical.layout == VECTOR:
        return VECTOR
    for layout in (logical.layout, "" if desc is None else desc.layout):
        if layout != NO_NAMES and is_plain(layout) and len(layout) == len(logical.shape):
            return layout
    return NO_NAMES
