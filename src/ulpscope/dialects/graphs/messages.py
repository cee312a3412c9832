"""Messages of protobuf, from whichever encoding, and typed looks into their fields.

JSON spells values in many ways: numbers of 64 bits, floats and booleans as texts ("0.01", "NaN", "true"),
enumerations by name or number, null for what is not there. A look that knows what a field is takes them all.
Of the wire format, only the fields that a schema names are read. Element types get ulpscope's names.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ulpscope.dialects.ascend.dump_file.records import DATA_TYPES, dtype_of_name
from ulpscope.dialects.wire import LENGTH, Scalar, Schemas, WireError, fields, scalars
from ulpscope.records.graphs import AttributeValue

Message: TypeAlias = dict[str, list[Any]]
"""Fields by name, each with all its values: texts, bytes, numbers, messages, or what a finished message became."""

Finished: TypeAlias = Mapping[str, Callable[[Message], object]]
"""What to make of a message as soon as it is complete, by its path: `graph.op`. It bounds what is in memory at once."""

DEEPEST = 100
"""How deeply messages may be nested: the limit that protobuf's own readers have."""

_LOWEST, _HIGHEST = -(2**63), 2**64

_SPELLED = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:inf(?:inity)?|nan)", re.IGNORECASE)
_LONGEST_NUMBER = 40
"""Characters: more than any 64 bits or float64 need; longer ones take long to convert."""
_FLAGS = {"true": 1, "false": 0}


class GraphFileError(ValueError):
    """What is wrong with a graph file, as a clause that follows its name."""


def text(message: Message, field: str, default: str = "") -> str:
    """A text; the last one counts, as in every protobuf reader."""
    return as_text(last(message, field, default), field)


def texts(message: Message, field: str) -> list[str]:
    return [as_text(value, field) for value in message.get(field, ()) if value is not None]


def integer(message: Message, field: str, default: int = 0) -> int:
    return as_integer(last(message, field, default), field)


def integers(message: Message, field: str) -> tuple[int, ...]:
    return tuple([as_integer(value, field) for value in message.get(field, ()) if value is not None])


def numbers(message: Message, field: str) -> tuple[float, ...]:
    return tuple([as_number(value, field) for value in message.get(field, ()) if value is not None])


def last(message: Message, field: str, default: Any = None) -> Any:
    """A value of whatever kind; a field may be there without any, as an empty list."""
    values = message.get(field)
    return values[-1] if values else default


def messages(message: Message, field: str) -> list[Message]:
    values = message.get(field, [])
    for value in values:
        if not isinstance(value, dict):
            return [as_message(each, field) for each in values]
    return values


def sub_message(message: Message, field: str) -> Message:
    """One message; an empty one if there is none."""
    found = messages(message, field)
    return found[-1] if found else {}


