"""Measures the pairs of a network: lays dumped tensors out as their partners are, and sets the two side by side."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ulpscope.align.network.pairs import (
    DumpedTensor,
    FoundReference,
    Stated,
    comparable_form,
    in_form,
    is_flat,
)
from ulpscope.dialects.ascend.dump_file.records import AnyArray, DumpTensor, Shape
from ulpscope.dialects.ascend.logical import Logical, has_data, logical_type
from ulpscope.dialects.tables import summary_row
from ulpscope.judge.rounding.masks import far_on_one_side, may_be_masked
from ulpscope.judge.rounding.measuring import Measurement, RowOutcome
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.pairs.msaccucmp.metrics import FAILED, Figure, Generation, msaccucmp_metrics, overflow_flag
from ulpscope.numerics.pairs.msaccucmp.sums import Spread
from ulpscope.numerics.summaries.constants import MAX, MIN, NAN, NEG_INF, POS_INF
from ulpscope.numerics.summaries.rows import stats_from_row
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair, PairMetrics
from ulpscope.records.values import Stats
from ulpscope.workflows.compare.saved_data import measure_arrays

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
            return RowOutcome(order.row, reason=_no_data(order, tensor) if order.reference is not None else "")
        overflow = overflow_flag(tensor.array()) if wanted.overflow else FAILED
        if order.reference is None:
            return RowOutcome(order.row, overflow=overflow)
        pair = read_pair(tensor, order.reference, order.stated)
        if pair.target.size != pair.reference.size:
            reason = SIZES_DIFFER.format(name=order.operator, target=pair.target.size, reference=pair.reference.size)
            sizes = Pair(pair.reference.size, pair.target.size)
            return RowOutcome(order.row, reason=reason, sizes=sizes, overflow=overflow)
        return RowOutcome(order.row, _measured(order, pair, wanted), overflow=overflow)
    except UlpscopeError as error:
        return RowOutcome(order.row, reason=f"[{order.operator}] {error.seen}")
    except (OSError, MemoryError) as error:
        return RowOutcome(order.row, reason=f"[{order.operator}] {order.tensor.path}: {error}")


@dataclass(frozen=True, slots=True)
class TwoTensors:
    """A dumped tensor in the form of its partner, and the partner."""

    target: AnyArray
    reference: AnyArray
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
        target=np.ascontiguousarray(mine),
        reference=np.ascontiguousarray(theirs),
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
    shapes, dtypes = Pair(pair.reference.shape, pair.target.shape), pair.dtypes
    arrays = Pair(pair.reference, pair.target.reshape(shapes.reference))
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
    return forms[0] == forms[1] and _same_bytes(mine.content.read(), theirs.content.read())


def _same_bytes(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    """Nothing is read beyond the first piece that differs."""
    places = range(0, len(one), _PIECE)
    return len(one) == len(other) and all(
        np.array_equal(one[place : place + _PIECE], other[place : place + _PIECE]) for place in places
    )


def _no_data(order: TensorOrder, tensor: DumpTensor) -> str:
    return NO_DATA.format(name=order.operator, tensor=tensor.name, dtype=tensor.type_name, size=tensor.content.size)
