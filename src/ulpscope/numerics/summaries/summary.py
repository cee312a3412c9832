"""The summary of a value in plain numpy: the reference that every compiled or device path must equal.

A row of at.ROW_LENGTH float64 holds it while it travels; rows.py turns rows into what is stored.

The sketch: 61 signed sums of a value, from which the distance of two values can be told.

The element at block b, row r, pair column c, half h counts into sum k = (c + rotation(b)) mod 61 with the sign

    pattern(k, r mod 4, h)  xor  group(k, r div 4)  xor  turn(b, r div 4)  xor  bit k of hash(BLOCK_SALT, b)

where 1 means minus. Among the four signs of pattern(k, ., h), and of group(k, .), three agree against one; of turn(b,
.) an even number are minus. So a constant error over a column of a block adds up to 4 = sqrt(16): there is no block in
which it cancels, and none in which it doubles. Signs belong to the sum, not to the column, so that whoever owns a sum
keeps them at hand; the rotation moves a channel whose width is a multiple of 61 to another sum in every block.

The digest: 64 bits over a value's bytes, made of one part a block and pair column that add up in any order.

A pair's bytes are read as U little-endian signed words w: of a byte type one of 16 bits, else 32-bit ones. With block
b, row r, pair column c (the last block padded with zeros):

    h_bc = sum over r, u of A_(r * U + u) * w_brcu,  A_j = hash(DIGEST_KEY_SALT, j) | 1, its low half, signed
    raw = sum over b, c of mix(h_bc + (61 * b + c + 1) * GAMMA)
    digest = mix(raw xor seed),  the seed made of dtype and shape

all mod 2**64. Keys belong to the row alone: whoever owns a column needs no table of them.

splitmix64 is the one source of signs, rotations and keys, on numpy's wrapping uint64.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ulpscope.numerics.dtypes import DTYPES, Dtype, Floats, float8_values
from ulpscope.numerics.summaries import constants as at

AnyArray = NDArray[np.generic]
UInt64s: TypeAlias = NDArray[np.uint64]

_GAMMA = np.uint64(at.SPLITMIX_GAMMA)
_MUL_1 = np.uint64(at.SPLITMIX_MUL_1)
_MUL_2 = np.uint64(at.SPLITMIX_MUL_2)


def mix(words: UInt64s) -> UInt64s:
    """splitmix64's finalizer, a bijection of 64 bits."""
    words = (words ^ (words >> np.uint64(30))) * _MUL_1
    words = (words ^ (words >> np.uint64(27))) * _MUL_2
    return words ^ (words >> np.uint64(31))


def weyl(numbers: UInt64s) -> UInt64s:
    """(k + 1) * GAMMA: splitmix64's counter after k + 1 steps."""
    return (numbers + np.uint64(1)) * _GAMMA


def hash64(salt: int, numbers: UInt64s) -> UInt64s:
    """Outputs number k of a splitmix64 generator that was seeded with the salt."""
    return mix(np.uint64(salt) + weyl(numbers))


def count_up(start: int, stop: int) -> UInt64s:
    return np.arange(start, stop, dtype=np.uint64)


