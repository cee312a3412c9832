"""Measures the pairs of a network: lays dumped tensors out as their partners are, and sets the two side by side; small
tensors in processes, since most of their work holds the lock. Some are read once more, for what only their elements
tell.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.align.network.pairs import (
    DumpedTensor,
    FoundReference,
    Listing,
    NetworkRow,
    Stated,
    comparable_form,
    in_form,
    is_flat,
)
from ulpscope.dialects.ascend.dump_file.records import AnyArray, DumpTensor, Shape, Side
from ulpscope.dialects.ascend.logical import Logical, has_data, logical_type
from ulpscope.dialects.tables import summary_row
from ulpscope.judge.rounding.choices import numbers_alike
from ulpscope.judge.rounding.masks import far_on_one_side, may_be_masked
from ulpscope.judge.rounding.measuring import Measurement, RowOutcome
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.pairs.msaccucmp.metrics import FAILED, Figure, Generation, msaccucmp_metrics, overflow_flag
from ulpscope.numerics.pairs.msaccucmp.sums import Spread
from ulpscope.numerics.summaries.constants import MAX, MIN, NAN, NEG_INF, POS_INF
from ulpscope.numerics.summaries.rows import stats_from_row
from ulpscope.records.calls import Stats
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair, PairMetrics
from ulpscope.workflows.compare.saved_data import measure_arrays
from ulpscope.workflows.worker_pool import WorkerPool

SIZES_DIFFER = (
    "[{name}] Due to the different shapes on the left and right,the left dump data({target}) can not be compared to "
    "the right dump data({reference}). Please check the batch of the dump data or the shape may be changed due to "
    "optimization."
)
NO_DATA = "[{name}] The dump holds no numbers of {tensor}: {dtype}, {size} bytes."

_NOTHING_STATED = Stated()
_SINGLES = frozenset(("float32", "float16", "bfloat16"))
"""Types whose numbers are the same as float32, which is how msaccucmp reads all."""
_PIECE = 1 << 18
"""Bytes that are compared at a time: a core's own cache holds both sides."""


@dataclass(frozen=True, slots=True)
class TensorOrder:
    """A dumped tensor, what it is compared with, and what it may be a copy of."""

    row: int
    operator: str
    tensor: DumpedTensor
    reference: FoundReference | None = None
    stated: Stated = _NOTHING_STATED
    twin: "tuple[int, DumpedTensor] | None" = None
    """The output that this input should be, and its row; both are compared with the same original."""

    @property
    def size(self) -> int:
        return self.tensor.head.content.size


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is measured beside what judging needs."""

    figures: Generation | None = None
    """msaccucmp's metrics, of this time."""
    overflow: bool = False
    details: bool = False


def measure_tensor(order: TensorOrder, wanted: Wanted) -> RowOutcome:
    """What came of one tensor; if it cannot be read, why."""
    try:
        if order.twin is not None and _is_copy(order.tensor, order.twin[1]):
            return RowOutcome(order.row, twin=order.twin[0])
        tensor = order.tensor.whole()
        if not has_data(tensor) or logical_type(tensor) not in DTYPES:
            told = {"tensor": tensor.name, "dtype": tensor.type_name, "size": tensor.content.size}
            reason = NO_DATA.format(name=order.operator, **told)
            return RowOutcome(order.row, reason=reason if order.reference is not None else "")
        overflow = overflow_flag(tensor.array()) if wanted.overflow else FAILED
        if order.reference is None:
            return RowOutcome(order.row, overflow=overflow)
        pair = read_pair(tensor, order.reference, order.stated)
        sizes = pair.arrays.map(lambda array: array.size)
        if sizes.target != sizes.reference:
            reason = SIZES_DIFFER.format(name=order.operator, target=sizes.target, reference=sizes.reference)
            return RowOutcome(order.row, reason=reason, sizes=sizes, overflow=overflow)
        return RowOutcome(order.row, _measured(order, pair, wanted), overflow=overflow)
    except UlpscopeError as error:
        return RowOutcome(order.row, reason=f"[{order.operator}] {error.seen}")
    except (OSError, MemoryError) as error:
        return RowOutcome(order.row, reason=f"[{order.operator}] {order.tensor.path}: {error}")


@dataclass(frozen=True, slots=True)
class TwoTensors:
    """A dumped tensor in the form of its partner, and the partner."""

    arrays: Pair[AnyArray]
    dtypes: Pair[str]
    told_shape: Shape
    layout: str


def read_pair(tensor: DumpTensor, reference: FoundReference, stated: Stated) -> TwoTensors:
    """Both tensors, the dumped one laid out as the other is."""
    if not isinstance(reference, DumpedTensor):
        stored = reference.stored()
        theirs, dtype = stored.array(), stored.dtype
        form = comparable_form(tensor, stated, theirs.shape)
    else:
        other = reference.whole()
        form = comparable_form(tensor, stated)
        theirs, dtype = in_form(other, comparable_form(other, stated, form.shape)), logical_type(other)
    if dtype not in DTYPES:
        raise UlpscopeError(
            f"{reference.path} holds {dtype}", expected="numbers", next_step="leave this tensor out, or convert it"
        )
    mine = in_form(tensor, form)
    return TwoTensors(
        arrays=Pair(np.ascontiguousarray(theirs), np.ascontiguousarray(mine)),
        dtypes=Pair(dtype, logical_type(tensor)),
        told_shape=_told_shape(tensor, form, mine.shape, reference),
        layout=form.layout,
    )


