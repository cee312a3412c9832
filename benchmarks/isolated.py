"""Does pieces of work in processes that may die of them.

    for item, outcome in do_isolated(work, items, jobs=2, timeout=60):
        ...                                  # what work(item) returned, or Died("killed by signal 11")

A process that dies or hangs costs one item; another one goes on with the next.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

# Forked from a process that has imported torch and nothing of threads: a start costs milliseconds.
_processes = multiprocessing.get_context("forkserver")


@dataclass(frozen=True, slots=True)
class Died:
    """Why an item has no result."""

    reason: str


def do_isolated(
    work: Callable[[Item], Any], items: Sequence[Item], *, jobs: int, timeout: float
) -> Iterator[tuple[Item, Any]]:
    """Results in the order in which they come."""
    _processes.set_forkserver_preload([work.__module__])
    waiting = list(reversed(items))
    workers = [_Worker(work) for _ in range(min(jobs, len(items)))]
    try:
        while waiting or any(worker.busy for worker in workers):
            for worker in workers:
                if waiting and not worker.busy:
                    worker.start(waiting.pop())
            wait([worker.pipe for worker in workers if worker.busy], timeout=0.2)
            for worker in workers:
                yield from worker.finished(timeout)
    finally:
        for worker in workers:
            worker.end()


class _Worker(Generic[Item]):
    """One process at a time, and the item that it is busy with."""

    def __init__(self, work: Callable[[Item], Any]) -> None:
        self._work = work
        self._item: list[Item] = []
        self._begun = 0.0
        self._spawn()

    @property
    def busy(self) -> bool:
        return bool(self._item)

    def start(self, item: Item) -> None:
        self._item = [item]
        self._begun = time.monotonic()
        self.pipe.send(item)

    def finished(self, timeout: float) -> Iterator[tuple[Item, Any]]:
        if not self.busy:
            return
        if self.pipe.poll():
            yield self._item.pop(), self._received()
        elif time.monotonic() - self._begun > timeout:
            self._again()
            yield self._item.pop(), Died(f"took more than {timeout:g} s")

    def end(self) -> None:
        self._process.kill()
        self._process.join()

    def _received(self) -> Any:
        try:
            return self.pipe.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode or 0
            self._again()
            return Died(f"killed by signal {-code}" if code < 0 else f"exited with {code}")

    def _again(self) -> None:
        self.end()
        self._spawn()

    def _spawn(self) -> None:
        self.pipe, far = _processes.Pipe()
        self._process = _processes.Process(target=_serve, args=(far, self._work), daemon=True)
        self._process.start()
        far.close()


def _serve(pipe: Connection, work: Callable[[Any], Any]) -> None:
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        try:
            outcome = work(item)
        except Exception as error:
            outcome = Died(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200])
        pipe.send(outcome)
