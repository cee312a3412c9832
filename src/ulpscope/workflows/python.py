"""The commands as Python functions, with options as a user writes them."""

from collections.abc import Sequence
from pathlib import Path

from ulpscope.workflows.capture import int_ranges
from ulpscope.workflows.compare import CompareOptions, CompareResult
from ulpscope.workflows.compare import compare as compare_traces


def compare(
    reference: str | Path,
    target: str | Path,
    *,
    steps: str | Sequence[int] | None = None,
    ranks: str | Sequence[int] | None = None,
    mapping: str | Path | None = None,
    standard: str = "rounding",
    details: bool = False,
    jobs: int = 1,
) -> CompareResult:
    """Compare two runs, traces or dumps of other tools, as `ulpscope compare` does."""
    options = CompareOptions(
        steps=int_ranges(steps, option="steps"),
        ranks=int_ranges(ranks, option="ranks"),
        mapping=None if mapping is None else Path(mapping),
        standard=standard,
        details=details,
        jobs=max(jobs, 1),
    )
    return compare_traces(reference, target, options)
