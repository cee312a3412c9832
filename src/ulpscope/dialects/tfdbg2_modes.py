"""What tfdbg2 wrote of a tensor instead of the tensor itself: numbers about it, as its mode lists them.

CURT_HEALTH     tensor, any of inf and nan
CONCISE_HEALTH  tensor, elements, -inf, inf, nan
FULL_HEALTH     tensor, device, type, rank, elements, -inf, inf, nan, negative, zero, positive (finite ones)
SHAPE           tensor, type, rank, elements, and the last six sizes of the shape
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from ulpscope.dialects.graphs.messages import TENSORFLOW_DTYPES
from ulpscope.dialects.tfdbg_event import TensorMessage
from ulpscope.dialects.wire import WireError
from ulpscope.numerics.dtypes import DTYPES


class Mode(IntEnum):
    """TensorDebugMode of debug_event.proto."""

    UNSPECIFIED = 0
    NO_TENSOR = 1
    CURT_HEALTH = 2
    CONCISE_HEALTH = 3
    FULL_HEALTH = 4
    SHAPE = 5
    FULL_NUMERICS = 6
    FULL_TENSOR = 7


UNKNOWN = "type not told"
_LENGTHS = {Mode.CURT_HEALTH: 2, Mode.CONCISE_HEALTH: 5, Mode.FULL_HEALTH: 11, Mode.SHAPE: 10}
_SIZES = 6
"""Of a shape."""
_MOST = 2**62


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor that was not dumped."""

    dtype: str
    shape: tuple[int, ...]
    """Of more than one axis, only SHAPE tells it; else it is the number of elements."""
    numbers: Mapping[str, float | int | None] = field(default_factory=dict)
    """By columns of a trace's values."""


def mode_name(mode: int) -> str:
    return Mode(mode).name if mode in list(Mode) else f"mode {mode}"


def described(mode: int, message: TensorMessage) -> Described:
    """What is known of a tensor; WireError if the numbers are not those of the mode."""
    known = Mode(mode) if mode in list(Mode) else Mode.UNSPECIFIED
    wanted = _LENGTHS.get(known)
    if wanted is None or message.dtype not in DTYPES:
        # Of integers an empty message stands there.
        return Described(UNKNOWN, ())
    numbers = message.array().reshape(-1)
    if message.dtype not in ("float32", "float64") or len(numbers) != wanted:
        raise WireError(f"has {len(numbers)} numbers of {message.dtype} where {known.name} has {wanted}")
    if not all(-_MOST < float(number) < _MOST for number in numbers):
        raise WireError(f"has numbers of {known.name} that count nothing")
    return _READERS[known]([int(number) for number in numbers])


def _curt(numbers: list[int]) -> Described:
    # Which of them it is, and how often, is not told: one at least.
    return Described(UNKNOWN, (), {"nan": int(numbers[1] > 0), "pos_inf": 0, "neg_inf": 0})


def _concise(numbers: list[int]) -> Described:
    _, elements, negative, positive, nan = numbers
    return Described(UNKNOWN, (elements,), {"nan": nan, "pos_inf": positive, "neg_inf": negative})


def _full(numbers: list[int]) -> Described:
    _, _, dtype, rank, elements, neg_inf, pos_inf, nan, _, zero, _ = numbers
    counts = {"nan": nan, "pos_inf": pos_inf, "neg_inf": neg_inf, "zero": zero}
    return Described(_dtype(dtype), (elements,) if rank else (), counts)


def _shape(numbers: list[int]) -> Described:
    _, dtype, rank, elements, *sizes = numbers
    told = tuple(sizes[:rank]) if 0 <= rank <= _SIZES else (elements,)
    if min(told, default=0) < 0 or math.prod(told) >= _MOST:
        raise WireError(f"has a shape {list(told)} that no tensor has")
    return Described(_dtype(dtype), told)


def _dtype(number: int) -> str:
    return TENSORFLOW_DTYPES.get(number, f"type {number}")


_READERS = {Mode.CURT_HEALTH: _curt, Mode.CONCISE_HEALTH: _concise, Mode.FULL_HEALTH: _full, Mode.SHAPE: _shape}
