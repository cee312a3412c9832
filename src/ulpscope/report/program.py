"""The user's program as text: arguments of its calls as one would write them, lines of its source.

The encoding of arguments is described in docs/trace-format.md. Paths of sources come from a trace: another machine's, a
changed or a hostile one's. An answer is mailed, and a trace may name any file: of one that is no source of a program
not a line is told, also not through a link.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from ulpscope.report.tables import plain
from ulpscope.report.words.comparison import source_name
from ulpscope.report.words.language import shown_name
from ulpscope.trace.files import open_text

LONGEST = 400


def argument_lines(arguments: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each argument with its place: `args.0`, `kwargs.eps`, `returned`."""
    positional, named = arguments.get("args"), arguments.get("kwargs")
    for index, item in enumerate(positional if isinstance(positional, list) else []):
        yield f"args.{index}", _line(item, f"args.{index}")
    for name, item in (named if isinstance(named, dict) else {}).items():
        yield f"kwargs.{name}", _line(item, f"kwargs.{name}")
    for name, item in arguments.items():
        if name not in ("args", "kwargs"):
            yield name, _line(item, name)


def argument_text(item: Any) -> str:
    """One encoded argument in words."""
    if isinstance(item, list):
        return f"[{_joined(item)}]"
    if not isinstance(item, dict):
        return repr(item)
    word = next((key for key in item if key.startswith("$")), None)
    return f"{{{_entries(item.items())}}}" if word is None else _special(word, item)


_WORDS = {
    "$tensor": "tensor {}",
    "$ellipsis": "...",
    "$truncated": "... ({} left out)",
    **dict.fromkeys(("$float", "$dtype", "$device", "$layout", "$memory_format", "$callable"), "{}"),
}


def _special(word: str, item: dict[str, Any]) -> str:
    content = item[word]
    if word in _WORDS:
        return _WORDS[word].format(content)
    if word in ("$tuple", "$size") and isinstance(content, list):
        inside = f"({_joined(content)}{',' if len(content) == 1 else ''})"
        return inside if word == "$tuple" else f"torch.Size{inside}"
    if (
        word == "$dict"
        and isinstance(content, list)
        and all(isinstance(each, list) and len(each) == 2 for each in content)
    ):
        return f"{{{_entries(content)}}}"
    if word == "$slice" and isinstance(content, list):
        return f"slice({_joined(content)})"
    if word == "$complex" and isinstance(content, list) and len(content) == 2:
        return f"({argument_text(content[0])} + {argument_text(content[1])}j)"
    if word == "$object" and "fields" in item:
        return f"{content}{argument_text(item['fields'])}"
    return f"<{word.removeprefix('$')} {content}>"


def _joined(items: list[Any]) -> str:
    return ", ".join(argument_text(item) for item in items)


def _entries(pairs: Any) -> str:
    return ", ".join(f"{key!r}: {argument_text(content)}" for key, content in pairs)


def _line(item: Any, place: str) -> str:
    if item == {"$tensor": place}:
        return "tensor"
    try:
        text = argument_text(item)
    except RecursionError:
        return "(nested too deeply to show)"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text) - LONGEST} more characters)"


LARGEST_SOURCE = 16 * 2**20
LONGEST_LINE = 200
SOURCE_ENDING = ".py"
LONGEST_NUMBER = 10
"""Digits of a line's number; Python refuses to read one of thousands."""


def source_line(file: str, line: int) -> str | None:
    """The text of a line of a Python file that can be read here."""
    try:
        # A bare name would be looked for in whatever directory we happen to be in.
        if "/" not in file or not os.path.realpath(file).endswith(SOURCE_ENDING) or not file.endswith(SOURCE_ENDING):
            return None
        with open_text(file, limit=LARGEST_SOURCE, errors="replace") as source:
            text = next((text for number, text in enumerate(source, start=1) if number == line), "")
    except (OSError, ValueError):
        return None
    return text.strip()[:LONGEST_LINE] or None


def head_line(names: Sequence[str], source: str | None) -> Text:
    """What a call is called, and the line `FILE:LINE` of the program that makes it, with its text if there is one."""
    cells = [plain(shown_name(name), style="" if number else "bold") for number, name in enumerate(names)]
    if source:
        place = place_of(source)
        text = None if place is None else source_line(*place)
        cells += [plain(shown_name(text), style="cyan")] if text is not None else []
        cells.append(plain(source_name(source)))
    return Text("   ").join(cells)


def place_of(source: str | None) -> tuple[str, int] | None:
    """File and line of `FILE:LINE`; none where it names no line."""
    file, _, line = (source or "").rpartition(":")
    return (file, int(line)) if file and line.isascii() and line.isdigit() and len(line) < LONGEST_NUMBER else None