def size_of(value: object, field: str) -> int:
    """How many bytes a field of bytes holds."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if value is None or isinstance(value, bytes | memoryview):
        return len(value or b"")
    raise unfit(field, value, "bytes")


def as_message(value: object, field: str) -> Message:
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    raise unfit(field, value, "a message")


def as_text(value: object, field: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | memoryview):
        return decoded(bytes(value))
    raise unfit(field, value, "a text")


def as_integer(value: object, field: str) -> int:
    number = value if isinstance(value, int) else _spelled(value)
    whole = int(number) if isinstance(number, float) and number.is_integer() else number
    if isinstance(whole, int) and _LOWEST <= whole < _HIGHEST:
        return whole
    raise unfit(field, value, "a whole number of 64 bits")


def as_number(value: object, field: str) -> float:
    number = _spelled(value)
    if isinstance(number, int):
        return float(as_integer(number, field))
    if isinstance(number, float):
        return number
    raise unfit(field, value, "a number")


def as_flag(value: object, field: str) -> bool:
    return bool(as_integer(_FLAGS.get(value.lower(), value) if isinstance(value, str) else value, field))


def as_choice(value: object, field: str) -> int | str:
    """What an enumeration holds: its number, or its word."""
    choice = _spelled(value)
    if isinstance(choice, int | str):
        return choice
    raise unfit(field, value, "a word or a number")


Kind: TypeAlias = Callable[[Any, str], Any]
"""What reads a value of a field, of which a message has one: the kinds that an attribute may be."""

SCALAR_KINDS: dict[str, Kind] = {"s": as_text, "i": as_integer, "f": as_number, "b": as_flag}


def of_message(read: Callable[[Message], Any]) -> Kind:
    """A kind of attribute that is a message."""
    return lambda value, _: read(as_message(value, "attr"))


def by_kind(kinds: Mapping[str, Kind], message: Message) -> Any:
    """The value of the first field that is one of these kinds; none if the file holds an empty one."""
    for kind, values in message.items():
        if values and kind in kinds:
            return kinds[kind](values[-1], kind)
    return None


def all_by_kind(kinds: Mapping[str, Kind], message: Message) -> tuple[Any, ...]:
    """All values of that field."""
    for kind, values in message.items():
        if values and kind in kinds:
            return tuple([kinds[kind](value, kind) for value in values])
    return ()


def integers_in(value: AttributeValue) -> tuple[int, ...] | None:
    """The whole numbers of an attribute that is a list."""
    return tuple([number for number in value if isinstance(number, int)]) if isinstance(value, tuple) else None


def words_in(value: AttributeValue) -> tuple[str, ...]:
    """A text or a list of texts: older compilers write one, newer ones the other."""
    words = value if isinstance(value, tuple) else (value,)
    return tuple([word for word in words if isinstance(word, str) and word])


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


def _spelled(value: object) -> object:
    """The number that a text spells, 0 for nothing at all; anything else as it is."""
    if value is None:
        return 0
    if not isinstance(value, str) or len(value) > _LONGEST_NUMBER or _SPELLED.fullmatch(value) is None:
        return value
    try:
        return int(value)
    except ValueError:
        return float(value)


def read_message(data: memoryview, name: str, schemas: Schemas, finished: Finished) -> Message:
    """The message of this name that the bytes hold; GraphFileError if they hold something else."""
    try:
        return _message(data, name, schemas, finished, path="", depth=0)
    except WireError as error:
        raise GraphFileError(f"{error}; it is damaged, or no {name}") from error


def _message(data: memoryview, name: str, schemas: Schemas, finished: Finished, *, path: str, depth: int) -> Message:
    if depth > DEEPEST:
        raise GraphFileError(f"nests messages more than {DEEPEST} deep")
    message: Message = {}
    schema = schemas[name]
    for number, wire_type, content in fields(data):
        known = schema.get(number)
        if known is None:
            continue
        field, kind = known.name, known.kind
        values = message.setdefault(field, [])
        if isinstance(kind, Scalar):
            values.extend(scalars(kind, wire_type, content))
            continue
        if wire_type != LENGTH or isinstance(content, int):
            raise WireError(f"has wire type {wire_type} where the message {kind} is expected")
        below = f"{path}.{field}" if path else field
        inner = _message(content, kind, schemas, finished, path=below, depth=depth + 1)
        finish = finished.get(below)
        values.append(inner if finish is None else finish(inner))
    return message


TENSORFLOW_DTYPES = dict(
    enumerate(
        "undefined float32 float64 int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32 bfloat16 "
        "qint16 quint16 uint16 complex128 float16 resource variant uint32 uint64 float8_e5m2 float8_e4m3fn "
        "float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2fnuz int4 uint4 int2 uint2".split()
    )
)
"""By their numbers in tensorflow/core/framework/types.proto."""

ONNX_DTYPES = dict(
    enumerate(
        "undefined float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64 complex64 "
        "complex128 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz uint4 int4 float4_e2m1fn "
        "float8_e8m0fnu uint2 int2 float6_e2m3fn float6_e3m2fn".split()
    )
)
"""By their numbers in onnx.proto's TensorProto.DataType."""

GE_DTYPES = {number: dtype_of_name(name) for number, name in enumerate(DATA_TYPES)}
"""By their numbers in ge.proto, which are those of a dump file's header."""


def as_dtype(value: object, field: str, numbered: Mapping[int, str]) -> str:
    """An element type by its word or its number; one that is not known stays as it is."""
    found = as_choice(value, field)
    return named_dtype(found) if isinstance(found, str) else numbered.get(found, str(found))


def named_dtype(name: str) -> str:
    """`DT_FLOAT16` as float16, `DT_FLOAT_REF` as float32."""
    return dtype_of_name(name.removeprefix("DT_").removesuffix("_REF"))
