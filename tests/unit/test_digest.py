"""The digest against a naive implementation on Python's integers, and what must change it."""

import struct
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ulpscope.numerics.summaries.constants import DIGEST, DIGEST_KEY_SALT, DIGEST_SEED_SALT
from ulpscope.numerics.summaries.rows import raw_digest_of_row, rows_to_columns
from ulpscope.numerics.summaries.summary import digest_keys, digest_seed, finish_digest, finish_digests, summarize

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15
BLOCK = 1952


def mix(z: int) -> int:
    z &= MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@cache
def key(number: int) -> int:
    low = (mix(DIGEST_KEY_SALT + (number + 1) * GAMMA) | 1) & 0xFFFFFFFF
    return low - 2**32 if low >= 2**31 else low


def naive_raw(data: bytes, item_size: int) -> int:
    words = max(1, item_size // 2)
    size = BLOCK * item_size
    total = 0
    for block, start in enumerate(range(0, len(data), size)):
        padded = data[start : start + size].ljust(size, b"\0")
        values = struct.unpack(f"<{BLOCK // 2 * words}{'h' if item_size == 1 else 'i'}", padded)
        for column in range(61):
            inner = 0
            for row in range(16):
                for word in range(words):
                    inner += key(row * words + word) * values[(row * 61 + column) * words + word]
            total += mix(inner + (61 * block + column + 1) * GAMMA)
    return total & MASK


def naive_digest(data: bytes, item_size: int, dtype_name: str, shape: tuple[int, ...]) -> int:
    text = dtype_name.encode()
    name = [int.from_bytes(text[i : i + 8], "little") for i in range(0, len(text), 8)]
    seed = DIGEST_SEED_SALT
    for word in (len(name), *name, len(shape), *shape):
        seed = mix(((seed ^ word) + 1) * GAMMA)
    return mix(naive_raw(data, item_size) ^ seed)


def digest_of(array: np.ndarray, dtype_name: str) -> int:
    row = summarize(array, dtype_name)
    return finish_digest(raw_digest_of_row(row), dtype_name, array.shape)


@pytest.mark.parametrize("count", [0, 1, 3, 122, 1951, 1952, 1953, 4000])
@pytest.mark.parametrize("dtype_name", ["int8", "bool", "float16", "float32", "int64", "complex64", "complex128"])
def test_digest_is_what_the_specification_says(dtype_name: str, count: int) -> None:
    data = np.random.default_rng(count).integers(0, 2 if dtype_name == "bool" else 256, count * 16, dtype=np.uint8)
    array = data.view(dtype_name)[:count]
    parts = 2 if array.dtype.kind == "c" else 1
    expected = naive_digest(array.tobytes(), array.itemsize // parts, dtype_name, (count,))
    assert digest_of(array, dtype_name) == expected


def test_digest_of_values_longer_than_a_chunk() -> None:
    array = np.random.default_rng(0).integers(-128, 128, 130 * BLOCK + 11, dtype=np.int8)
    assert raw_digest_of_row(summarize(array, "int8")) == naive_raw(array.tobytes(), 1)


def test_keys_are_odd_and_fit_32_bits() -> None:
    keys = digest_keys(64)
    assert keys.tolist() == [key(number) for number in range(64)]
    assert all(k % 2 and -(2**31) <= k < 2**31 for k in keys.tolist())


@settings(max_examples=60)
@given(st.integers(0, 2999), st.integers(0, 31))
def test_any_flipped_bit_changes_it(position: int, bit: int) -> None:
    array = np.arange(3000, dtype=np.uint32)
    before = digest_of(array, "uint32")
    array[position] ^= np.uint32(1 << bit)
    assert digest_of(array, "uint32") != before


def test_elements_rows_columns_and_blocks_cannot_change_places() -> None:
    array = np.arange(3 * BLOCK, dtype=np.float32)
    swapped = array.copy()
    swapped[[10, 11]] = swapped[[11, 10]]
    blocks = array.reshape(3, BLOCK)[[1, 0, 2]].reshape(-1)
    rows = array.reshape(-1, 122)[[1, 0, *range(2, 48)]].reshape(-1)
    columns = array.reshape(-1, 61, 2)[:, [1, 0, *range(2, 61)]].reshape(-1)
    assert len({digest_of(x, "float32") for x in (array, swapped, blocks, rows, columns)}) == 5


def test_equal_bytes_of_another_type_or_shape_differ() -> None:
    array = np.zeros(12, dtype=np.int32)
    seen = {
        digest_of(array, "int32"),
        digest_of(array.view(np.float32), "float32"),
        digest_of(array.reshape(3, 4), "int32"),
        digest_of(array.reshape(4, 3), "int32"),
        digest_of(array.reshape(12, 1), "int32"),
        digest_of(array[:11], "int32"),
    }
    assert len(seen) == 6


def test_zeros_differ_by_sign_and_nans_by_payload() -> None:
    nans = np.array([0x7FC00000, 0x7FC00001], dtype=np.uint32).view(np.float32)
    zeros = np.array([0.0, -0.0], dtype=np.float32)
    arrays = [zeros[:1], zeros[1:], nans[:1], nans[1:]]
    assert len({digest_of(array, "float32") for array in arrays}) == 4


def test_layout_does_not_matter() -> None:
    array = np.arange(2000, dtype=np.float64).reshape(40, 50)
    assert digest_of(array.T, "float64") == digest_of(np.ascontiguousarray(array.T), "float64")


def test_many_rows_are_finished_like_one() -> None:
    arrays = [np.arange(k, dtype=np.int64).reshape(1, k) for k in range(5)]
    rows = np.stack([summarize(array, "int64") for array in arrays])
    shapes = [(1, k) for k in range(5)]
    got = rows_to_columns(rows, dtype_names=["int64"] * 5, shapes=shapes)["digest"].values
    assert got.tolist() == [digest_of(array, "int64") for array in arrays]
    raw = np.ascontiguousarray(rows[:, DIGEST]).view(np.uint64)
    seeds = np.array([digest_seed("int64", shape) for shape in shapes], dtype=np.uint64)
    assert finish_digests(raw, seeds).tolist() == got.tolist()


def test_known_answer_stays_frozen() -> None:
    """0, 1, ..., 999 as int32: from the naive implementation above, written down so that both cannot drift together."""
    array = np.arange(1000, dtype=np.int32)
    expected = naive_digest(array.tobytes(), 4, "int32", (1000,))
    assert digest_of(array, "int32") == expected == 0x4E9F61E0300146DC
