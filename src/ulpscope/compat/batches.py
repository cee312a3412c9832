"""Iterations counted by DataLoaders, as older tools did: each batch that a loader gives begins one."""

import functools
from collections.abc import Callable
from typing import Any


def watch_batches(*, before: Callable[[], None], after: Callable[[], None]) -> None:
    """From now on call these before a DataLoader fetches a batch, and after it has got one."""
    from torch.utils.data import dataloader

    fetch = dataloader._BaseDataLoaderIter.__next__

    @functools.wraps(fetch)
    def fetch_and_tell(batches: Any) -> Any:
        before()
        batch = fetch(batches)
        after()
        return batch

    dataloader._BaseDataLoaderIter.__next__ = fetch_and_tell  # type: ignore[assignment,method-assign]
