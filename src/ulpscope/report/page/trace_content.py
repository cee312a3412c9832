"""What the page of a single run holds."""

import polars as pl

from ulpscope.report.page.packing import Content


def trace_content(path: str, stats: pl.DataFrame, missing: tuple[str, ...]) -> Content:
    """Statistics by module and step (trace.trends), and what the trace lacks."""
    return Content({"kind": "trace", "about": path, "missing": list(missing)}, {"stats": stats})
