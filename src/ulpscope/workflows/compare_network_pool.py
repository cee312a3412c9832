"""Measures the tensors of a network in processes side by side: most of the work holds the interpreter's lock."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

from ulpscope.judge.network_outcomes import RowOutcome
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.compare_network_measuring import TensorOrder, Wanted, measure_tensors
from ulpscope.workflows.worker_pool import WorkerPool

_WORTH_PROCESSES = 128 * 2**20
"""Bytes below which starting processes takes longer than the work."""
_BATCH = 16 * 2**20
"""Bytes of an order: small enough that all processes end at about the same time."""


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
    processes = min(jobs, len(batches))
    if processes < 2 or sum(order.size for order in orders) < _WORTH_PROCESSES:
        yield from (measure_tensors(batch, wanted) for batch in batches)
        return
    with WorkerPool(processes - 1) as pool:
        try:
            waiting = [pool.submit(measure_tensors, batch, wanted) for batch in batches]
            yield from _shared(batches, waiting, wanted)
        except BrokenProcessPool as error:
            raise UlpscopeError(
                "a process that compares tensors has died",
                expected="memory for the largest tensor, four times, in each process",
                next_step="repeat with --jobs 1",
            ) from error


def _shared(
    batches: Sequence[Sequence[TensorOrder]], waiting: Sequence[Future[list[RowOutcome]]], wanted: Wanted
) -> Iterator[list[RowOutcome]]:
    """This process takes batches from the end while the others work from the beginning, once they have started."""
    for batch, future in zip(reversed(batches), reversed(waiting), strict=True):
        if future.cancel():
            yield measure_tensors(batch, wanted)
    for future in waiting:
        if not future.cancelled():
            yield future.result()


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
