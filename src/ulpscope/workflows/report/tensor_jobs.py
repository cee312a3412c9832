"""Long reads of big tensors: each is done once, in the background, and tells how far it is to all who ask."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass, field
from typing import Any

from ulpscope.numerics.pairs.overview import Advance

WORKERS = 2
KEPT = 16
"""Answers; the largest, a heat map of 256 x 256 cells, takes about 5 MB. The page keeps its own, too."""
PATIENCE = 1.0
"""Seconds that a request waits; then it tells the progress instead."""
FORGOTTEN_AFTER = 20.0
"""Seconds after which work that nobody asks for any more is given up."""

Work = Callable[[Advance], Any]


class _GivenUpError(Exception):
    """Nobody waits for this answer."""


@dataclass(slots=True)
class _Job:
    asked: float
    share: float = 0.0
    future: "Future[Any]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Running:
    """Not done yet."""

    share: float


@dataclass(frozen=True, slots=True)
class Done:
    answer: Any


class TensorJobs:
    """Does work in the background and keeps the latest answers."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="ulpscope-tensors")
        self._jobs: OrderedDict[Hashable, _Job] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, key: Hashable, work: Work, *, patience: float = PATIENCE) -> Done | Running:
        """The answer, or how far it is; the work's own error if it failed."""
        job = self._job(key, work)
        try:
            return Done(job.future.result(timeout=patience))
        except NotDone:
            return Running(job.share)
        except _GivenUpError:
            # Given up just when it was asked for again: the next request begins anew.
            return Running(0.0)

    def close(self) -> None:
        """Stop all work at its next step."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _job(self, key: Hashable, work: Work) -> _Job:
        with self._lock:
            job = self._jobs.get(key)
            # What failed is tried again: a file may be there now.
            if job is None or (job.future.done() and (job.future.cancelled() or job.future.exception() is not None)):
                job = self._jobs[key] = _Job(time.monotonic())
                job.future = self._pool.submit(self._do, job, work)
                self._forget_oldest()
            self._jobs.move_to_end(key)
            job.asked = time.monotonic()
            return job

    def _do(self, job: _Job, work: Work) -> Any:
        def advance(share: float) -> None:
            job.share = share
            if self._closed or time.monotonic() - job.asked > FORGOTTEN_AFTER:
                raise _GivenUpError

        return work(advance)

    def _forget_oldest(self) -> None:
        done = [key for key, job in self._jobs.items() if job.future.done()]
        for key in done[: max(len(self._jobs) - KEPT, 0)]:
            del self._jobs[key]
