"""Protobuf's wire format: a message is a sequence of tags, each with a number, eight or four bytes, or a length.

Nothing is copied: what has a length is a view into the data. Lengths are checked before anything is made of them.
What the fields of a message are, a schema tells, out of the .proto files in schemas/. By it `decode` reads a message
whole: nesting is as deep as the schema, and fields that it does not know are kept as they are.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ulpscope.trace.files import LARGEST_DESCRIPTION, read_bytes

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}

LONGEST_VARINT = 10
"""Bytes that 64 bits take, seven a byte."""
_BITS_64 = (1 << 64) - 1

MANY = 2**14
"""Entries of one repeated field. Real operators have some hundred; an entry of 2 bytes becomes objects of 1000."""

LONGEST = 2**24
"""Bytes of a text, and of all unknown fields of a message: they are copied, where data stays in its file."""

UNKNOWN = "unknown"
"""The key under which the bytes of unknown fields stand."""

Values: TypeAlias = dict[str, Any]


class WireError(ValueError):
    """Bytes that are no message, as a clause that follows the name of what holds them."""


class Scalar(Enum):
    """How the value of a field is encoded: our word for it, and its wire type."""

    INT = "int", VARINT
    UNSIGNED = "unsigned", VARINT
    BOOL = "bool", VARINT
    FLOAT = "float", FIXED32
    DOUBLE = "double", FIXED64
    BYTES = "bytes", LENGTH
    TEXT = "text", LENGTH

    def __init__(self, word: str, wire_type: int) -> None:
        self.word, self.wire_type = word, wire_type


class Field(NamedTuple):
    """One field of a message."""

    name: str
    kind: Scalar | str
    """How it is encoded, or the name of the message that it holds."""
    repeated: bool = False
    most: int = MANY
    """Entries, if there may be several."""


Schemas: TypeAlias = Mapping[str, Mapping[int, Field]]
"""The fields of each message by their numbers."""

_MESSAGE = re.compile(r"^message (\w+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^  (repeated )?(\w+) (\w+) = (\d+)(?: \[\(most\) = (\d+)\])?;$", re.MULTILINE)
_SCALARS = {
    "int32": Scalar.INT,
    "int64": Scalar.INT,
    "uint32": Scalar.UNSIGNED,
    "uint64": Scalar.UNSIGNED,
    "bool": Scalar.BOOL,
    "float": Scalar.FLOAT,
    "double": Scalar.DOUBLE,
    "bytes": Scalar.BYTES,
    "string": Scalar.TEXT,
}


@cache
def schemas_of(name: str) -> Schemas:
    """The messages that a file of schemas/ describes."""
    file = Path(__file__).parent / "schemas" / f"{name}.proto"
    text = read_bytes(file, limit=LARGEST_DESCRIPTION).decode("utf-8")
    return {
        message: {
            int(number): Field(field, _SCALARS.get(kind, kind), bool(repeated), int(most or MANY))
            for repeated, kind, field, number, most in _FIELD.findall(fields)
        }
        for message, fields in _MESSAGE.findall(text)
    }


def varint(data: memoryview, position: int, end: int | None = None) -> tuple[int, int]:
    """The number at a position, and where it ends; it must do so before `end`, that of the data if there is none."""
    value, shift = 0, 0
    for place in range(position, min(position + LONGEST_VARINT, len(data) if end is None else end)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _BITS_64, place + 1
        shift += 7
    raise WireError(f"has a number at byte {position:,} that does not end")


def varints(data: memoryview, start: int, stop: int) -> Iterator[int]:
    """Numbers that are packed one after the other."""
    while start < stop:
        value, start = varint(data, start, stop)
        yield value


def number_bytes(value: int) -> bytes:
    """A number as it is written; a negative one as that of 64 bits."""
    value &= _BITS_64
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


LocatedField: TypeAlias = tuple[int, int, int | tuple[int, int], int, int]
"""Number, wire type, content (a number, or from where to where it reaches), where the whole field begins and ends."""


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
            yield number, wire_type, value, begin, position
            continue
        if wire_type == LENGTH:
            length, position = varint(data, position, stop)
        elif wire_type in _FIXED:
            length = _FIXED[wire_type]
        else:
            raise WireError(f"has field {number} with wire type {wire_type}, which no message has")
        if length > stop - position:
            raise WireError(f"has a field {number} of {length:,} bytes where {stop - position:,} are left")
        position += length
        yield number, wire_type, (position - length, position), begin, position


def fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Number, wire type and content of each field of a message; fixed widths and lengths come as views."""
    for number, wire_type, content, _, _ in located_fields(data, 0, len(data)):
        yield number, wire_type, content if isinstance(content, int) else data[content[0] : content[1]]


