"""Messages of protobuf, from whichever encoding, and typed looks into their fields."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, list[Any]]
"""Fields by name, each with all its values: texts, bytes, numbers, messages, or what a finished message became."""

Finished: TypeAlias = Mapping[str, Callable[[Message], object]]
"""What to make of a message as soon as it is complete, by its path: `graph.op`. It bounds what is in memory at once."""

DEEPEST = 100
"""How deeply messages may be nested: the limit that protobuf's own readers have."""

_LOWEST, _HIGHEST = -(2**63), 2**64


class GraphFileError(ValueError):
    """What is wrong with a graph file, as a clause that follows its name."""


def text(message: Message, field: str, default: str = "") -> str:
    """A text; the last one counts, as in every protobuf reader."""
    return as_text(last(message, field, default), field)


def texts(message: Message, field: str) -> list[str]:
    return [as_text(value, field) for value in message.get(field, ())]


def integer(message: Message, field: str, default: int = 0) -> int:
    return as_integer(last(message, field, default), field)


def integers(message: Message, field: str) -> tuple[int, ...]:
    return tuple([as_integer(value, field) for value in message.get(field, ())])


def numbers(message: Message, field: str) -> tuple[float, ...]:
    return tuple([_number(value, field) for value in message.get(field, ())])


def last(message: Message, field: str, default: Any = None) -> Any:
    """A value of whatever kind; a field may be there without any, as an empty list."""
    values = message.get(field)
    return values[-1] if values else default


def messages(message: Message, field: str) -> list[Message]:
    values = message.get(field, [])
    for value in values:
        if not isinstance(value, dict):
            raise unfit(field, value, "a message")
    return values


def sub_message(message: Message, field: str) -> Message:
    """One message; an empty one if there is none."""
    found = messages(message, field)
    return found[-1] if found else {}


def size_of(message: Message, field: str) -> int:
    """How many bytes a field of bytes holds."""
    value = last(message, field, b"")
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, bytes | memoryview):
        return len(value)
    raise unfit(field, value, "bytes")


def as_text(value: object, field: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | memoryview):
        return decoded(bytes(value))
    raise unfit(field, value, "a text")


def as_integer(value: object, field: str) -> int:
    if isinstance(value, int) and _LOWEST <= value < _HIGHEST:
        return value
    raise unfit(field, value, "a whole number of 64 bits")


def decoded(data: bytes) -> str:
    """Text as UTF-8, or as GB18030, in which Chinese systems write (GBK is a part of it); else with escapes."""
    for encoding in ("utf-8", "gb18030"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    return data.decode("utf-8", "backslashreplace")


def unfit(field: str, found: object, wanted: str) -> GraphFileError:
    return GraphFileError(f"field {field} holds {shortened(found)}, not {wanted}")


def shortened(found: object) -> str:
    if isinstance(found, dict):
        return "a message"
    if isinstance(found, int) and abs(found) >= _HIGHEST:
        return "a larger number"
    if isinstance(found, str | int | float):
        words = repr(found)
        return words if len(words) <= 60 else f"{words[:57]}..."
    return f"{len(found):,} bytes" if isinstance(found, bytes | memoryview) else f"a {type(found).__name__}"


def _number(value: object, field: str) -> float:
    if isinstance(value, int | float):
        return float(as_integer(value, field)) if isinstance(value, int) else value
    raise unfit(field, value, "a number")
