"""Signs, keys and borders of numerics, as tensors of a device: made once a device, then only read.

And float64 bits made by integer arithmetic, for devices that have no float64 (Apple's, for one).
"""

from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.constants import (
    BLOCK_ELEMENTS,
    BLOCK_ROWS,
    BLOCK_SALT,
    EXPONENT_BIAS,
    EXPONENT_BIN_SHIFT,
    EXPONENT_BINS,
    EXPONENTS,
    GROUP_ROWS,
    NAN,
    NEG_INF,
    POS_INF,
    ROTATION_MUL,
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
from ulpscope.numerics.summaries.summary import digest_keys, empty_row, sum_signs, words_per_pair

# A chunk is what is read at once: 2**20 elements, which take about 80 MB of temporary memory.
CHUNK_BLOCKS = -(-(2**20) // BLOCK_ELEMENTS)
# A span is what is hashed at once: hashing takes as many operations as reading a chunk, and hardly any memory.
SPAN_CHUNKS = 8
# Integers that carry an element's bits, by its size.
CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TURNS = 4


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

    size_mask: int
    borders: Tensor
    """One a row. The last ones are: set aside, inf, inf again, nan."""
    infinities: Tensor
    """Bits of inf and -inf, one a row."""
    differences: Tensor
    """Makes counts, in the summary's order, of how many sizes reach each border, are inf, are -inf.

    Of the shape counts x 1 x those numbers."""


@dataclass(frozen=True, slots=True)
class Span:
    """What sets the blocks of a span apart from each other."""

    first_block: int
    variants: Tensor
    """Which of the sign patterns a block has: by its rotation and its turn."""
    columns: Tensor
    """The sign that a block gives to a column."""
    sources: Tensor
    """For each block and sum: the column that counts into it; blocks x sums x 1."""


class Constants:
    """Of one device, for sums in `dtype`: float64, or float32 where a device has no better."""

    def __init__(self, device: torch.device, dtype: torch.dtype, *, chunk_blocks: int = CHUNK_BLOCKS) -> None:
        self.device, self.dtype, self.chunk_blocks = device, dtype, chunk_blocks
        sums, blocks = np.arange(SKETCH_LENGTH), chunk_blocks * SPAN_CHUNKS
        counting = torch.arange(1, blocks * SKETCH_LENGTH + 1, device=device, dtype=torch.int64)
        self._counted_up = counting * _signed(SPLITMIX_GAMMA)
        """(i + 1) * GAMMA."""
        self._patterns = _on(device, _patterns())
        """Signs of a block's elements, for each rotation and turn."""
        self._rotated = _on(device, (sums + sums[:, None]) % SKETCH_LENGTH)
        """For each rotation: the sums that the columns count into."""
        self._first_span = self._make_span(0, blocks)
        self._first_signs = self._make_signs(self._first_span, 0, chunk_blocks)
        """Of the elements of the first chunk; most values have but this one."""
        self.digest_keys = {size: _on(device, _keys(size)) for size in CARRIERS}
        """By item size; of the shape rows x 1 x words of a pair."""
        zeros = torch.zeros(BLOCK_ELEMENTS, dtype=torch.int64, device=device)
        self.zeros = {carrier: zeros.view(carrier) for carrier in CARRIERS.values()}
        """A block of them."""
        self.plus_zero = torch.zeros(1, dtype=dtype, device=device)
        self.neutral = _on(device, np.array([[0.0], [inf], [-inf]]), dtype)
        """What stands for elements that must not change a sum, a minimum, a maximum; one a row."""
        counts = torch.float64 if dtype == torch.float64 else torch.int64
        self.zero_count = _on(device, np.arange(NAN, SKETCH) == ZERO, counts)
        """Among the counts: 1 for the zeros. float64, or int64 where float32 would lose counts."""
        self.empty_row = _on(device, empty_row().view(np.int64))
        """As bits."""
        self._codes: dict[torch.dtype, Codes] = {}

    def weyl(self, first: int, count: int) -> Tensor:
        """(i + 1) * GAMMA for `count` numbers from this one on: up to the columns of a span."""
        words = self._counted_up[:count]
        return words + _signed(first * SPLITMIX_GAMMA) if first else words

    def span(self, first_block: int, count: int) -> Span:
        """What belongs to these blocks of one span, and perhaps to more that follow."""
        return self._make_span(first_block, count) if first_block else self._first_span

    def signs(self, span: Span, start: int, count: int) -> Tensor:
        """A sign for each element of these blocks, which lie in one chunk of the span."""
        return self._make_signs(span, start, count) if span.first_block or start else self._first_signs[:count]

    def codes(self, dtype: torch.dtype) -> Codes:
        if dtype not in self._codes:
            self._codes[dtype] = _make_codes(dtype, self.device, self.zero_count.dtype)
        return self._codes[dtype]

    def _make_span(self, first_block: int, count: int) -> Span:
        words = mix(self.weyl(first_block, count) + BLOCK_SALT)
        rotations = (_shifted(words * _signed(ROTATION_MUL), 32) * SKETCH_LENGTH) >> 32
        sums = self._rotated.index_select(0, rotations)
        return Span(
            first_block=first_block,
            variants=rotations * _TURNS + ((words >> SKETCH_LENGTH) & (_TURNS - 1)),
            columns=1 - 2 * ((words[:, None] >> sums) & 1).to(torch.int8),
            sources=self._rotated.index_select(0, (SKETCH_LENGTH - rotations) % SKETCH_LENGTH)[:, :, None],
        )

    def _make_signs(self, span: Span, start: int, count: int) -> Tensor:
        patterns = self._patterns.index_select(0, span.variants[start : start + count])
        columns = span.columns[start : start + count, None, :, None]
        return patterns.view(-1, BLOCK_ROWS, SKETCH_LENGTH, 2) * columns


@cache
def constants_of(device: torch.device) -> Constants:
    try:
        torch.ones(1, dtype=torch.float64, device=device).sum()
    except (RuntimeError, TypeError):
        return Constants(device, torch.float32)
    return Constants(device, torch.float64)


def _on(device: torch.device, array: NDArray[Any], dtype: torch.dtype | None = None) -> Tensor:
    # A copy that may block is one that synchronises.
    return torch.tensor(array, dtype=dtype).to(device, non_blocking=True)


def _keys(item_size: int) -> NDArray[np.int64]:
    words = words_per_pair(item_size)
    return digest_keys(BLOCK_ROWS * words).reshape(BLOCK_ROWS, 1, words)


def _patterns() -> NDArray[np.int8]:
    """Element signs for each rotation and turn, column by column, without those that a block gives to its sums."""
    columns = np.arange(SKETCH_LENGTH)
    rows = sum_signs().reshape(-1, GROUP_ROWS, SKETCH_LENGTH, 2)
    rotated = rows[:, :, (columns + columns[:, None]) % SKETCH_LENGTH]
    one, other = np.array([1, -1, 1, -1]), np.array([1, 1, -1, -1])
    turns = np.stack([np.ones(_TURNS), one, other, one * other])
    patterns: NDArray[np.float64] = np.einsum("gt,grkch->ktgrch", turns, rotated)
    return patterns.reshape(SKETCH_LENGTH * _TURNS, BLOCK_ELEMENTS).astype(np.int8)


def _code(number: float, dtype: torch.dtype) -> int:
    """The lowest bits, above those of 0, that stand for a number no less than this one: a power of 2, or inf."""
    if dtype == torch.float64:
        return int(np.float64(number).view(np.int64))
    if dtype == torch.float16:
        with np.errstate(over="ignore", under="ignore"):
            return max(1, int(np.float16(number).view(np.int16)))
    code = int(np.float32(number).view(np.int32))
    return code >> 16 if dtype == torch.bfloat16 else code


def _make_codes(dtype: torch.dtype, device: torch.device, counts: torch.dtype) -> Codes:
    """For numbers of this type; those of one byte are counted as float32."""
    carrier = dtype if dtype.itemsize > 1 else torch.float32
    integer = CARRIERS[carrier.itemsize]
    sign = 1 << (8 * carrier.itemsize - 1)
    infinity, set_aside = _code(inf, carrier), _code(2.0**SET_ASIDE_EXPONENT, carrier)
    normal = _code(DTYPES[str(dtype).removeprefix("torch.")].smallest_normal, carrier)
    bins = [_code(2.0 ** ((k << EXPONENT_BIN_SHIFT) - EXPONENT_BIAS), carrier) for k in range(1, EXPONENT_BINS)]
    borders = [*sorted({0, 1, normal, *bins} - {infinity}), set_aside, infinity, infinity, infinity + 1]
    return Codes(
        size_mask=sign - 1,
        borders=_on(device, np.array(borders)[:, None], integer),
        infinities=_on(device, np.array([[infinity], [infinity - sign]]), integer),
        differences=_on(device, _differences(borders, [1, *bins, infinity], normal)[:, None], counts),
    )


def _differences(borders: list[int], edges: list[int], normal: int) -> NDArray[np.int64]:
    """A row a count: +1 and -1 at the columns whose difference it is."""
    columns = {border: column for column, border in enumerate(borders)}
    zero, nonzero, nan, positive, negative = columns[0], columns[1], *range(len(borders) - 1, len(borders) + 2)
    pairs: dict[int, tuple[int, int | None]] = {
        NAN: (nan, None),
        POS_INF: (positive, None),
        NEG_INF: (negative, None),
        SET_ASIDE: (len(borders) - 4, None),
        ZERO: (zero, nonzero),
        SUBNORMAL: (nonzero, columns[normal]),
    }
    pairs |= {EXPONENTS + k: (columns[edges[k]], columns[edges[k + 1]]) for k in range(EXPONENT_BINS)}
    table = np.zeros((SKETCH - NAN, len(borders) + 2), np.int64)
    for slot, (reached, beyond) in pairs.items():
        table[slot - NAN, reached] += 1
        if beyond is not None:
            table[slot - NAN, beyond] -= 1
    return table


_EXPONENT = 52
_BIAS = 1023
_FLOAT32_BIAS = 127
_FLOAT32_FRACTION = 23
_NORM = 3


def row_bits(sums: Tensor, counts: Tensor, sketch: Tensor, digest: Tensor) -> Tensor:
    """A summary row's bits. `sums` holds the norm where the row holds its square, which float32 could not hold."""
    bits = double_bits(sums)
    bits[_NORM].copy_(double_bits_of_square(sums[_NORM]))
    return torch.cat([bits, double_bits_of_integers(counts), double_bits(sketch), digest])


def _fields(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sign, biased exponent and fraction of float32 numbers, as int64."""
    bits = numbers.view(torch.int32).to(torch.int64)
    return (bits >> 31) & 1, (bits >> _FLOAT32_FRACTION) & 0xFF, bits & ((1 << _FLOAT32_FRACTION) - 1)


def double_bits(numbers: Tensor) -> Tensor:
    """The float64 bits of float32 numbers; subnormal ones become 0."""
    sign, exponent, fraction = _fields(numbers)
    wide = (exponent + _BIAS - _FLOAT32_BIAS).masked_fill(exponent == 0xFF, 0x7FF)
    size = (wide << _EXPONENT) | (fraction << (_EXPONENT - _FLOAT32_FRACTION))
    return (sign << 63) | size.masked_fill(exponent == 0, 0)


def double_bits_of_integers(numbers: Tensor) -> Tensor:
    """The float64 bits of integers from 0 to 2**52, exactly."""
    power = _fields(numbers.to(torch.float32))[1] - _FLOAT32_BIAS
    power = power.clamp(min=0)
    power = power - (numbers < (torch.ones_like(power) << power)).to(torch.int64)  # float32 may have rounded up
    power = power.clamp(min=0)
    fraction = (numbers << (_EXPONENT - power)) & ((1 << _EXPONENT) - 1)
    return (((power + _BIAS) << _EXPONENT) | fraction).masked_fill(numbers == 0, 0)


def double_bits_of_square(number: Tensor) -> Tensor:
    """The float64 bits of a float32 number's exact square."""
    _, exponent, fraction = _fields(number)
    whole = fraction | (1 << _FLOAT32_FRACTION)
    scale = 2 * (exponent - _FLOAT32_BIAS - _FLOAT32_FRACTION)
    bits = double_bits_of_integers(whole * whole) + (scale << _EXPONENT)
    return bits.masked_fill(exponent == 0, 0)
