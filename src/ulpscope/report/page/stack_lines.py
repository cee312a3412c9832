"""Lines of the user's source that a page tells."""

from collections.abc import Mapping
from typing import Any

from ulpscope.records.calls import Frame
from ulpscope.report.source import source_line


def stack_line(frame: Frame) -> dict[str, Any]:
    """A line of a call stack with its text, if that can be read here."""
    # A page is mailed: of a file that is no source of a program not a line may go with it.
    text = source_line(frame.file, frame.line) if frame.file.endswith(".py") else None
    return {"file": frame.file, "line": frame.line, "function": frame.function, "text": text}


def innermost_line(finding: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All that the `source` of a finding tells of its call stack; nothing where it names no line."""
    file, _, line = (finding.get("source") or "").rpartition(":")
    return [stack_line(Frame(file, int(line), ""))] if file and line.isdecimal() else []
