"""CRC32C by its definition, by blocks and compiled."""

import random

import pytest

from ulpscope.numerics import checksum
from ulpscope.numerics.checksum import crc32c


def bit_by_bit(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def test_the_check_value_of_its_definition() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 8, 9, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("compiled_from", [0, 1 << 30], ids=["compiled", "by blocks"])
def test_both_engines(size: int, compiled_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "_WORTH_COMPILING", compiled_from)
    data = random.Random(size).randbytes(size)
    assert crc32c(memoryview(data)) == bit_by_bit(data)
