"""Measures the tensors of a network side by side: small ones in processes, since most of their work holds the lock."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial

from ulpscope.judge.rounding.network_outcomes import RowOutcome
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.network.masks import measure_batch
from ulpscope.workflows.network.measuring import TensorOrder, Wanted
from ulpscope.workflows.worker_pool import WorkerPool

_WORTH_WORKERS = 128 * 2**20
"""Bytes below which starting others takes longer than the work."""
_WORTH_THREADS = 2**20
"""Bytes of a tensor, on average, from which on most of the work is done without the interpreter's lock."""
_BATCH = 16 * 2**20
"""Bytes of an order: small enough that all processes end at about the same time."""
_AHEAD = 2
"""Batches that each of the other processes has at hand: one in work, and one that it need not wait for."""


def measure_all(
    orders: Sequence[TensorOrder], wanted: Wanted, *, jobs: int, advance: Callable[[int], None]
) -> dict[int, RowOutcome]:
    """The outcome of each order's row; `advance` is told how many are done."""
    outcomes: dict[int, RowOutcome] = {}
    for found in _measured(orders, wanted, jobs):
        outcomes |= {each.row: each for each in found}
        advance(len(found))
    return outcomes


def _measured(orders: Sequence[TensorOrder], wanted: Wanted, jobs: int) -> Iterator[list[RowOutcome]]:
    # The largest first, so that none of them is begun when the others are done.
    batches = sorted(_batches(orders), key=_size, reverse=True)
    workers = min(jobs, len(batches))
    size = sum(order.size for order in orders)
    if workers < 2 or size < _WORTH_WORKERS:
        yield from (measure_batch(batch, wanted) for batch in batches)
        return
    if size >= _WORTH_THREADS * len(orders):
        with ThreadPoolExecutor(workers) as threads:
            yield from threads.map(partial(measure_batch, wanted=wanted), batches)
        return
    with WorkerPool(workers - 1) as pool:
        try:
            yield from _shared(pool, batches, wanted, ahead=_AHEAD * (workers - 1))
        except BrokenProcessPool as error:
            raise UlpscopeError(
                "a process that compares tensors has died",
                expected="memory for the largest tensor, four times, in each process",
                next_step="repeat with --jobs 1",
            ) from error


def _shared(
    pool: WorkerPool, batches: Sequence[Sequence[TensorOrder]], wanted: Wanted, *, ahead: int
) -> Iterator[list[RowOutcome]]:
    """The others get batches from the beginning, while this process takes them from the end.

    Nothing is handed out long before it is begun, so that nothing need be called back: up to Python 3.11 a pool
    whose process has died fails over what was called back.
    """
    left, running = deque(batches), set[Future[list[RowOutcome]]]()
    while left or running:
        while left and len(running) < ahead:
            running.add(pool.submit(measure_batch, left.popleft(), wanted))
        if left:
            yield measure_batch(left.pop(), wanted)
        done, running = wait(running, timeout=0 if left else None, return_when=FIRST_COMPLETED)
        yield from (future.result() for future in done)


def _batches(orders: Sequence[TensorOrder]) -> Iterator[list[TensorOrder]]:
    batch: list[TensorOrder] = []
    for order in orders:
        batch.append(order)
        if _size(batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _size(batch: Sequence[TensorOrder]) -> int:
    return sum(order.size for order in batch)