def words_per_pair(item_size: int) -> int:
    return max(1, item_size // 2)


def word_type(item_size: int) -> np.dtype[np.signedinteger]:
    return np.dtype("<i2" if item_size == 1 else "<i4")


@cache
def digest_keys(count: int) -> NDArray[np.int64]:
    """A_j: of 32 bits, so that products fit 64; odd, so that a change of one word always changes its column's sum."""
    low = (hash64(at.DIGEST_KEY_SALT, count_up(0, count)) | np.uint64(1)).astype(np.uint32)
    keys = low.view(np.int32).astype(np.int64)
    keys.setflags(write=False)
    return keys


def digest_blocks(words: NDArray[np.signedinteger], first_block: int) -> int:
    """The raw digest's part of whole blocks (shape blocks x rows x columns x words of a pair)."""
    keys = digest_keys(at.BLOCK_ROWS * words.shape[3]).reshape(at.BLOCK_ROWS, 1, -1)
    sums = (words * keys).sum(axis=(1, 3)).view(np.uint64)
    columns = count_up(first_block * at.SKETCH_LENGTH, (first_block + len(words)) * at.SKETCH_LENGTH)
    return int(mix(sums.reshape(-1) + weyl(columns)).sum(dtype=np.uint64))


def _little_endian_words(text: str) -> list[int]:
    data = text.encode()
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


@lru_cache(maxsize=65536)
def digest_seed(dtype_name: str, shape: tuple[int, ...]) -> int:
    """Folds name, rank and dimensions: equal bytes of another type or shape get another digest."""
    name = _little_endian_words(dtype_name)
    seed = np.array([at.DIGEST_SEED_SALT], dtype=np.uint64)
    for word in (len(name), *name, len(shape), *shape):
        seed = mix(weyl(seed ^ np.uint64(word)))
    return int(seed[0])


def finish_digests(raw: UInt64s, seeds: UInt64s) -> UInt64s:
    return mix(raw ^ seeds)


def finish_digest(raw: int, dtype_name: str, shape: tuple[int, ...]) -> int:
    seeds = np.array([digest_seed(dtype_name, shape)], dtype=np.uint64)
    return int(finish_digests(np.array([raw], dtype=np.uint64), seeds)[0])


_GROUPS = at.BLOCK_ROWS // at.GROUP_ROWS


@dataclass(frozen=True, slots=True)
class BlockSigns:
    """What sets the blocks start <= b < stop apart from each other."""

    sums: Floats
    """One sign a block and sum."""
    groups: Floats
    """One sign a block and group of four rows."""
    rotations: NDArray[np.int64]


def _bits(words: UInt64s, positions: UInt64s) -> UInt64s:
    return (words[:, None] >> positions) & np.uint64(1)


def _signs(bits: UInt64s) -> Floats:
    return 1.0 - 2.0 * bits.astype(np.float64)


def _odd_signs(words: UInt64s, first_bit: int) -> Floats:
    """Four signs a word, made of three of its bits; one or three of them are minus."""
    bits = _bits(words, count_up(first_bit, first_bit + 3))
    first = np.uint64(1) ^ np.bitwise_xor.reduce(bits, axis=1, keepdims=True)
    return _signs(np.concatenate([first, bits], axis=1))


@lru_cache(maxsize=1)
def sum_signs() -> Floats:
    """The 16 rows x 61 sums x 2 halves of signs that all blocks share."""
    words = hash64(at.SUM_SALT, count_up(0, at.SKETCH_LENGTH))
    pattern = np.stack([_odd_signs(words, 0), _odd_signs(words, 3)], axis=-1)
    signs: Floats = np.einsum("kg,krh->grkh", _odd_signs(words, 6), pattern).reshape(at.BLOCK_ROWS, at.SKETCH_LENGTH, 2)
    signs.setflags(write=False)
    return signs


def block_signs(start: int, stop: int) -> BlockSigns:
    words = hash64(at.BLOCK_SALT, count_up(start, stop))
    turn = _bits(words, count_up(at.SKETCH_LENGTH, at.SKETCH_LENGTH + 2))
    turns = np.stack([np.zeros_like(words), turn[:, 0], turn[:, 1], turn[:, 0] ^ turn[:, 1]], axis=1)
    half = np.uint64(32)
    fractions = (words * np.uint64(at.ROTATION_MUL)) >> half
    return BlockSigns(
        sums=_signs(_bits(words, count_up(0, at.SKETCH_LENGTH))),
        groups=_signs(turns),
        rotations=((fractions * np.uint64(at.SKETCH_LENGTH)) >> half).astype(np.int64),
    )


def source_columns(rotations: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each block and sum: the column that counts into it."""
    sums = np.arange(at.SKETCH_LENGTH, dtype=np.int64)
    return (sums - rotations[:, None]) % at.SKETCH_LENGTH


def sketch_blocks(elements: Floats, first_block: int) -> Floats:
    """The sketch of whole blocks (shape blocks x 1952), the first of which has that number."""
    blocks = len(elements)
    own = block_signs(first_block, first_block + blocks)
    sources = source_columns(own.rotations)[:, None, :, None]
    pairs = np.take_along_axis(elements.reshape(blocks, at.BLOCK_ROWS, at.SKETCH_LENGTH, 2), sources, axis=2)
    groups = (pairs * sum_signs()).reshape(blocks, _GROUPS, at.GROUP_ROWS, at.SKETCH_LENGTH, 2).sum(axis=(2, 4))
    total: Floats = np.einsum("bgk,bg,bk->k", groups, own.groups, own.sums)
    return total


def estimate_distance(reference: ArrayLike, target: ArrayLike) -> Floats:
    """The estimated L2 distance of two values (or many: one a leading index) from their sketches.

    Unbiased, with a standard deviation of 9 % (one in sqrt(2 * 61)), more of fewer than 122 elements (one in sqrt(n));
    valid if both set the same elements aside.
    """
    difference = np.asarray(target, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    distance: Floats = np.sqrt(np.square(difference).sum(axis=-1))
    return distance


CHUNK = 128 * at.BLOCK_ELEMENTS
_SET_ASIDE_FROM = 2.0**at.SET_ASIDE_EXPONENT


def empty_row() -> Floats:
    """The summary of no elements, to which parts are added."""
    row = np.zeros(at.ROW_LENGTH)
    reset_row(row)
    return row


def reset_row(row: Floats) -> None:
    row.fill(0.0)
    row[at.MIN] = np.inf
    row[at.MAX] = -np.inf


def summarize(array: AnyArray, dtype_name: str) -> Floats:
    """A value's row. The array may hold the elements as such, or their bits as integers of the same size."""
    row = empty_row()
    summarize_into(array, dtype_name, row)
    return row


def summarize_into(array: AnyArray, dtype_name: str, row: Floats) -> None:
    """Writes a value's row in pieces, so that memory stays bounded."""
    dtype = DTYPES[dtype_name]
    elements = flat_elements(array, dtype)
    real = DTYPES[dtype.real] if dtype.real else dtype
    reset_row(row)
    digest = 0
    for start in range(0, len(elements), CHUNK):
        part = elements[start : start + CHUNK]
        first_block = start // at.BLOCK_ELEMENTS
        digest += digest_blocks(_words(part), first_block)
        if dtype.has_sketch:
            _add_floats(row, decode(part, real), real, first_block)
        else:
            add_integers(row, part)
    row.view(np.uint64)[at.DIGEST] = digest % 2**64


def flat_elements(array: AnyArray, dtype: Dtype) -> AnyArray:
    """Elements in logical row-major order, contiguous; a complex one as its two parts."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype.real and flat.dtype.kind in "cV":
        # numpy has no complex number of two halves: such elements are pairs of fields.
        return flat.view(dtype.real)
    return flat


def decode(elements: AnyArray, dtype: Dtype) -> Floats:
    """The numbers as float64, which holds every float type exactly."""
    narrow: NDArray[np.floating[Any]]
    if dtype.name == "bfloat16":
        narrow = (elements.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype.name.startswith("float8"):
        narrow = float8_values(dtype.name)[elements.view(np.uint8)]
    else:
        narrow = elements.view(dtype.name)
    with np.errstate(invalid="ignore"):  # a signalling nan warns when it is converted
        return narrow.astype(np.float64)


def _words(part: AnyArray) -> NDArray[np.signedinteger]:
    blocks = -(-len(part) // at.BLOCK_ELEMENTS)
    data = np.zeros(blocks * at.BLOCK_ELEMENTS, dtype=part.dtype)
    data[: len(part)] = part
    words = data.view(word_type(part.itemsize))
    return words.reshape(blocks, at.BLOCK_ROWS, at.SKETCH_LENGTH, words_per_pair(part.itemsize))


def add_integers(row: Floats, part: AnyArray) -> None:
    """Adds some integers to a row, but for their digest."""
    numbers: NDArray[np.integer] = part.view(np.uint8) if part.dtype == np.bool_ else part  # type: ignore[assignment]
    row[at.MIN] = min(row[at.MIN], float(numbers.min()))
    row[at.MAX] = max(row[at.MAX], float(numbers.max()))
    row[at.SUM] += float(numbers.astype(np.float64).sum())
    row[at.ZERO] += np.count_nonzero(numbers == 0)


def _add_floats(row: Floats, numbers: Floats, dtype: Dtype, first_block: int) -> None:
    sizes = np.abs(numbers)
    kept = sizes < _SET_ASIDE_FROM
    finite = sizes < np.inf
    if finite.any():
        # Adding 0.0 turns -0.0 into 0.0: which of the two zeros comes first is no property of a value.
        row[at.MIN] = min(row[at.MIN], float(numbers[finite].min())) + 0.0
        row[at.MAX] = max(row[at.MAX], float(numbers[finite].max())) + 0.0
    row[at.NAN] += np.count_nonzero(np.isnan(numbers))
    row[at.POS_INF] += np.count_nonzero(numbers == np.inf)
    row[at.NEG_INF] += np.count_nonzero(numbers == -np.inf)
    row[at.ZERO] += np.count_nonzero(numbers == 0.0)
    row[at.SUBNORMAL] += np.count_nonzero((sizes > 0.0) & (sizes < dtype.smallest_normal))
    row[at.SET_ASIDE] += len(numbers) - np.count_nonzero(kept)
    row[at.EXPONENTS : at.EXPONENTS + at.EXPONENT_BINS] += exponent_counts(sizes[finite])
    summed = np.where(kept, numbers, 0.0)
    row[at.SUM] += summed.sum()
    row[at.SUM_SQUARES] += np.square(summed).sum()
    row[at.ABS_SUM] += np.abs(summed).sum()
    blocks = np.pad(summed, (0, -len(summed) % at.BLOCK_ELEMENTS)).reshape(-1, at.BLOCK_ELEMENTS)
    row[at.SKETCH : at.SKETCH + at.SKETCH_LENGTH] += sketch_blocks(blocks, first_block)


def exponent_counts(sizes: Floats) -> NDArray[np.int64]:
    """How many of the nonzero |x| lie in each of 32 bins of 8 binary exponents."""
    exponents = np.frexp(sizes[sizes > 0.0])[1] - 1
    bins = np.clip((exponents + at.EXPONENT_BIAS) >> at.EXPONENT_BIN_SHIFT, 0, at.EXPONENT_BINS - 1)
    return np.bincount(bins, minlength=at.EXPONENT_BINS).astype(np.int64)
