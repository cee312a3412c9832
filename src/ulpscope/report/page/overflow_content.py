"""What the page of a search for overflows holds."""

from ulpscope.report.page.packing import Content
from ulpscope.report.page.sources import Sources


def overflow_content(sources: Sources) -> Content:
    """The operations that overflowed, with their tensors and their ways, as summary.json has them."""
    meta = {
        "kind": "overflow",
        "summary": sources.summary,
        "told": sources.told_of("findings", "notes"),
        "stacks": sources.told["stacks"],
        "about": ", ".join(sources.summary["paths"]),
    }
    return Content(meta, {})
