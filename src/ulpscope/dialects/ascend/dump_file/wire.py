"""Messages read and written by a table of fields, byte for byte.

Strict where a reader that guesses would allocate or loop: every length is checked against what is there, nesting is as
deep as the tables. Fields that no table knows are kept as they are, so that what is written again is the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from ulpscope.dialects.wire import LENGTH, VARINT, LocatedField, WireError, located_fields, number_bytes, varints

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
