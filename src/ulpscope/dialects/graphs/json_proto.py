"""Messages of protobuf as JSON, without knowing the schema: as atc writes them, and by protobuf's own mapping.

    {"name": "x", "attr": [{"key": "alpha", "value": {"f": "0.01"}}]}      atc: maps as lists, floats as texts
    {"name": "x", "attr": {"alpha": {"f": 0.01}}, "inputDesc": []}         protobuf: maps as objects, names in camelCase

Numbers, words of enumerations and booleans stay as they are spelled: typed looks into messages know what a field is.
"""

import base64
import binascii
import json
import re
from functools import lru_cache
from typing import Any

from ulpscope.dialects.graphs.messages import DEEPEST, Finished, GraphFileError, Message

_MAP = "attr"
"""The one map among the fields that are looked at."""
_BYTES = frozenset({"s", "bt", "strings", "data", "tensor_content"})
"""Fields of bytes: protobuf's own mapping writes them in base64, atc as they are."""
_CAMEL = re.compile(r"(?<=[a-z0-9])[A-Z]")
_BY_PROTOBUF = re.compile(
    r'"(?:inputDesc|outputDesc|opType|graphDef|metaGraphs)"\s*:|"attr"\s*:\s*\{\s*"(?!key"|value")'
)


def parse_json(text: str, finished: Finished) -> Message:
    """The message that a text holds; GraphFileError if it is no JSON object."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise GraphFileError("is nested too deeply") from error
    except ValueError as error:
        raise GraphFileError(f"is not JSON, or was not written to its end: {error}") from error
    if not isinstance(content, dict):
        raise GraphFileError("is JSON, but no object")
    return _Reader(finished, in_base64=_BY_PROTOBUF.search(text) is not None).message(content, path="", depth=0)


class _Reader:
    def __init__(self, finished: Finished, *, in_base64: bool) -> None:
        self.finished = finished
        self.in_base64 = in_base64

    def message(self, content: dict[str, Any], *, path: str, depth: int) -> Message:
        if depth > DEEPEST:
            raise GraphFileError(f"nests messages more than {DEEPEST} deep")
        message: Message = {}
        for written, value in content.items():
            name = _field_name(written)
            below = f"{path}.{name}" if path else name
            message[name] = [self._value(item, name, path=below, depth=depth + 1) for item in _items(name, value)]
        return message

    def _value(self, item: Any, name: str, *, path: str, depth: int) -> Any:
        if isinstance(item, str) and self.in_base64 and name in _BYTES:
            return _from_base64(item)
        if not isinstance(item, dict):
            return item
        message = self.message(item, path=path, depth=depth)
        finish = self.finished.get(path)
        return message if finish is None else finish(message)


@lru_cache(maxsize=1024)
def _field_name(written: str) -> str:
    return _CAMEL.sub(lambda letter: f"_{letter[0].lower()}", written)


def _items(name: str, value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if name == _MAP and isinstance(value, dict) and not ("key" in value and value.keys() <= {"key", "value"}):
        return [{"key": key, "value": of_key} for key, of_key in value.items()]
    return [value]


def _from_base64(word: str) -> str | bytes:
    try:
        return base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        return word
