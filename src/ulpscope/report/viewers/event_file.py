"""Event files of TensorBoard: records framed as in a TFRecord file, each one Event in protobuf's wire format.

length, 8 bytes | masked CRC32C of the length | an Event | masked CRC32C of the Event
Event:   1 wall time, double | 2 step, varint | 3 file version, text | 5 Summary
Summary: 1 Value, repeated         Value: 1 tag, text | 2 simple value, float
"""

import struct
from collections.abc import Iterable, Mapping
from functools import cache
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ulpscope.dialects.wire import number_bytes

VERSION = "brain.Event:2"
"""What the first record of a file must say."""

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, with its bits in reverse."""
_MASK = 0xA282EAD8
_BITS_32 = 0xFFFF_FFFF
_BLOCK = 1024
"""Bytes that are looked up at once."""
_STATE_BYTES = 4


def write_events(file: BinaryIO, steps: Iterable[tuple[int, Mapping[str, float]]], *, wall_time: float) -> None:
    """Write the scalars of each step, by their tags, as one event; they must be within the range of a float32."""
    file.write(record(_event(wall_time, _text(3, VERSION))))
    tags: dict[str, bytes] = {}
    for step, scalars in steps:
        tags |= {tag: _text(1, tag) for tag in scalars if tag not in tags}
        values = [_field(1, tags[tag] + struct.pack("<Bf", 2 << 3 | 5, value)) for tag, value in scalars.items()]
        file.write(record(_event(wall_time, number_bytes(2 << 3) + number_bytes(step) + _field(5, b"".join(values)))))


def record(content: bytes) -> bytes:
    """One record of a TFRecord file."""
    length = struct.pack("<Q", len(content))
    return b"".join([length, struct.pack("<I", _masked(length)), content, struct.pack("<I", _masked(content))])


def crc32c(data: bytes) -> int:
    """The cyclic redundancy check of Castagnoli's polynomial.

    It is linear: what a byte contributes depends on the byte and on how many follow it, and all contributions are added
    without carry. So a block is one lookup in a table with a row for each distance from the end.
    """
    state = _BITS_32
    for start in range(0, len(data), _BLOCK):
        state = _continued(state, data[start : start + _BLOCK])
    return state ^ _BITS_32


def _continued(state: int, block: bytes) -> int:
    """The state after a block: what was before it is added to its first bytes."""
    begin = (state ^ int.from_bytes(block[:_STATE_BYTES], "little")) & _BITS_32
    whole = np.frombuffer(begin.to_bytes(_STATE_BYTES, "little") + block[_STATE_BYTES:], dtype=np.uint8)
    if len(block) >= _STATE_BYTES:
        rows = _contributions()[-len(block) :].reshape(-1)
        return int(np.bitwise_xor.reduce(rows[_places()[: len(block)] + whole]))
    for _ in block:
        begin = begin >> 8 ^ int(_contributions()[-1][begin & 0xFF])
    return begin


@cache
def _contributions() -> NDArray[np.uint32]:
    """A row for each place of a block, a column for each byte; the last row is for a byte that none follows."""
    rows = np.empty((_BLOCK, 256), dtype=np.uint32)
    rows[-1] = _last_bytes()
    for place in range(_BLOCK - 2, -1, -1):
        after = rows[place + 1]
        rows[place] = rows[-1][after & 0xFF] ^ after >> 8
    return rows


def _last_bytes() -> NDArray[np.uint32]:
    states = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        states = np.where(states & 1, states >> 1 ^ np.uint32(_POLYNOMIAL), states >> 1)
    return states


@cache
def _places() -> NDArray[np.intp]:
    return np.arange(_BLOCK, dtype=np.intp) * 256


def _masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & _BITS_32


def _event(wall_time: float, content: bytes) -> bytes:
    return struct.pack("<Bd", 1 << 3 | 1, wall_time) + content


def _text(number: int, text: str) -> bytes:
    # A name that is no text, from a file that is none, must still be one for the reader.
    return _field(number, text.encode("utf-8", "replace"))


def _field(number: int, content: bytes) -> bytes:
    return b"".join([number_bytes(number << 3 | 2), number_bytes(len(content)), content])
