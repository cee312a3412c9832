"""docs/trace-format.md says everything that is in a trace, with the numbers that the code has."""

import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ulpscope.numerics import constants
from ulpscope.numerics.rows import rows_to_columns
from ulpscope.numerics.summary import summarize
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
    stated = dict(re.findall(r"^(\w+) += (0x\S+ << 40|\(0x\S+ << 40\) \+ \d+|0x\S+)", text, re.MULTILINE))
    assert stated == {
        "GAMMA": f"0x{constants.SPLITMIX_GAMMA:X}",
        "ROW_SALT": f"0x{constants.ROW_SALT:X}",
        "BLOCK_SIGN_SALT": _salt(constants.BLOCK_SIGN_SALT),
        "BLOCK_ROTATION_SALT": _salt(constants.BLOCK_ROTATION_SALT),
        "DIGEST_KEY_SALT": _salt(constants.DIGEST_KEY_SALT),
        "DIGEST_SEED_SALT": _salt(constants.DIGEST_SEED_SALT),
    }
    for number in (constants.SPLITMIX_MUL_1, constants.SPLITMIX_MUL_2):
        assert f"0x{number:X}" in text
    assert f'"{constants.SUMMARY_ID}"' in text
    assert f"{constants.BLOCK_ROWS} rows of {constants.SKETCH_LENGTH} columns" in text
    assert f"2^{constants.SET_ASIDE_EXPONENT}" in text
    assert f'"{SCHEMA_MAJOR}.{SCHEMA_MINOR}"' in section("rank.json")


def _salt(salt: int) -> str:
    high, low = divmod(salt, 1 << 40)
    return f"(0x{high:02X} << 40) + {low}" if low else f"0x{high:02X} << 40"


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


def page_sketch(array: NDArray[Any]) -> list[float]:
    sums = [0.0] * 61
    for i, x in enumerate(array.astype(np.float64).ravel().tolist()):
        b, r, c = i // 976, i % 976 // 61, i % 61
        turn = hash64((0x03 << 40) + 6784, b)
        sign = (hash64(0xF7A0, r) >> c ^ hash64(0x02 << 40, b) >> c ^ turn >> 48 + r) & 1
        sums[(c + turn % 2**32 % 61) % 61] += -x if sign else x
    return sums


def page_digest(array: NDArray[Any]) -> int:
    size = 976 * array.itemsize
    data = array.tobytes() + bytes(-array.nbytes % size)
    raw = 0
    for b in range(len(data) // size):
        words = np.frombuffer(data[b * size : (b + 1) * size], "<i4").tolist()
        h = sum(word * (hash64(0x04 << 40, j) | 1) for j, word in enumerate(words))
        raw += mix((h + (b + 1) * GAMMA) % 2**64)
    name = array.dtype.name.encode()
    parts = [int.from_bytes(name[i : i + 8], "little") for i in range(0, len(name), 8)]
    seed = 0x05 << 40
    for word in (len(parts), *parts, array.ndim, *array.shape):
        seed = mix(((seed ^ word) + 1) * GAMMA % 2**64)
    return mix(raw % 2**64 ^ seed)
