"""Two tensors element by element: the first ones, the first that differ, and the metrics of all; and one
tensor: its first elements, its numbers, and all of it as text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from ulpscope.dialects.ascend.converting import FileKind, write_array
from ulpscope.dialects.files.stored import COMPLEX32, AnyArray
from ulpscope.dialects.tables import stats_of
from ulpscope.numerics.layouts import IMAGES, VOLUMES, Conversion, convert_layout, permuted_shape
from ulpscope.numerics.pairs.elements import Tolerance, first_outside, scan_elements
from ulpscope.numerics.pairs.metrics import compare_arrays
from ulpscope.numerics.pairs.pieces import PairPieces
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair, PairMetrics
from ulpscope.records.values import Stats
from ulpscope.workflows.diff.tensor_lookup import FoundTensor


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
    reordered: tuple[str, str] | None
    """The target was brought from one order of pictures into another, because so its shape is the reference's."""
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
    stats = Pair(*(stats_of(array, each.stored.dtype) for each, array in _both(tensors, arrays)))
    reordered = _orders(arrays)
    if reordered is not None:
        arrays = Pair(arrays.reference, convert_layout(arrays.target, Conversion(*reordered)))
    reshaped = arrays.reference.shape != arrays.target.shape
    if reshaped:
        arrays = _flat(tensors, arrays)
    pieces = PairPieces.of(
        arrays.reference,
        arrays.target,
        reference_dtype=stored.reference.dtype,
        target_dtype=stored.target.dtype,
    )
    return PairedElements(
        tensors=tensors,
        stats=stats,
        metrics=_metrics(arrays, Pair(stored.reference.dtype, stored.target.dtype)),
        tolerance=tolerance,
        outside=scan_elements(pieces, tolerance=tolerance, worst=0).outside,
        reordered=reordered,
        reshaped=reshaped,
        errors=tuple(_rows(arrays, first_outside(pieces, tolerance=tolerance, count=count))),
        first=tuple(_rows(arrays, range(min(count, arrays.reference.size)))),
    )


def _orders(arrays: Pair[AnyArray]) -> tuple[str, str] | None:
    """Two orders of pictures or volumes between which the shapes differ, if these tell of only one way."""
    wanted, shape = arrays.reference.shape, arrays.target.shape
    if wanted == shape or len(wanted) != len(shape):
        return None
    pairs = [each for family in (IMAGES, VOLUMES) if len(family[0]) == len(shape) for each in permutations(family, 2)]
    ways = {
        permuted_shape(tuple(range(len(shape))), *each): each
        for each in pairs
        if permuted_shape(shape, *each) == wanted
    }
    return next(iter(ways.values())) if len(ways) == 1 else None


def _both(tensors: Pair[FoundTensor], arrays: Pair[AnyArray]) -> Iterator[tuple[FoundTensor, AnyArray]]:
    yield tensors.reference, arrays.reference
    yield tensors.target, arrays.target


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


MOST_AS_TEXT = 1 << 22
"""Elements; more take minutes to write, and nobody reads them."""


@dataclass(frozen=True, slots=True)
class TensorView:
    """What is told of a tensor."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    stats: Stats
    first: AnyArray
    text: Path | None = None
    """All elements, if they were written."""
    problem: str | None = None
    """Why they were not."""


def view_tensor(found: FoundTensor, *, count: int, text: Path | None = None) -> TensorView:
    """Look at a tensor, and write its elements to `text` if they are not too many."""
    array = found.stored.array()
    written, problem = (None, None) if text is None else _write(array, found.stored.dtype, text)
    return TensorView(
        name=found.name,
        path=found.path,
        dtype=found.stored.dtype,
        shape=found.stored.shape,
        stats=stats_of(array, found.stored.dtype),
        first=array.flat[:count],
        text=written,
        problem=problem,
    )


def _write(array: AnyArray, dtype: str, path: Path) -> tuple[Path | None, str | None]:
    if array.size > MOST_AS_TEXT or array.dtype == COMPLEX32:
        return None, f"{array.size:,} elements of {dtype}: ulpscope convert --to bin has them"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_array(path, array, dtype, FileKind.TXT)
    except OSError as error:
        return None, error.strerror or str(error)
    return path, None
