"""One tensor of another tool's file: what it is before its data is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ulpscope.records.errors import UlpscopeError

AnyArray: TypeAlias = NDArray[Any]

# numpy has no complex number of two halves; a trace gives such elements in the same form.
COMPLEX32 = np.dtype([("real", np.float16), ("imag", np.float16)])


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file. Its data is mapped where the format allows it, and read-only."""

    dtype: str
    """A name of numerics.dtypes.DTYPES, or the file's own word for a type that cannot be compared."""
    shape: tuple[int, ...]
    read: Callable[[], AnyArray]

    def array(self) -> AnyArray:
        """The elements; UlpscopeError if they cannot be had."""
        array = self.read().view()
        array.setflags(write=False)
        return array


TensorFile: TypeAlias = Mapping[str, StoredTensor]


def unreadable(path: Path, problem: str, *, expected: str, next_step: str = "") -> UlpscopeError:
    """A file that is not what its name says."""
    return UlpscopeError(
        f"{path}: {problem}", expected=expected, next_step=next_step or "copy or write the file again, and repeat"
    )


def unsupported(path: Path, key: str, *, dtype: str, shape: tuple[int, ...]) -> StoredTensor:
    """A tensor whose elements are of no type that ulpscope compares: listed, but without data."""

    def refuse() -> AnyArray:
        named = f"tensor {key!r} of {path}" if key else str(path)
        raise UlpscopeError(
            f"{named} holds {dtype}",
            expected="floating point (float64 to float8), complex, integer or bool elements",
            next_step="convert it to one of these before comparing",
        )

    return StoredTensor(dtype, shape, refuse)
