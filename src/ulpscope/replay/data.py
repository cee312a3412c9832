"""The elements a recorded call is executed with: those that were saved, or others like what was recorded."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.regenerate.values import regenerate
from ulpscope.records.calls import Value
from ulpscope.records.checks import CaseId, Variant
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.trace.reader import RankTrace


def saved_array(rank: RankTrace, value: Value) -> NDArray[Any]:
    """A value's saved elements."""
    array = rank.data(value)
    if array is None:
        raise CannotReplayError("its data was not saved" if value.initialized else "it reads uninitialized memory")
    return np.asarray(array).reshape(value.shape)


def drawn_array(case: CaseId, place: str, value: Value, *, seed: int, variant: Variant) -> NDArray[Any]:
    """Elements like those recorded: their seed depends on the case alone, not on what ran before it."""
    if value.layout != "strided":
        raise CannotReplayError(f"an input is {value.layout}")
    if DTYPES.get(value.dtype) is None or value.dtype == "complex32":
        raise CannotReplayError(f"no random data of dtype {value.dtype}")
    named = f"{seed}/{case.name}/{case.variant.value}/{place}".encode()
    number = int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "little")
    return regenerate(value, seed=number, variant=variant)
