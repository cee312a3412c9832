"""Signs, keys and borders of numerics, as tensors of a device: made once a device, then only read."""

from dataclasses import dataclass, field
from functools import cache
from math import inf

import numpy as np
import torch
from torch import Tensor

from ulpscope.numerics.constants import (
    BLOCK_ELEMENTS,
    BLOCK_ROTATION_SALT,
    BLOCK_ROWS,
    BLOCK_SIGN_SALT,
    EXPONENT_BIAS,
    EXPONENT_BIN_SHIFT,
    EXPONENT_BINS,
    EXPONENTS,
    NAN,
    NEG_INF,
    POS_INF,
    ROTATION_BITS,
    ROW_SIGN_SHIFT,
    SET_ASIDE,
    SET_ASIDE_EXPONENT,
    SKETCH,
    SKETCH_LENGTH,
    SPLITMIX_GAMMA,
    SPLITMIX_MUL_1,
    SPLITMIX_MUL_2,
    SUBNORMAL,
    ZERO,
)
from ulpscope.numerics.digest import digest_keys
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.sketch import sign_table

# 2M elements: about 170 MB of temporary memory.
CHUNK_BLOCKS = 2048
_COUNTS = SKETCH - NAN
_INTEGERS = (torch.uint8, torch.int16, torch.int32, torch.int64)


def _signed(word: int) -> int:
    """torch has no wrapping uint64; its int64 wraps likewise."""
    word %= 2**64
    return word - 2**64 if word >= 2**63 else word


def _shifted(words: Tensor, bits: int) -> Tensor:
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def mix(words: Tensor) -> Tensor:
    """numerics.hashing.mix on int64."""
    words = (words ^ _shifted(words, 30)) * _signed(SPLITMIX_MUL_1)
    words = (words ^ _shifted(words, 27)) * _signed(SPLITMIX_MUL_2)
    return words ^ _shifted(words, 31)


@dataclass(frozen=True, slots=True)
class Codes:
    """How one float type is counted: its bits without sign, an integer, are compared with borders."""

    integer: torch.dtype
    size_mask: int
    set_aside: int
    infinity: int
    infinities: Tensor
    """Bits of inf and -inf, one a row."""
    borders: Tensor
    """0, the smallest nonzero, the smallest normal, exponent bins 1 to 31, set aside, inf, nan; one a row."""
    zero: Tensor
    lowest: Tensor
    highest: Tensor


@dataclass(frozen=True)
class Constants:
    device: torch.device
    dtype: torch.dtype
    """Of sums: float64, or float32 where a device has no better."""
    digest_keys: Tensor
    row_table: Tensor
    row_bits: Tensor
    columns: Tensor
    first_weyl: Tensor
    differences: Tensor
    """Makes counts, in the row's order, of how many sizes reach each border, are inf, are -inf."""
    integer_zero: dict[torch.dtype, Tensor]
    no_range: Tensor
    no_counts: Tensor
    """float64, or int64 where float32 would lose counts."""
    no_digest: Tensor
    zero_count: Tensor
    sketch_zero: Tensor
    _first_signs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    _codes: dict[torch.dtype, Codes] = field(default_factory=dict)

    def weyl(self, first_block: int, blocks: int) -> Tensor:
        """(b + 1) * GAMMA for blocks from this one on, up to a chunk."""
        words = self.first_weyl[:blocks]
        return words + _signed(first_block * SPLITMIX_GAMMA) if first_block else words

    def signs(self, first_block: int, blocks: int) -> tuple[Tensor, Tensor]:
        """A sign for each element of these blocks, and for each block and sum the column that counts into it."""
        if first_block:
            return self._make_signs(first_block, blocks)
        if not self._first_signs:
            self._first_signs.append(self._make_signs(0, CHUNK_BLOCKS))
        signs, sources = self._first_signs[0]
        return signs[:blocks], sources[:blocks]

    def codes(self, dtype: torch.dtype) -> Codes:
        if dtype not in self._codes:
            self._codes[dtype] = _make_codes(dtype, self.device)
        return self._codes[dtype]

    def _make_signs(self, first_block: int, blocks: int) -> tuple[Tensor, Tensor]:
        counter = self.weyl(first_block, blocks)
        turns = mix(counter + BLOCK_ROTATION_SALT)
        row_signs = 1 - 2 * ((turns[:, None] >> self.row_bits) & 1).to(torch.int8)
        column_signs = 1 - 2 * ((mix(counter + BLOCK_SIGN_SALT)[:, None] >> self.columns) & 1).to(torch.int8)
        rotations = (turns & ((1 << ROTATION_BITS) - 1)) % SKETCH_LENGTH
        signs = self.row_table * row_signs[:, :, None] * column_signs[:, None, :]
        return signs, (self.columns - rotations[:, None]) % SKETCH_LENGTH