def _told_shape(tensor: DumpTensor, form: Logical, shape: Shape, reference: FoundReference) -> Shape:
    """As msaccucmp tells it: beside a dump as on the device, a stack of matrices with three axes."""
    if isinstance(reference, DumpedTensor):
        return tensor.shape or ()
    if is_flat(tensor, form):
        return (int(np.prod(shape)),)
    if tensor.format_name == "FRACTAL_NZ" and len(shape) > 3:
        return (int(np.prod(shape[:-2])), *shape[-2:])
    return shape


def _measured(order: TensorOrder, pair: TwoTensors, wanted: Wanted) -> Measurement:
    shapes, dtypes = pair.arrays.map(lambda array: array.shape), pair.dtypes
    arrays = pair.arrays.map(lambda array: array.reshape(shapes.reference))
    summaries = Pair(summary_row(arrays.reference, dtypes.reference), summary_row(arrays.target, dtypes.target))
    reference = stats_from_row(summaries.reference, dtypes.reference, shapes.reference)
    target = stats_from_row(summaries.target, dtypes.target, shapes.target)
    masked = may_be_masked(reference, dtypes.reference) and may_be_masked(target, dtypes.target)
    uneven = masked or _large(reference) != _large(target)
    metrics, mask = measure_arrays(arrays, dtypes, masked=uneven, detailed=wanted.details)
    figures = None
    if wanted.figures is not None:
        whole = metrics if mask is None else measure_arrays(arrays, dtypes, masked=False, detailed=False)[0]
        figures = _figures(arrays, order, generation=wanted.figures, known=_spreads(dtypes, summaries, whole))
    return Measurement(
        summaries=summaries,
        dtypes=dtypes,
        shapes=shapes,
        metrics=metrics,
        told_shape=pair.told_shape,
        figures=figures,
        mask=None if mask is None else mask.numbers,
        far_on_one_side=uneven and mask is None and far_on_one_side(arrays, dtypes),
    )


def _large(stats: Stats) -> int:
    """Finite elements that are set aside."""
    return stats.set_aside - stats.nan - stats.pos_inf - stats.neg_inf


def _spreads(
    dtypes: Pair[str], summaries: Pair[NDArray[np.float64]], metrics: PairMetrics
) -> tuple[Spread, Spread] | None:
    """What msaccucmp's metrics need of the target and the reference, from what was measured already; None if that is of
    other numbers: metrics are over finite pairs."""
    rows = (summaries.reference, summaries.target)
    if {dtypes.reference, dtypes.target} - _SINGLES or any(row[[NAN, POS_INF, NEG_INF]].any() for row in rows):
        return None
    target = _spread(summaries.target, metrics.target_mean, metrics.target_std, metrics.target_norm)
    reference = _spread(summaries.reference, metrics.reference_mean, metrics.reference_std, metrics.reference_norm)
    return (target, reference) if target is not None and reference is not None else None


def _spread(summary: NDArray[np.float64], mean: float | None, deviation: float | None, norm: float) -> Spread | None:
    if mean is None or deviation is None:  # no elements
        return None
    return Spread.of(low=summary[MIN], high=summary[MAX], mean=mean, deviation=deviation, squares=norm * norm)


def _figures(
    arrays: Pair[AnyArray], order: TensorOrder, *, generation: Generation, known: tuple[Spread, Spread] | None
) -> dict[str, Figure]:
    assert order.reference is not None
    mine, theirs = arrays.target, arrays.reference
    names = str(order.tensor.path), str(order.reference.path)
    if isinstance(order.reference, DumpedTensor) and mine.dtype == theirs.dtype == np.bool_:
        # Of two dumps msaccucmp takes bools for numbers.
        mine, theirs = mine.astype(np.float32), theirs.astype(np.float32)
    return msaccucmp_metrics(mine, theirs, names=names, generation=generation, known=known)


def _is_copy(tensor: DumpedTensor, other: DumpedTensor) -> bool:
    """Whether two dumps hold the same bytes of the same form: an input that is as its producer left it."""
    if len(tensor.operation.dumps) > 1 or len(other.operation.dumps) > 1:
        return False
    mine, theirs = tensor.head, other.head
    forms = [(each.data_type, each.format, each.shape, each.sub_format, each.size) for each in (mine, theirs)]
    if forms[0] != forms[1]:
        return False
    # Nothing is read beyond the first piece that differs.
    ours, others = mine.content.read(), theirs.content.read()
    places = range(0, len(ours), _PIECE)
    return len(ours) == len(others) and all(
        np.array_equal(ours[place : place + _PIECE], others[place : place + _PIECE]) for place in places
    )


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
        return numbers_alike(Pair(*found.arrays), found.dtypes)


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
