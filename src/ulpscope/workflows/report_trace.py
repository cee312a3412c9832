"""The page of a single run: its statistics by module and step."""

from pathlib import Path

from ulpscope.dialects.opening import open_run
from ulpscope.report.page.packing import Content
from ulpscope.report.page.trace_content import trace_content
from ulpscope.trace.trends import module_trends


def content_of_run(path: Path) -> Content:
    """What the page of a trace, or of a foreign dump, holds. TraceError if it is none."""
    trace = open_run(path)
    return trace_content(str(path), module_trends(trace), trace.missing)
