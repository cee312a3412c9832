"""Two tensors element by element: the first ones, the first that differ, and the metrics of all."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ulpscope.dialects.stored import AnyArray
from ulpscope.numerics.element_differences import Tolerance, scan_elements
from ulpscope.numerics.first_differences import first_outside
from ulpscope.numerics.metrics import compare_arrays
from ulpscope.numerics.pair_pieces import PairPieces
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair, PairMetrics
from ulpscope.records.values import Stats
from ulpscope.workflows.tensor_lookup import FoundTensor
from ulpscope.workflows.tensor_view import tensor_stats


@dataclass(frozen=True, slots=True)
class ElementRow:
    """One element of both."""

    index: tuple[int, ...]
    texts: Pair[str]
    """As their own types write them."""
    difference: float


@dataclass(frozen=True, slots=True)
class PairedElements:
    """Two tensors."""

    tensors: Pair[FoundTensor]
    stats: Pair[Stats]
    metrics: PairMetrics
    tolerance: Tolerance
    outside: int
    reshaped: bool
    """Their shapes differ; as many elements were compared in the order of each."""
    errors: tuple[ElementRow, ...]
    """The first elements that are outside of the tolerance."""
    first: tuple[ElementRow, ...]

    @property
    def elements(self) -> int:
        return self.metrics.elements


def pair_elements(tensors: Pair[FoundTensor], *, tolerance: Tolerance, count: int) -> PairedElements:
    """Compare two tensors of as many elements; of others there is nothing true to say."""
    stored = Pair(tensors.reference.stored, tensors.target.stored)
    arrays = Pair(stored.reference.array(), stored.target.array())
    stats = Pair(*(_stats(each, array) for each, array in _both(tensors, arrays)))
    reshaped = arrays.reference.shape != arrays.target.shape
    if reshaped:
        arrays = _flat(tensors, arrays)
    pieces = PairPieces.of(
        arrays.reference,
        arrays.target,
        reference_dtype=stored.reference.dtype,
        target_dtype=stored.target.dtype,
    )
    outside = first_outside(arrays, tolerance=tolerance, count=count)
    return PairedElements(
        tensors=tensors,
        stats=stats,
        metrics=_metrics(arrays, Pair(stored.reference.dtype, stored.target.dtype)),
        tolerance=tolerance,
        outside=scan_elements(pieces, tolerance=tolerance, worst=0).outside,
        reshaped=reshaped,
        errors=tuple(_rows(arrays, outside)),
        first=tuple(_rows(arrays, range(min(count, arrays.reference.size)))),
    )


def _both(tensors: Pair[FoundTensor], arrays: Pair[AnyArray]) -> Iterator[tuple[FoundTensor, AnyArray]]:
    yield tensors.reference, arrays.reference
    yield tensors.target, arrays.target


def _stats(found: FoundTensor, array: AnyArray) -> Stats:
    return tensor_stats(array, found.stored.dtype, found.stored.shape)


def _metrics(arrays: Pair[AnyArray], dtypes: Pair[str]) -> PairMetrics:
    return compare_arrays(arrays.reference, arrays.target, reference_dtype=dtypes.reference, target_dtype=dtypes.target)


def _flat(tensors: Pair[FoundTensor], arrays: Pair[AnyArray]) -> Pair[AnyArray]:
    if arrays.reference.size != arrays.target.size:
        reference, target = (f"{each.name} has {list(array.shape)}" for each, array in _both(tensors, arrays))
        raise UlpscopeError(
            f"the tensors are not of one size: {target}, {reference}",
            expected="as many elements on both sides; an array that was decoded as it lies on a device has padding",
            next_step="name the tensor of the dump itself (FILE.output.0): its padding is taken off",
        )
    return Pair(arrays.reference.reshape(-1), arrays.target.reshape(-1))


def _rows(arrays: Pair[AnyArray], places: Iterable[int]) -> Iterator[ElementRow]:
    for place in places:
        index = tuple(int(number) for number in np.unravel_index(place, arrays.reference.shape))
        reference, target = arrays.reference[index], arrays.target[index]
        yield ElementRow(index, Pair(str(reference), str(target)), _difference(reference, target))


def _difference(reference: Any, target: Any) -> float:
    if isinstance(reference, np.void) or isinstance(target, np.void):
        return abs(_complex(target) - _complex(reference))
    if isinstance(reference, np.integer | np.bool_) and isinstance(target, np.integer | np.bool_):
        return float(abs(int(target) - int(reference)))
    if isinstance(reference, np.complexfloating) or isinstance(target, np.complexfloating):
        return abs(complex(target) - complex(reference))
    return abs(float(target) - float(reference))


def _complex(element: Any) -> complex:
    if isinstance(element, np.void):
        return complex(float(element["real"]), float(element["imag"]))
    return complex(element)
