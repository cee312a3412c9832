"""TensorFlow's tensors for an execution, and what comes out of it as numpy's arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.replay.recorded import CannotReplayError

Arrays = Mapping[str, NDArray[Any]]

_RAISED = {
    tf.float16: tf.float64, tf.bfloat16: tf.float64, tf.float32: tf.float64, tf.complex64: tf.complex128,
}  # fmt: skip


def tf_dtype(name: str) -> Any:
    """The element type of a name as traces have it."""
    try:
        return tf.as_dtype(name)
    except TypeError as error:
        raise CannotReplayError(f"this TensorFlow has no dtype {name}") from error


def word_of(array: NDArray[Any]) -> str:
    """The name that traces have for an array's element type."""
    return str(array.dtype)


def raised(dtype: Any) -> Any:
    """The element type in which a reference computes what has this one."""
    return _RAISED.get(dtype, dtype)


def is_float(array: NDArray[Any]) -> bool:
    known = DTYPES.get(word_of(array))
    return known is not None and known.has_sketch


def to_floats(array: NDArray[Any]) -> NDArray[Any]:
    """Floats as float64, a complex number as two of them along a last axis; anything else as it is."""
    if array.dtype.kind == "c":
        parts = np.asarray(array, np.complex128)
        return np.stack([parts.real, parts.imag], axis=-1)
    return np.asarray(array, np.float64) if is_float(array) else np.asarray(array)


def array_of(tensor: Any) -> NDArray[Any]:
    found: NDArray[Any] = np.asarray(tensor.numpy())
    return found
