"""Lines of the user's source that a page tells."""

from collections.abc import Mapping
from typing import Any

from ulpscope.records.calls import Frame
from ulpscope.report.source import place_of, source_line


def stack_line(frame: Frame) -> dict[str, Any]:
    """A line of a call stack with its text, if that can be read here."""
    text = source_line(frame.file, frame.line)
    return {"file": frame.file, "line": frame.line, "function": frame.function, "text": text}


def innermost_line(finding: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All that the `source` of a finding tells of its call stack; nothing where it names no line."""
    place = place_of(finding.get("source"))
    return [] if place is None else [stack_line(Frame(*place, ""))]
