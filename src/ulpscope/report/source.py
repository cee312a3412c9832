"""Lines of the user's source. Their paths come from a trace: another machine's, a changed or a hostile one's.

An answer is mailed, and a trace may name any file: of one that is no source of a program not a line is told, also not
through a link.
"""

import os

from ulpscope.trace.files import open_text

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


def text_at(source: str | None) -> str | None:
    """The text of a line that is written `FILE:LINE`."""
    place = place_of(source)
    return None if place is None else source_line(*place)


def place_of(source: str | None) -> tuple[str, int] | None:
    """File and line of `FILE:LINE`; none where it names no line."""
    file, _, line = (source or "").rpartition(":")
    return (file, int(line)) if file and line.isascii() and line.isdigit() and len(line) < LONGEST_NUMBER else None
