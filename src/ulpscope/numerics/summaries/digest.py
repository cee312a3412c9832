"""The digest: 64 bits over a value's bytes, made of one part a block and pair column that add up in any order.

A pair's bytes are read as U little-endian signed words w: of a byte type one of 16 bits, else 32-bit ones. With block
b, row r, pair column c (the last block padded with zeros):

    h_bc = sum over r, u of A_(r * U + u) * w_brcu,  A_j = hash(DIGEST_KEY_SALT, j) | 1, its low half, signed
    raw = sum over b, c of mix(h_bc + (61 * b + c + 1) * GAMMA)
    digest = mix(raw xor seed),  the seed made of dtype and shape

all mod 2**64. Keys belong to the row alone: whoever owns a column needs no table of them.

splitmix64 is the one source of signs, rotations and keys, on numpy's wrapping uint64.
"""

from functools import cache, lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.summaries.constants import (
    BLOCK_ROWS,
    DIGEST_KEY_SALT,
    DIGEST_SEED_SALT,
    SKETCH_LENGTH,
    SPLITMIX_GAMMA,
    SPLITMIX_MUL_1,
    SPLITMIX_MUL_2,
)

UInt64s: TypeAlias = NDArray[np.uint64]

_GAMMA = np.uint64(SPLITMIX_GAMMA)
_MUL_1 = np.uint64(SPLITMIX_MUL_1)
_MUL_2 = np.uint64(SPLITMIX_MUL_2)


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
    low = (hash64(DIGEST_KEY_SALT, count_up(0, count)) | np.uint64(1)).astype(np.uint32)
    keys = low.view(np.int32).astype(np.int64)
    keys.setflags(write=False)
    return keys


def digest_blocks(words: NDArray[np.signedinteger], first_block: int) -> int:
    """The raw digest's part of whole blocks (shape blocks x rows x columns x words of a pair)."""
    keys = digest_keys(BLOCK_ROWS * words.shape[3]).reshape(BLOCK_ROWS, 1, -1)
    sums = (words * keys).sum(axis=(1, 3)).view(np.uint64)
    columns = count_up(first_block * SKETCH_LENGTH, (first_block + len(words)) * SKETCH_LENGTH)
    return int(mix(sums.reshape(-1) + weyl(columns)).sum(dtype=np.uint64))


def _little_endian_words(text: str) -> list[int]:
    data = text.encode()
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


@lru_cache(maxsize=65536)
def digest_seed(dtype_name: str, shape: tuple[int, ...]) -> int:
    """Folds name, rank and dimensions: equal bytes of another type or shape get another digest."""
    name = _little_endian_words(dtype_name)
    seed = np.array([DIGEST_SEED_SALT], dtype=np.uint64)
    for word in (len(name), *name, len(shape), *shape):
        seed = mix(weyl(seed ^ np.uint64(word)))
    return int(seed[0])


def finish_digests(raw: UInt64s, seeds: UInt64s) -> UInt64s:
    return mix(raw ^ seeds)


def finish_digest(raw: int, dtype_name: str, shape: tuple[int, ...]) -> int:
    seeds = np.array([digest_seed(dtype_name, shape)], dtype=np.uint64)
    return int(finish_digests(np.array([raw], dtype=np.uint64), seeds)[0])
