"""A DataLoader's worker that was spawned is a process of its own: it is not part of the run's numbers."""

import functools
from collections.abc import Callable
from typing import Any

import torch


def leave_data_workers_alone(abandon: Callable[[], None]) -> None:
    """Have every worker that starts in this process abandon the capture first."""
    worker = torch.utils.data._utils.worker
    original = worker._worker_loop

    @functools.wraps(original)  # by its name, or a DataLoader could not send it to the processes it spawns
    def loop(*args: Any, **kwargs: Any) -> Any:
        abandon()
        return original(*args, **kwargs)

    worker._worker_loop = loop
