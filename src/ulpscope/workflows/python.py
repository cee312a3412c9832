"""The commands as Python functions, with options as a user writes them."""

from pathlib import Path

from ulpscope.capture.settings import parse_ranges
from ulpscope.workflows.compare import CompareOptions, CompareResult
from ulpscope.workflows.compare import compare as compare_traces


def compare(
    reference: str | Path,
    target: str | Path,
    *,
    steps: str | None = None,
    ranks: str | None = None,
    mapping: str | Path | None = None,
    standard: str = "rounding",
    details: bool = False,
    jobs: int = 1,
) -> CompareResult:
    """Compare two runs, traces or dumps of other tools, as `ulpscope compare` does."""
    options = CompareOptions(
        steps=None if steps is None else parse_ranges(steps, option="steps"),
        ranks=None if ranks is None else parse_ranges(ranks, option="ranks"),
        mapping=None if mapping is None else Path(mapping),
        standard=standard,
        details=details,
        jobs=jobs,
    )
    return compare_traces(reference, target, options)
