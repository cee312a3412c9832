"""TensorFlow's tensors as recording wants to know them: eager ones as numpy's arrays, variables by their handles.

An eager tensor never changes, and its `_id` is never given to another. A variable's content is told by its handle and
the number of writes that were seen.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import dtypes, ops, tensor, tensor_shape

from ulpscope.capture.recording.arguments import Arguments
from ulpscope.capture.recording.arrays import ArrayTensors
from ulpscope.capture.recording.tensors import Described, HostRows
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.compiled import summarizer_of

Array = NDArray[Any]

EAGER = ops.EagerTensor
RESOURCE = dtypes.resource

_WORDS = {"half": "float16"}
"""TensorFlow's names of element types that differ from ours."""


@lru_cache(maxsize=256)
def word_of(dtype: Any) -> str:
    """An element type's name as traces have it."""
    return _WORDS.get(dtype.name) or str(dtype.name)


def _words(item: Any) -> Any:
    if isinstance(item, dtypes.DType):
        return {"$dtype": word_of(item)}
    if isinstance(item, tensor_shape.TensorShape):
        return None if item.rank is None else list(item.as_list())
    return None


ARGUMENTS = Arguments(EAGER, _words, frozenset({dtypes.DType}))
SYMBOLIC_ARGUMENTS = Arguments(tensor.Tensor, _words, frozenset({dtypes.DType}))
"""While a graph is made."""


def array_of(tensor: Any) -> Array:
    """An eager tensor's elements: its own memory if that is the host's."""
    found: Array = tensor._numpy_internal()
    return found


def device_word(tensor: Any) -> str:
    """`cpu`, `gpu:0`."""
    kind, _, number = (tensor.device or "CPU:0").rpartition("/")[2].removeprefix("device:").lower().partition(":")
    return kind if kind == "cpu" else f"{kind}:{number}"


def variable_dtype(handle: Any) -> Any:
    """The element type of the variable behind a handle; None if no variable is."""
    if handle.dtype is not RESOURCE:
        return None
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    found = dtypes.as_dtype(data.shape_and_type[0].dtype)
    return None if found in (dtypes.variant, dtypes.resource) else found


def read_variable(handle: Any, dtype: Any) -> Any:
    """A variable's content as an eager tensor. Neither callbacks nor gradient tapes see this."""
    return execute.quick_execute("ReadVariableOp", 1, [handle], ("dtype", dtype), context.context())[0]


def describe(tensor: Any) -> Described:
    """A tensor that cannot be read."""
    shape = tuple(-1 if size is None else size for size in tensor.shape) if tensor.shape.rank is not None else (-1,)
    return Described(word_of(tensor.dtype), shape, (), device_word(tensor), "strided", False)


@lru_cache(maxsize=4096)
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of elements that lie one after the other, counted in elements."""
    strides: list[int] = []
    length = 1
    for size in reversed(shape):
        strides.append(length)
        length *= size
    return tuple(reversed(strides))


def is_readable(dtype: Any) -> bool:
    """Whether elements of this type can be summarised."""
    return word_of(dtype) in DTYPES


class TensorFlowTensors(ArrayTensors):
    """Arrays that show elements of eager tensors, or of what variables held when they were read."""

    def dtype_word(self, dtype: Any) -> str:
        return str(dtype)

    def make_rows(self) -> HostRows:
        return HostRows(_write_row)


def _write_row(array: Array, address: int) -> None:
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    size = 2 * array.size if array.dtype.kind == "c" else array.size
    _summarizer_of(array.dtype)(array.__array_interface__["data"][0], size, address)


@lru_cache(maxsize=64)
def _summarizer_of(dtype: Any) -> Any:
    return summarizer_of(str(dtype))
