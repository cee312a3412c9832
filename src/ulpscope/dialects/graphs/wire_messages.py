"""Messages in protobuf's wire format, with the fields that a schema names; all other fields are passed over."""

from collections.abc import Mapping
from typing import TypeAlias

from ulpscope.dialects.graphs.messages import DEEPEST, Finished, GraphFileError, Message
from ulpscope.dialects.wire import LENGTH, Scalar, WireError, fields, scalars

Schema: TypeAlias = Mapping[int, tuple[str, Scalar | str]]
"""Field numbers with the field's name and its encoding: a scalar, or the name of a message."""

Schemas: TypeAlias = Mapping[str, Schema]


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
        field, kind = known
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
