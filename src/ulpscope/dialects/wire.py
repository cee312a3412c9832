"""Reads protobuf's wire format: a message is a sequence of tags, each with a number, eight or four bytes, or a length.

Nothing is copied: what has a length is a view into the data. Lengths are checked before anything is made of them.
"""

import struct
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

LONGEST_VARINT = 10
_BITS_64 = (1 << 64) - 1
"""Bytes that 64 bits take, seven a byte."""


class WireError(ValueError):
    """Bytes that are no message, as a clause that follows the name of what holds them."""


class Scalar(Enum):
    """How the value of a field is encoded."""

    INT = "int"
    BOOL = "bool"
    FLOAT = "float"
    DOUBLE = "double"
    BYTES = "bytes"


_WIRE_TYPES = {
    Scalar.INT: VARINT,
    Scalar.BOOL: VARINT,
    Scalar.FLOAT: FIXED32,
    Scalar.DOUBLE: FIXED64,
    Scalar.BYTES: LENGTH,
}


def varint(data: memoryview, position: int, end: int | None = None) -> tuple[int, int]:
    """The number at a position, and where it ends; it must do so before `end`, that of the data if there is none."""
    value, shift = 0, 0
    for place in range(position, min(position + LONGEST_VARINT, len(data) if end is None else end)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place + 1
        shift += 7
    raise WireError(f"has a number at byte {position:,} that does not end")


def fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Number, wire type and content of each field of a message; fixed widths and lengths come as views."""
    for field in located_fields(data, 0, len(data)):
        content = field.content
        yield field.number, field.wire_type, content if isinstance(content, int) else data[content[0] : content[1]]


class LocatedField(NamedTuple):
    """A field and where it lies."""

    number: int
    wire_type: int
    content: int | tuple[int, int]
    """A number, or from where to where the content reaches."""
    begin: int
    end: int


def located_fields(data: memoryview, start: int, stop: int) -> Iterator[LocatedField]:
    """The fields of the message that lies from `start` to `stop`."""
    position = start
    while position < stop:
        begin = position
        tag, position = varint(data, position, stop)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise WireError(f"has field number 0 at byte {begin:,} of a message")
        if wire_type == VARINT:
            value, position = varint(data, position, stop)
            yield LocatedField(number, wire_type, value, begin, position)
            continue
        length, position = _length(data, position, stop, wire_type, number)
        if length > stop - position:
            raise WireError(f"has a field {number} of {length:,} bytes where {stop - position:,} are left")
        content = position, position + length
        position += length
        yield LocatedField(number, wire_type, content, begin, position)


def varints(data: memoryview, start: int, stop: int) -> Iterator[int]:
    """Numbers that are packed one after the other."""
    while start < stop:
        value, start = varint(data, start, stop)
        yield value


def scalars(kind: Scalar, wire_type: int, content: int | memoryview) -> list[int | float | bool | memoryview]:
    """The values that one occurrence of a field holds: several if they are packed. WireError for another encoding."""
    if isinstance(content, int):
        if wire_type != _WIRE_TYPES[kind]:
            raise WireError(f"has a number where {kind.value} is expected")
        return [_number(kind, content)]
    if kind is Scalar.BYTES and wire_type == LENGTH:
        return [content]
    if kind in (Scalar.INT, Scalar.BOOL) and wire_type == LENGTH:
        return [_number(kind, value) for value in varints(content, 0, len(content))]
    if kind in (Scalar.FLOAT, Scalar.DOUBLE) and wire_type in (LENGTH, _WIRE_TYPES[kind]):
        return _floats(kind, content)
    raise WireError(f"has wire type {wire_type} where {kind.value} is expected")


def number_bytes(value: int) -> bytes:
    """A number as it is written; a negative one as that of 64 bits."""
    value &= _BITS_64
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _length(data: memoryview, position: int, stop: int, wire_type: int, number: int) -> tuple[int, int]:
    if wire_type == LENGTH:
        return varint(data, position, stop)
    if wire_type == FIXED64:
        return 8, position
    if wire_type == FIXED32:
        return 4, position
    raise WireError(f"has field {number} with wire type {wire_type}, which no message has")


def _number(kind: Scalar, value: int) -> int | bool:
    if kind is Scalar.BOOL:
        return bool(value)
    return value - 2**64 if value >= 2**63 else value


def _floats(kind: Scalar, data: memoryview) -> list[int | float | bool | memoryview]:
    letter, width = ("f", 4) if kind is Scalar.FLOAT else ("d", 8)
    if len(data) % width:
        raise WireError(f"has {len(data):,} bytes of packed {kind.value}, which is no multiple of {width}")
    return list(struct.unpack(f"<{len(data) // width}{letter}", data))
