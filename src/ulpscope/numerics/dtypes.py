"""One table of element types, by the short names that traces use ("float32", "bfloat16", "float8_e4m3fn")."""

from dataclasses import dataclass
from enum import Enum
from functools import cache

import numpy as np
from numpy.typing import NDArray


class DtypeKind(str, Enum):
    FLOAT = "float"
    COMPLEX = "complex"
    INT = "int"
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class Dtype:
    """What arithmetic and files need to know about an element type."""

    name: str
    kind: DtypeKind
    item_size: int
    smallest_normal: float = 0.0
    unit_roundoff: float = 0.0
    """Half the distance from 1 to the next number; 0 for integers, which do not round."""
    largest: float = 0.0
    real: str | None = None
    """Of a complex type: the type of its two parts."""

    @property
    def has_sketch(self) -> bool:
        return self.kind in (DtypeKind.FLOAT, DtypeKind.COMPLEX)

    @property
    def is_double(self) -> bool:
        """Whether float32 does not hold its numbers: its sketches are stored more exactly."""
        return self.has_sketch and self.unit_roundoff < 2.0**-24

    @property
    def parts(self) -> int:
        """Numbers that one element holds: 2 for a complex type."""
        return 2 if self.kind is DtypeKind.COMPLEX else 1


def _float(name: str, *, size: int, significand: int, lowest: int, largest: float) -> Dtype:
    """A type of `significand` bits (the hidden one counted) whose smallest normal number is 2**lowest."""
    return Dtype(
        name=name,
        kind=DtypeKind.FLOAT,
        item_size=size,
        smallest_normal=2.0**lowest,
        unit_roundoff=2.0**-significand,
        largest=largest,
    )


def _complex(name: str, real: Dtype) -> Dtype:
    return Dtype(
        name=name,
        kind=DtypeKind.COMPLEX,
        item_size=2 * real.item_size,
        smallest_normal=real.smallest_normal,
        unit_roundoff=real.unit_roundoff,
        largest=real.largest,
        real=real.name,
    )


_FLOATS = (
    _float("float64", size=8, significand=53, lowest=-1022, largest=1.7976931348623157e308),
    _float("float32", size=4, significand=24, lowest=-126, largest=(2 - 2.0**-23) * 2.0**127),
    _float("float16", size=2, significand=11, lowest=-14, largest=65504.0),
    _float("bfloat16", size=2, significand=8, lowest=-126, largest=(2 - 2.0**-7) * 2.0**127),
    _float("float8_e4m3fn", size=1, significand=4, lowest=-6, largest=448.0),
    _float("float8_e4m3fnuz", size=1, significand=4, lowest=-7, largest=240.0),
    _float("float8_e5m2", size=1, significand=3, lowest=-14, largest=57344.0),
    _float("float8_e5m2fnuz", size=1, significand=3, lowest=-15, largest=57344.0),
    _float("float8_e8m0fnu", size=1, significand=1, lowest=-127, largest=2.0**127),
)
_BY_NAME = {dtype.name: dtype for dtype in _FLOATS}
_COMPLEXES = (
    _complex("complex32", _BY_NAME["float16"]),
    _complex("complex64", _BY_NAME["float32"]),
    _complex("complex128", _BY_NAME["float64"]),
)
_INTS = tuple(Dtype(f"{prefix}{8 * size}", DtypeKind.INT, size) for prefix in ("int", "uint") for size in (1, 2, 4, 8))
DTYPES: dict[str, Dtype] = {
    dtype.name: dtype for dtype in (*_FLOATS, *_COMPLEXES, *_INTS, Dtype("bool", DtypeKind.BOOL, 1))
}


FLOATING = frozenset(name for name, dtype in DTYPES.items() if dtype.kind in (DtypeKind.FLOAT, DtypeKind.COMPLEX))
"""Names of those that can hold inf and nan, in one part at least."""


@cache
def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy element type of that name; small floats come from ml_dtypes. complex32 has none: its real parts do."""
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes

        small: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
        return small
    return np.dtype(name)


@cache
def float8_values(name: str) -> NDArray[np.float32]:
    """What each of the 256 bytes stands for."""
    values = np.arange(256, dtype=np.uint8).view(numpy_dtype(name)).astype(np.float32)
    values.setflags(write=False)
    return values
