"""docs/trace-format.md says everything that is in a trace, with the numbers that the code has."""

import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ulpscope.numerics.summaries import constants
from ulpscope.numerics.summaries.rows import rows_to_columns
from ulpscope.numerics.summaries.summary import summarize
from ulpscope.records.enums import Kind, Phase, Role
from ulpscope.records.runs import Coverage, RankInfo, StepInfo
from ulpscope.trace.schema import CALLS, SCHEMA_MAJOR, SCHEMA_MINOR, STACKS, TENSORS, VALUES

PAGE = (Path(__file__).parents[2] / "docs/trace-format.md").read_text(encoding="utf-8")

GAMMA = 0x9E3779B97F4A7C15
ARRAYS = [
    np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32),
    np.arange(2000, dtype=np.float16).reshape(2, 1000),
    np.arange(1000, dtype=np.int8),
    np.zeros((0, 3), np.float32),
]


def section(title: str) -> str:
    return re.split(rf"^## {re.escape(title)}$", PAGE, flags=re.MULTILINE)[1].split("\n## ")[0]


def names(record: type) -> list[str]:
    return [field.name for field in fields(record)]


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("rank.json", [*names(RankInfo), *names(Coverage), "schema", "summary", "ulpscope"]),
        ("stepN/step.json", names(StepInfo)),
        ("calls", [*CALLS, *(kind.value for kind in Kind), *(phase.value for phase in Phase)]),
        ("values", VALUES),
        ("tensors", [*TENSORS, *(role.value for role in Role)]),
        ("stacks", STACKS),
    ],
)
def test_every_field_is_described(title: str, words: Iterable[str]) -> None:
    text = section(title)
    assert [word for word in words if f"`{word}`" not in text] == []


def test_the_numbers_are_those_of_the_code() -> None:
    text = section("Stats, sketch and digest")
    stated = dict(re.findall(r"^(\w+) += (0x\S+ << 40|0x\S+)", text, re.MULTILINE))
    assert stated == {
        "GAMMA": f"0x{constants.SPLITMIX_GAMMA:X}",
        "SUM_SALT": f"0x{constants.SUM_SALT:X}",
        "BLOCK_SALT": f"0x{constants.BLOCK_SALT:X}",
        "ROTATION_MUL": f"0x{constants.ROTATION_MUL:X}",
        "DIGEST_KEY_SALT": f"0x{constants.DIGEST_KEY_SALT >> 40:02X} << 40",
        "DIGEST_SEED_SALT": f"0x{constants.DIGEST_SEED_SALT >> 40:02X} << 40",
    }
    for number in (constants.SPLITMIX_MUL_1, constants.SPLITMIX_MUL_2):
        assert f"0x{number:X}" in text
    assert f'"{constants.SUMMARY_ID}"' in text
    assert f"{constants.BLOCK_ROWS} rows of {constants.SKETCH_LENGTH} pairs" in text
    assert f"2^{constants.SET_ASIDE_EXPONENT}" in text
    assert f'"{SCHEMA_MAJOR}.{SCHEMA_MINOR}"' in section("rank.json")


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_the_page_says_how_sketch_and_digest_are_made(array: NDArray[Any]) -> None:
    dtype = array.dtype.name
    columns = rows_to_columns(summarize(array, dtype)[None], dtype_names=[dtype], shapes=[array.shape])
    assert int(columns["digest"].values[0]) == page_digest(array)
    if array.dtype.kind == "f":
        assert np.allclose(columns["sketch"].values[0], page_sketch(array), rtol=1e-5, atol=1e-3)


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def hash64(salt: int, k: int) -> int:
    return mix((salt + (k + 1) * GAMMA) % 2**64)


def odd(word: int, i: int) -> tuple[int, int, int, int]:
    u, v, w = word >> i & 1, word >> i + 1 & 1, word >> i + 2 & 1
    return 1 ^ u ^ v ^ w, u, v, w


def page_sketch(array: NDArray[Any]) -> list[float]:
    sums = [0.0] * 61
    for i, number in enumerate(array.astype(np.float64).ravel().tolist()):
        b, r, c, h = i // 1952, i % 1952 // 122, i % 122 // 2, i % 2
        block = hash64(0x20000001BE4, b)
        x, y = block >> 61 & 1, block >> 62 & 1
        k = (c + ((block * 0x9E3779B97F4A7C15 % 2**64 >> 32) * 61 >> 32)) % 61
        word = hash64(0x1000060402E, k)
        bits = odd(word, 3 * h)[r % 4] ^ odd(word, 6)[r // 4] ^ (0, x, y, x ^ y)[r // 4] ^ block >> k & 1
        sums[k] += -number if bits else number
    return sums


def page_key(j: int) -> int:
    low = hash64(0x04 << 40, j) % 2**32 | 1
    return low - 2**32 if low >> 31 else low


def page_digest(array: NDArray[Any]) -> int:
    words = max(1, array.itemsize // 2)
    size = 1952 * array.itemsize
    data = array.tobytes() + bytes(-array.nbytes % size)
    keys = [page_key(j) for j in range(16 * words)]
    raw = 0
    for b in range(len(data) // size):
        block = np.frombuffer(data[b * size : (b + 1) * size], "<i2" if array.itemsize == 1 else "<i4")
        for c, column in enumerate(block.reshape(16, 61, words).transpose(1, 0, 2).reshape(61, -1).tolist()):
            h = sum(key * word for key, word in zip(keys, column, strict=True))
            raw += mix((h + (61 * b + c + 1) * GAMMA) % 2**64)
    name = array.dtype.name.encode()
    parts = [int.from_bytes(name[i : i + 8], "little") for i in range(0, len(name), 8)]
    seed = 0x05 << 40
    for word in (len(parts), *parts, array.ndim, *array.shape):
        seed = mix(((seed ^ word) + 1) * GAMMA % 2**64)
    return mix(raw % 2**64 ^ seed)