def scalars(kind: Scalar, wire_type: int, content: int | memoryview) -> list[int | float | bool | memoryview]:
    """The values that one occurrence of a field holds: several if they are packed. WireError for another encoding."""
    if isinstance(content, int):
        if wire_type != kind.wire_type:
            raise WireError(f"has a number where {kind.word} is expected")
        return [_number(kind, content)]
    if kind is Scalar.BYTES and wire_type == LENGTH:
        return [content]
    if kind in (Scalar.INT, Scalar.BOOL) and wire_type == LENGTH:
        return [_number(kind, value) for value in varints(content, 0, len(content))]
    if kind in (Scalar.FLOAT, Scalar.DOUBLE) and wire_type in (LENGTH, kind.wire_type):
        letter, width = ("f", 4) if kind is Scalar.FLOAT else ("d", 8)
        if len(content) % width:
            raise WireError(f"has {len(content):,} bytes of packed {kind.word}, which is no multiple of {width}")
        return list(struct.unpack(f"<{len(content) // width}{letter}", content))
    raise WireError(f"has wire type {wire_type} where {kind.word} is expected")


def _number(kind: Scalar, value: int) -> int | bool:
    if kind is Scalar.BOOL:
        return bool(value)
    return value - (1 << 64) if value >> 63 and kind is Scalar.INT else value


_DEFAULTS: dict[Scalar | str, Any] = {Scalar.TEXT: "", Scalar.INT: 0, Scalar.UNSIGNED: 0}


def decode(schemas: Schemas, message: str, view: memoryview, start: int, stop: int) -> Values:
    """The fields of the message that lies from `start` to `stop`; what is not there has its default.

    Bytes stay where they are: they are told as (start, stop).
    """
    schema = schemas[message]
    values: Values = {field.name: [] if field.repeated else _DEFAULTS.get(field.kind) for field in schema.values()}
    seen: set[int] = set()
    unknown = bytearray()
    for number, wire_type, content, begin, end in located_fields(view, start, stop):
        field = schema.get(number)
        if field is None:
            _check_length(len(unknown) + end - begin, begin)
            unknown += view[begin:end]
            continue
        if number in seen and not field.repeated:
            raise WireError(f"has the field {field.name} twice, at byte {begin}")
        seen.add(number)
        for value in _decoded(schemas, field, view, wire_type, content, begin):
            if not field.repeated:
                values[field.name] = value
            elif len(values[field.name]) < field.most:
                values[field.name].append(value)
            else:
                raise WireError(f"has more than {field.most} entries of {field.name}")
    values[UNKNOWN] = bytes(unknown)
    return values


def _decoded(
    schemas: Schemas, field: Field, view: memoryview, wire_type: int, content: Any, begin: int
) -> Iterator[Any]:
    """The values that one occurrence of a field holds: several if they are packed."""
    kind = field.kind
    expected = LENGTH if isinstance(kind, str) else kind.wire_type
    if wire_type == LENGTH and expected == VARINT and field.repeated:
        yield from varints(view, *content)
    elif wire_type != expected:
        raise WireError(f"has wire type {wire_type} for the field {field.name} at byte {begin}")
    elif isinstance(kind, str):
        yield decode(schemas, kind, view, *content)
    elif kind is Scalar.TEXT:
        _check_length(content[1] - content[0], begin)
        try:
            yield bytes(view[slice(*content)]).decode("utf-8")
        except UnicodeDecodeError as error:
            problem = f"has a text {field.name} at byte {begin} that is not UTF-8 ({error.reason})"
            raise WireError(problem) from error
    else:
        yield _number(kind, content) if wire_type == VARINT else content


def _check_length(length: int, begin: int) -> None:
    if length > LONGEST:
        raise WireError(f"has a field of {length} bytes at byte {begin}, too many for a text")
