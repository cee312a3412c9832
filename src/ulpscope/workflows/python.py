"""The commands as Python functions, with options as a user writes them."""

from collections.abc import Sequence
from pathlib import Path

from ulpscope.records.errors import UlpscopeError
from ulpscope.records.ledger import Replay
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
    replay: str = "auto",
) -> CompareResult:
    """Compare two runs, traces or dumps of other tools, as `ulpscope compare` does."""
    options = CompareOptions(
        steps=int_ranges(steps, option="steps"),
        ranks=int_ranges(ranks, option="ranks"),
        mapping=None if mapping is None else Path(mapping),
        standard=standard,
        details=details,
        jobs=max(jobs, 1),
        replay=_replay(replay),
    )
    return compare_traces(reference, target, options)


def _replay(word: str) -> Replay:
    try:
        return Replay(word)
    except ValueError:
        words = ", ".join(choice.value for choice in Replay)
        raise UlpscopeError(f"replay={word!r}", expected=f"one of {words}", next_step="leave it out: auto") from None
