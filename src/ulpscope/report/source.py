"""Lines of the user's source. Their paths come from a trace: another machine's, a changed or a hostile one's."""

import os

LARGEST_SOURCE = 16 * 2**20
LONGEST_LINE = 200


def source_line(file: str, line: int) -> str | None:
    """The text of a line if the file can be read here."""
    try:
        if not os.path.isfile(file) or os.path.getsize(file) > LARGEST_SOURCE:
            return None
        with open(file, encoding="utf-8", errors="replace") as source:
            text = next((text for number, text in enumerate(source, start=1) if number == line), "")
    except (OSError, ValueError):
        return None
    return text.strip()[:LONGEST_LINE] or None
