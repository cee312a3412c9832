"""What of a network is measured, and all of it measured side by side: small tensors in processes, since most of their
work holds the lock. Some are read once more, for what only their elements tell.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

from numpy.typing import NDArray

from ulpscope.align.network.pairs import DumpedTensor, Listing, NetworkRow
from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.judge.rounding.choices import numbers_alike
from ulpscope.judge.rounding.measuring import Measurement, RowOutcome
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.workflows.network.measuring import TensorOrder, Wanted, measure_tensor, read_pair
from ulpscope.workflows.worker_pool import WorkerPool

_WORTH_WORKERS = 128 * 2**20
"""Bytes below which starting others takes longer than the work."""
_WORTH_THREADS = 2**20
"""Bytes of a tensor, on average, from which on most of the work is done without the interpreter's lock."""
_BATCH = 16 * 2**20
"""Bytes of an order: small enough that all processes end at about the same time."""
_AHEAD = 2
"""Batches that each of the other processes has at hand: one in work, and one that it need not wait for."""


def tensor_orders(rows: Sequence[NetworkRow], *, overflow: bool) -> list[TensorOrder]:
    """What is to be measured: rows with a partner, and all that may overflow."""
    outputs, orders = _outputs(rows), []
    for number, row in enumerate(rows):
        if row.tensor is None or row.listing is Listing.PART or (row.reference is None and not overflow):
            continue
        twin = _twin(row, rows, outputs)
        orders.append(TensorOrder(number, row.operator.name, row.tensor, row.reference, row.stated, twin))
    return orders


def _outputs(rows: Sequence[NetworkRow]) -> dict[tuple[str, int], int]:
    """Rows of outputs, by operator and place."""
    return {
        (row.operator.name, row.tensor.position): number
        for number, row in enumerate(rows)
        if row.tensor is not None and row.tensor.side is Side.OUTPUT
    }


def _twin(
    row: NetworkRow, rows: Sequence[NetworkRow], outputs: Mapping[tuple[str, int], int]
) -> tuple[int, DumpedTensor] | None:
    """The output that an input should be, if that is compared with the same original."""
    if row.tensor is None or row.tensor.side is Side.OUTPUT or row.planned.source is None or row.reference is None:
        return None
    number = outputs.get(row.planned.source)
    other = None if number is None else rows[number]
    if number is None or other is None or other.tensor is None or other.reference is None:
        return None
    same = other.reference.path == row.reference.path and other.original == row.original
    return (number, other.tensor) if same else None


def measure_all(
    orders: Sequence[TensorOrder], wanted: Wanted, *, jobs: int, advance: Callable[[int], None]
) -> dict[int, RowOutcome]:
    """The outcome of each order's row; `advance` is told how many are done."""
    outcomes: dict[int, RowOutcome] = {}
    for found in _in_batches(orders, wanted, jobs):
        outcomes |= {each.row: each for each in found}
        advance(len(found))
    return outcomes


def measure_batch(orders: Sequence[TensorOrder], wanted: Wanted) -> list[RowOutcome]:
    """Measure tensors one after the other."""
    return [measure_tensor(order, wanted) for order in orders]


def _in_batches(orders: Sequence[TensorOrder], wanted: Wanted, jobs: int) -> Iterator[list[RowOutcome]]:
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


class TensorReader:
    """Of operators and the values that they read or make themselves; nothing of what only stands for those."""

    def __init__(
        self, rows: Sequence[NetworkRow], outcomes: Mapping[int, RowOutcome], measured: Mapping[int, Measurement]
    ) -> None:
        self._rows = rows
        numbers = {id(outcome.measurement): number for number, outcome in outcomes.items() if outcome.measurement}
        self._row_of = {value: numbers[id(found)] for value, found in measured.items() if id(found) in numbers}
        self._own = _own_rows(rows, outcomes)

    def __call__(self, operator: str, value: int) -> Pair[NDArray[Any]] | None:
        number = self._row_of.get(value)
        if number is None or number not in self._own[operator]:
            return None
        row = self._rows[number]
        if row.tensor is None or row.reference is None:
            return None
        try:
            found = read_pair(row.tensor.whole(), row.reference, row.stated)
        except (UlpscopeError, OSError, MemoryError):
            return None
        return numbers_alike(Pair(found.reference, found.target), found.dtypes)


def _own_rows(rows: Sequence[NetworkRow], outcomes: Mapping[int, RowOutcome]) -> dict[str, set[int]]:
    """Rows by the operators that read or made their tensors."""
    own: dict[str, set[int]] = defaultdict(set)
    outputs = _outputs(rows)
    for number, row in enumerate(rows):
        source, outcome = row.planned.source, outcomes.get(number)
        own[row.operator.name].add(number)
        if outcome is not None and outcome.twin is not None:
            own[row.operator.name].add(outcome.twin)
        if source is not None:
            own[source[0]].add(number)
        if source in outputs:
            own[row.operator.name].add(outputs[source])
    return own
