"""What the page of a check holds."""

from ulpscope.report.page.packing import Content
from ulpscope.report.page.sources import Sources

SHOWN = (
    "name", "op", "phase", "variant", "data", "device", "place", "direction", "dtype", "shape", "verdict", "statistic",
    "limit_share", "worst", "worst_computed", "worst_exact", "message",
)  # fmt: skip
"""Columns of details.csv that the page shows; every figure of an output is in the file."""


def check_content(sources: Sources) -> Content:
    """The outputs of all cases, and what is told of them; modes of check have the latter only."""
    summary, details = sources.summary, sources.tables.get("details")
    meta = {
        "kind": "check",
        "summary": summary,
        "told": sources.told_of("findings", "notes"),
        "stacks": sources.told["stacks"],
        "about": f"{summary['trace']} ({', '.join(map(str, summary['scope']['devices']))})",
    }
    if details is None:
        return Content(meta, {})
    return Content(meta, {"details": details.select(name for name in SHOWN if name in details.columns)})
