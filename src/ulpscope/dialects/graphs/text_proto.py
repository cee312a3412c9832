"""Reads protobuf's text format, and messages as JSON, without knowing the schema.

    op {
      name: "conv1"
      input: "x:0"
    }

One regular expression takes a whole field at a time: files have a million of them. What it does not know is rare and
read step by step: texts with escapes, lists in brackets, texts in pieces, comments. Nothing recurs, so that no nesting
is too deep for the interpreter.

JSON comes as atc writes it, and by protobuf's own mapping.

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

_FIELD = re.compile(
    r"""(?: (\w+) (?: :\ ?(?: "([^"\\\n]*)" | ([-+.\w]+) ) | \ ?:?\s*([{<]) )   # name: "text"   name: word   name {
        |   ([}>])
        |   (\S) )                                                              # anything else
        [\s;,]*""",
    re.VERBOSE,
)
_TEXT, _WORD, _OPEN, _CLOSE = 2, 3, 4, 5

_NAME = re.compile(r"(\w+)\s*:\s*")
_COMMENT = re.compile(r"#[^\n]*\s*")
_PLAIN_WORD = re.compile(r"[-+.\w]+")
_BETWEEN = re.compile(r"[\s;,]*")
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|([abfnrtv\\'\"?]))")
_LETTERS = {
    bytes([letter]): bytes([meant]) for letter, meant in zip(b"abfnrtv\\'\"?", b"\a\b\f\n\r\t\v\\'\"?", strict=True)
}
_QUOTES = ('"', "'")
_BRACES = {"}": "{", ">": "<"}

_LONGEST_NUMBER = 40
"""Digits and more than any 64 bits or float64 need; longer ones take long to convert."""


def parse_text(text: str, finished: Finished) -> Message:
    """The message that a text holds; GraphFileError with the line if it is none."""
    return _Parser(text, finished).run()


class _Parser:
    """One pass over a text: the open messages, and where each of them goes when it is complete."""

    def __init__(self, text: str, finished: Finished) -> None:
        self.text = text
        self.finished = finished
        self.root: Message = {}
        self.message = self.root
        self.path = ""
        self.field = ""
        self.open: list[tuple[Message, str, str, str]] = []
        self.words: dict[str, Any] = {"true": True, "false": False}
        self.texts: dict[str, str] = {}

    def run(self) -> Message:
        position = self._after_blanks(0)
        while position < len(self.text):
            position = self._fields(position)
        if self.open:
            raise GraphFileError(f"ends inside of {self.path}: it is damaged, or was not written to its end")
        return self.root

    def _fields(self, start: int) -> int:
        """Take fields as long as the regular expression knows them; where it stopped."""
        words, texts = self.words, self.texts
        message = self.message
        for match in _FIELD.finditer(self.text, start):
            kind = match.lastindex
            value: Any
            if kind == _WORD:
                name, _, word = match.group(1, 2, 3)
                value = words.get(word)
                if value is None:
                    value = words[word] = self._word(word, match.start())
            elif kind == _TEXT:
                name, value = match.group(1, 2)
                # Equal texts, of which a graph has many, are one object.
                value = texts.setdefault(value, value)
            elif kind == _OPEN:
                message = self._descend(match[1], match[4], match.start())
                continue
            elif kind == _CLOSE:
                message = self._ascend(match[5], match.start())
                continue
            else:
                return self._unusual(match.start())
            self.field = name
            if name in message:
                message[name].append(value)
            else:
                message[name] = [value]
        return len(self.text)

    def _descend(self, name: str, brace: str, position: int) -> Message:
        if len(self.open) >= DEEPEST:
            raise self._problem(f"nests messages more than {DEEPEST} deep", position)
        self.open.append((self.message, self.path, name, brace))
        self.path = f"{self.path}.{name}" if self.path else name
        self.message = {}
        return self.message

    def _ascend(self, brace: str, position: int) -> Message:
        if not self.open:
            raise self._problem(f"closes a message with {brace} where none is open", position)
        outer, path, name, opened = self.open.pop()
        if _BRACES[brace] != opened:
            raise self._problem(f"closes with {brace} a message that began with {opened}", position)
        finish = self.finished.get(self.path)
        complete = self.message if finish is None else finish(self.message)
        outer.setdefault(name, []).append(complete)
        self.message, self.path, self.field = outer, path, ""
        return outer

    def _unusual(self, position: int) -> int:
        """Read what the regular expression does not know, and say where it ends."""
        comment = _COMMENT.match(self.text, position)
        if comment is not None:
            return comment.end()
        if self.text[position] in _QUOTES:
            return self._continued(position)
        named = _NAME.match(self.text, position)
        if named is None:
            raise self._problem(f"has {self.text[position]!r} where a field is expected", position)
        self.field, start = named[1], named.end()
        values = self.message.setdefault(self.field, [])
        if self.text[start : start + 1] == "[":
            return self._list(values, start)
        found = self._single(start)
        if found is None:
            raise self._problem(f"has no value for the field {self.field}", start)
        values.append(found[0])
        return self._after_blanks(found[1])

    def _continued(self, position: int) -> int:
        """A text in several pieces: those that follow the first belong to the field before."""
        before = self.message.get(self.field)
        if not before or not isinstance(before[-1], str | bytes):
            raise self._problem("has a text that belongs to no field", position)
        pieces = [_as_bytes(before[-1])]
        while self.text[position : position + 1] in _QUOTES:
            piece, end = self._quoted(position)
            pieces.append(_as_bytes(piece))
            position = self._after_blanks(end)
        before[-1] = b"".join(pieces)
        return position

    def _list(self, values: list[Any], start: int) -> int:
        position = self._after_blanks(start + 1)
        while self.text[position : position + 1] != "]":
            found = self._single(position)
            if found is None:
                raise self._problem("has a list that holds more than texts and numbers, or does not end", start)
            values.append(found[0])
            position = self._after_blanks(found[1])
        return self._after_blanks(position + 1)

    def _single(self, position: int) -> tuple[Any, int] | None:
        """A text or a word, and where it ends; none if there is neither."""
        if self.text[position : position + 1] in _QUOTES:
            return self._quoted(position)
        word = _PLAIN_WORD.match(self.text, position)
        return None if word is None else (self._word(word[0], position), word.end())

    def _after_blanks(self, position: int) -> int:
        blanks = _BETWEEN.match(self.text, position)
        return position if blanks is None else blanks.end()

    def _quoted(self, start: int) -> tuple[str | bytes, int]:
        """A text in quotes, and where it ends; as bytes if it has escapes, which may stand for any byte."""
        quote = self.text[start]
        end = self.text.find(quote, start + 1)
        while end >= 0 and _is_escaped(self.text, end, start):
            end = self.text.find(quote, end + 1)
        if end < 0:
            raise self._problem("has a text without its closing quote", start)
        # C's escapes, as protobuf writes them; others stay as they are.
        raw = self.text[start + 1 : end]
        return (_ESCAPE.sub(_escaped, raw.encode("utf-8")) if "\\" in raw else raw), end + 1

    def _word(self, word: str, position: int) -> Any:
        """A number, or a word of an enumeration."""
        if word in self.words:
            return self.words[word]
        first = word.lstrip("+-.")[:1]
        if not first.isdigit():
            return {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}.get(word, word)
        if len(word) > _LONGEST_NUMBER:
            raise self._problem(f"has a number of {len(word):,} characters", position)
        try:
            return int(word, 0) if word.lstrip("+-")[:2].lower() == "0x" else int(word)
        except ValueError:
            pass
        try:
            return float(word.rstrip("fF"))
        except ValueError:
            raise self._problem(f"has {word!r} where a number is expected", position) from None

    def _problem(self, problem: str, position: int) -> GraphFileError:
        line = self.text.count("\n", 0, position) + 1
        return GraphFileError(f"{problem}, in line {line:,}")


def _is_escaped(text: str, place: int, start: int) -> bool:
    before = place
    while before > start and text[before - 1] == "\\":
        before -= 1
    return (place - before) % 2 == 1


def _escaped(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, letter = match.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    return bytes([int(hexadecimal, 16)]) if hexadecimal is not None else _LETTERS[letter]


def _as_bytes(piece: str | bytes) -> bytes:
    return piece if isinstance(piece, bytes) else piece.encode("utf-8", "replace")


_MAPS = ("attr", "ret")
"""The maps among the fields that are looked at."""
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
    if name in _MAPS and isinstance(value, dict) and not ("key" in value and value.keys() <= {"key", "value"}):
        return [{"key": key, "value": of_key} for key, of_key in value.items()]
    return [value]


def _from_base64(word: str) -> str | bytes:
    try:
        return base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        return word
