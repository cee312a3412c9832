"""Protobuf's wire format: a message is a sequence of tags, each with a number, eight or four bytes, or a length.

Nothing is copied: what has a length is a view into the data. Lengths are checked before anything is made of them.
By a table of fields a message is read and written byte for byte: nesting is as deep as the tables, and fields that no
table knows are kept as they are.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

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


Values: TypeAlias = dict[str, Any]

UNKNOWN = "unknown"
"""The key under which the bytes of unknown fields stand."""

MANY = 2**14
"""Entries of one repeated field. Real operators have some hundred; an entry of 2 bytes becomes objects of 1000."""

LONGEST = 2**24
"""Bytes of a text, and of all unknown fields of a message: they are copied, where data stays in its file."""


class Kind(str, Enum):
    """How a field is written."""

    TEXT = "text"
    UNSIGNED = "unsigned"
    SIGNED = "signed"
    UNSIGNED_LIST = "packed list"
    MESSAGE = "message"
    DATA = "data"
    """Bytes that stay where they are: read as (start, stop), written from a buffer."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message."""

    name: str
    kind: Kind
    message: "Mapping[int, Field] | None" = None
    repeated: bool = False
    most: int = MANY
    """Entries, if there may be several."""


Table: TypeAlias = Mapping[int, Field]


def decode(table: Table, view: memoryview, start: int, stop: int) -> Values:
    """The fields of the message that lies from `start` to `stop`; what is not there has its default."""
    values: Values = {field.name: _default(field) for field in table.values()}
    seen: set[int] = set()
    unknown = bytearray()
    for found in located_fields(view, start, stop):
        field = table.get(found.number)
        if field is None:
            _check_length(len(unknown) + found.end - found.begin, found.begin)
            unknown += view[found.begin : found.end]
            continue
        if found.number in seen and not field.repeated and field.kind is not Kind.UNSIGNED_LIST:
            raise WireError(f"has the field {field.name} twice, at byte {found.begin}")
        seen.add(found.number)
        _store(values, field, view, found)
    values[UNKNOWN] = bytes(unknown)
    return values


def encode(table: Table, values: Values) -> bytes:
    """A message in the order of its fields' numbers, defaults left out."""
    parts = [_encode_field(number, field, values[field.name]) for number, field in sorted(table.items())]
    return b"".join([*parts, values.get(UNKNOWN, b"")])


def _default(field: Field) -> Any:
    if field.repeated:
        return []
    return {Kind.TEXT: "", Kind.UNSIGNED_LIST: [], Kind.MESSAGE: None, Kind.DATA: None}.get(field.kind, 0)


def _store(values: Values, field: Field, view: memoryview, found: LocatedField) -> None:
    content: Any = found.content
    if field.kind is Kind.UNSIGNED_LIST and found.wire_type == VARINT:
        _append(values, field, content)
        return
    if found.wire_type != (VARINT if field.kind in (Kind.UNSIGNED, Kind.SIGNED) else LENGTH):
        raise WireError(f"has wire type {found.wire_type} for the field {field.name} at byte {found.begin}")
    if field.kind is Kind.UNSIGNED_LIST:
        for number in varints(view, *content):
            _append(values, field, number)
    elif field.repeated:
        _append(values, field, _value(field, view, content, found.begin))
    else:
        values[field.name] = _value(field, view, content, found.begin)


def _append(values: Values, field: Field, value: Any) -> None:
    if len(values[field.name]) >= field.most:
        raise WireError(f"has more than {field.most} entries of {field.name}")
    values[field.name].append(value)


def _value(field: Field, view: memoryview, content: Any, begin: int) -> Any:
    if field.kind is Kind.SIGNED:
        return content - (1 << 64) if content >> 63 else content
    if field.kind is Kind.TEXT:
        _check_length(content[1] - content[0], begin)
        try:
            return bytes(view[slice(*content)]).decode("utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"has a text {field.name} at byte {begin} that is not UTF-8 ({error.reason})") from error
    if field.kind is Kind.MESSAGE:
        assert field.message is not None
        return decode(field.message, view, *content)
    return content


def _check_length(length: int, begin: int) -> None:
    if length > LONGEST:
        raise WireError(f"has a field of {length} bytes at byte {begin}, too many for a text")


def _encode_field(number: int, field: Field, value: Any) -> bytes:
    if field.kind in (Kind.UNSIGNED, Kind.SIGNED):
        return b"" if value == 0 else number_bytes(number << 3 | VARINT) + number_bytes(value)
    if field.kind is Kind.UNSIGNED_LIST:
        return _delimited(number, b"".join(map(number_bytes, value))) if value else b""
    if field.kind is Kind.MESSAGE:
        assert field.message is not None
        entries = value if field.repeated else [] if value is None else [value]
        return b"".join(_delimited(number, encode(field.message, entry)) for entry in entries)
    content = value.encode("utf-8") if field.kind is Kind.TEXT else b"" if value is None else bytes(value)
    return _delimited(number, content) if content else b""


def _delimited(number: int, content: bytes) -> bytes:
    return number_bytes(number << 3 | LENGTH) + number_bytes(len(content)) + content
