"""The digest: 64 bits over a value's bytes, made of one part a block that add up in any order.

With w_j the block's little-endian signed 32-bit words (the last block padded with zeros):

    h_b = sum of A_j * w_j,  A_j = hash(DIGEST_KEY_SALT, j) | 1
    raw = sum of mix(h_b + (b + 1) * GAMMA)
    digest = mix(raw xor seed),  the seed made of dtype and shape

all mod 2**64.
"""

from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.constants import BLOCK_ELEMENTS, DIGEST_KEY_SALT, DIGEST_SEED_SALT
from ulpscope.numerics.hashing import UInt64s, count_up, hash64, mix, weyl

WORD_BYTES = 4


def words_per_block(item_size: int) -> int:
    return BLOCK_ELEMENTS * item_size // WORD_BYTES


@cache
def digest_keys(words: int) -> UInt64s:
    """A_j: odd, so that a change of one word always changes its block's sum."""
    keys = hash64(DIGEST_KEY_SALT, count_up(0, words)) | np.uint64(1)
    keys.setflags(write=False)
    return keys


def digest_blocks(words: NDArray[np.int32], first_block: int) -> int:
    """The raw digest's part of whole blocks (shape blocks x words), the first of which has that number."""
    signed = words.astype(np.int64).view(np.uint64)
    sums = (signed * digest_keys(words.shape[1])).sum(axis=1, dtype=np.uint64)
    parts = mix(sums + weyl(count_up(first_block, first_block + len(words))))
    return int(parts.sum(dtype=np.uint64))


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
