"""How the older tools' Python names begin and end a capture, and count iterations by DataLoaders."""

import atexit
import functools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ulpscope.records.enums import Watch

if TYPE_CHECKING:
    from ulpscope.records.runs import OverflowWatch
    from ulpscope.trace.reader import RankTrace
    from ulpscope.workflows.run.python_capture import Capture


def begin_capture(
    out: Path, *, step: int, at_exit: Callable[[], None], overflow: "OverflowWatch | None" = None, **options: Any
) -> "Capture":
    """Begin a capture with this step; what is left to do when the process ends is done then.

    With `overflow`, steps are kept in which numbers overflow.
    """
    from ulpscope.workflows.run.python_capture import capture

    new = capture(out, overwrite=True, **options)
    if overflow is not None:
        new.settings = replace(new.settings, watch=Watch.OVERFLOW, overflow=overflow)
    new.__enter__()
    new.begin_at(step)
    owner = os.getpid()
    # A forked child that ends by sys.exit runs the handlers it inherited.
    atexit.register(lambda: at_exit() if os.getpid() == owner else None)
    return new


def end_capture(capture: "Capture") -> None:
    """End it, with the error that ends the process, if one does."""
    error = getattr(sys, "last_value", None)
    capture.__exit__(type(error) if error is not None else None, error, None)


def own_ranks(path: Path) -> "list[RankTrace]":
    """What this process captured; other ranks write their own."""
    from ulpscope.trace.reader import open_trace

    return [rank for rank in open_trace(path).ranks if rank.info.process.get("pid") == os.getpid()]


def watch_batches(*, before: Callable[[], None], after: Callable[[], None]) -> None:
    """From now on call these before a DataLoader fetches a batch, and after it has got one: an iteration begins."""
    from torch.utils.data import dataloader

    fetch = dataloader._BaseDataLoaderIter.__next__

    @functools.wraps(fetch)
    def fetch_and_tell(batches: Any) -> Any:
        before()
        batch = fetch(batches)
        after()
        return batch

    dataloader._BaseDataLoaderIter.__next__ = fetch_and_tell  # type: ignore[assignment,method-assign]