@cache
def constants_of(device: torch.device) -> Constants:
    return make_constants(device, torch.float64 if _has_float64(device) else torch.float32)


def make_constants(device: torch.device, dtype: torch.dtype) -> Constants:
    counting = torch.arange(CHUNK_BLOCKS, device=device, dtype=torch.int64)
    columns = torch.arange(SKETCH_LENGTH, device=device, dtype=torch.int64)
    keys = digest_keys(2 * BLOCK_ELEMENTS).view(np.int64).copy()
    counts = torch.float64 if dtype == torch.float64 else torch.int64
    zero_count = torch.zeros(_COUNTS, dtype=counts)
    zero_count[ZERO - NAN] = 1
    constants = Constants(
        device=device,
        dtype=dtype,
        digest_keys=torch.from_numpy(keys).to(device),
        row_table=torch.from_numpy(sign_table().astype(np.int8)).to(device),
        row_bits=torch.arange(ROW_SIGN_SHIFT, ROW_SIGN_SHIFT + BLOCK_ROWS, device=device),
        columns=columns,
        first_weyl=(counting + 1) * _signed(SPLITMIX_GAMMA),
        differences=torch.tensor(_differences(), dtype=dtype, device=device),
        integer_zero={integer: torch.zeros((1, 1), dtype=integer, device=device) for integer in _INTEGERS},
        no_range=torch.tensor([inf, -inf], dtype=dtype, device=device),
        no_counts=torch.zeros(_COUNTS, dtype=counts, device=device),
        no_digest=torch.zeros(1, dtype=torch.int64, device=device),
        zero_count=zero_count.to(device),
        sketch_zero=torch.zeros(SKETCH_LENGTH, dtype=dtype, device=device),
    )
    constants.signs(0, 1)
    return constants


def _has_float64(device: torch.device) -> bool:
    try:
        torch.ones(1, dtype=torch.float64, device=device).sum()
    except (RuntimeError, TypeError):
        return False
    return True


def _bits(number: float, double: bool) -> int:
    return int(np.array([number]).view(np.int64)[0]) if double else int(np.float32(number).view(np.int32))


def _make_codes(dtype: torch.dtype, device: torch.device) -> Codes:
    name = str(dtype).removeprefix("torch.")
    double = DTYPES[name].item_size == 8
    integer = torch.int64 if double else torch.int32
    bins = [2.0 ** ((k << EXPONENT_BIN_SHIFT) - EXPONENT_BIAS) for k in range(1, EXPONENT_BINS)]
    edges = [DTYPES[name].smallest_normal, *bins, 2.0**SET_ASIDE_EXPONENT, inf]
    borders = [0, 1, *(_bits(edge, double) for edge in edges), _bits(inf, double) + 1]
    zero, lowest, highest = torch.tensor([0.0, -inf, inf], dtype=torch.float64 if double else torch.float32).to(device)
    return Codes(
        integer=integer,
        size_mask=2 ** (63 if double else 31) - 1,
        set_aside=borders[-3],
        infinity=borders[-2],
        infinities=torch.tensor([_bits(inf, double), _bits(-inf, double)], dtype=integer, device=device)[:, None],
        borders=torch.tensor(borders, dtype=integer, device=device)[:, None],
        zero=zero,
        lowest=lowest,
        highest=highest,
    )


def _differences() -> list[list[int]]:
    """A row a count: +1 and -1 at the columns whose difference it is."""
    everything, nonzero, normal, first_bin = 0, 1, 2, 3
    set_aside, infinite, nan, positive, negative = range(first_bin + EXPONENT_BINS - 1, first_bin + EXPONENT_BINS + 4)
    edges = [nonzero, *range(first_bin, set_aside), infinite]
    pairs: dict[int, tuple[int, int | None]] = {
        NAN: (nan, None),
        POS_INF: (positive, None),
        NEG_INF: (negative, None),
        SET_ASIDE: (set_aside, None),
        ZERO: (everything, nonzero),
        SUBNORMAL: (nonzero, normal),
    }
    pairs |= {EXPONENTS + k: (edges[k], edges[k + 1]) for k in range(EXPONENT_BINS)}
    rows = [[0] * (negative + 1) for _ in range(_COUNTS)]
    for slot, (reached, beyond) in pairs.items():
        rows[slot - NAN][reached] = 1
        if beyond is not None:
            rows[slot - NAN][beyond] = -1
    return rows
