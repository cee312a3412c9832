"""`ulpscope diff`: two tensors, or all tensors of two files; and what the shell tells of one tensor, or of two: their
first elements, the first that differ, and the metrics of all.
"""

import difflib
import math
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ulpscope.align.renaming import renamed_tensors
from ulpscope.dialects.ascend.converting import FileKind, write_array
from ulpscope.dialects.files.opening import StoredTensor, TensorFile, load_tensor_file
from ulpscope.dialects.files.stored import COMPLEX32, AnyArray, refused_of
from ulpscope.dialects.tables import stats_of
from ulpscope.numerics.layouts import IMAGES, VOLUMES, Conversion, convert_layout, permuted_shape
from ulpscope.numerics.pairs.elements import Tolerance, first_outside, scan_elements
from ulpscope.numerics.pairs.metrics import compare_arrays
from ulpscope.numerics.pairs.pieces import PairPieces
from ulpscope.records.calls import Stats
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import (
    Agreement,
    ElementPair,
    FileDiff,
    Number,
    Pair,
    PairMetrics,
    TensorDiff,
    TensorSide,
    Tolerances,
)
from ulpscope.report.terminal.diff import diff_json, diff_text
from ulpscope.workflows.answers import Answer

if TYPE_CHECKING:
    # Readers of dumps take a while to import, which files of tensors need not wait for.
    from ulpscope.workflows.tensor_lookup import FoundTensor

SEPARATOR = "::"

DEFAULT_COUNT = 10
# numpy.allclose's own, shown where no tolerance was asked for.
DEFAULT_ATOL, DEFAULT_RTOL = 1e-8, 1e-5

Advance = Callable[[int], None]


def diff(
    reference: str | Path,
    target: str | Path,
    *,
    key: str | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    count: int = DEFAULT_COUNT,
    advance: Advance = lambda _: None,
) -> Answer:
    """Compare two tensors or two files of tensors; `count` worst elements of a pair are shown, all if 0.

    A path may end in `::KEY` to name one tensor of a file; `key` names it in both.
    """
    sides = Pair(_open(str(reference), key), _open(str(target), key))
    tolerances = Tolerances(DEFAULT_ATOL, DEFAULT_RTOL, asked=False)
    if atol is not None or rtol is not None:
        tolerances = Tolerances(atol or 0.0, rtol or 0.0, asked=True)
    chosen = _single(sides)
    if chosen is not None:
        tensors = [_compare_whole(chosen, tolerances, count or math.prod(chosen.reference[1].shape))]
        paths = sides.map(lambda side: side.path)
        refused = sides.map(lambda side: refused_of(side.tensors))
        below = Pair("", "")
        found = FileDiff(paths, tuple(tensors), (), (), tolerances, single=True, below=below, refused=refused)
    else:
        found = _diff_files(sides, tolerances, advance)
    code = ExitCode.OK if found.agrees else ExitCode.DIFFERENCE
    return Answer(found, code if found.tensors else ExitCode.NOTHING, partial(diff_text, count=count), diff_json)


_Chosen = tuple[str, StoredTensor]
"""One tensor of a file, by its key."""


@dataclass(frozen=True, slots=True)
class _Opened:
    path: str
    tensors: TensorFile
    key: str | None

    def chosen(self, default: str | None) -> _Chosen | None:
        """The tensor that was asked for, or the only one."""
        for key in (self.key, default):
            if key is not None and key in self.tensors:
                return key, self.tensors[key]
        return next(iter(self.tensors.items())) if len(self.tensors) == 1 else None


def _open(text: str, key: str | None) -> _Opened:
    path, separator, own = text.rpartition(SEPARATOR)
    if not separator or os.path.exists(text):
        path, own = text, ""
    tensors = load_tensor_file(Path(path))
    wanted = own if separator and path != text else key
    if wanted is not None and wanted not in tensors and not (key is not None and set(tensors) == {""}):
        near = difflib.get_close_matches(wanted, list(tensors), n=3, cutoff=0.3) or list(tensors)[:3]
        named = ", ".join(repr(name) for name in near)
        raise UlpscopeError(
            f"{path} has no tensor {wanted!r}",
            expected=f"one of its {len(tensors)} tensors, such as {named}" if tensors else "a file that holds tensors",
            next_step=f"ulpscope diff {path}{SEPARATOR}{near[0]} ..." if near else "check the file",
        )
    return _Opened(path, tensors, wanted if wanted in tensors else None)


def _single(sides: Pair[_Opened]) -> Pair[_Chosen] | None:
    """One tensor of each side: both nameless, of one name, or chosen by a key."""
    reference = sides.reference.chosen(sides.target.key)
    target = sides.target.chosen(sides.reference.key)
    asked = sides.reference.key is not None or sides.target.key is not None
    if reference is None or target is None:
        if asked or any(found is not None and found[0] == "" for found in (reference, target)):
            raise _key_needed(sides, "reference" if reference is None else "target")
        return None
    if asked or "" in (reference[0], target[0]) or reference[0] == target[0]:
        return Pair(reference, target)
    return None


def _key_needed(sides: Pair[_Opened], name: str) -> UlpscopeError:
    side: _Opened = getattr(sides, name)
    paths = {"reference": sides.reference.path, "target": sides.target.path}
    paths[name] += SEPARATOR + next(iter(side.tensors), "KEY")
    return UlpscopeError(
        f"{side.path} holds {len(side.tensors)} tensors, the other side is one",
        expected="the name of one of them",
        next_step=f"ulpscope diff {shlex.join(paths.values())}",
    )


def _diff_files(sides: Pair[_Opened], tolerances: Tolerances, advance: Advance) -> FileDiff:
    files, below = sides.map(lambda side: side.tensors), Pair("", "")
    if not files.reference.keys() & files.target.keys():
        # No name is the same: a checkpoint may wrap its weights.
        wrapped = _prefix(files.reference, files.target)
        below = Pair(wrapped, "") if wrapped else Pair("", _prefix(files.target, files.reference))
    reference, target = _below(files.reference, below.reference), _below(files.target, below.target)

    renamed = renamed_tensors(Pair(reference, target))
    pairs = {name: renamed.get(name, name) for name in reference if name in target or name in renamed}

    def compare(name: str) -> TensorDiff:
        found = _compare_quickly(Pair((name, reference[name]), (pairs[name], target[pairs[name]])), tolerances)
        advance(1)
        return found

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tensors = sorted(pool.map(compare, pairs), key=_severity, reverse=True)
    taken = set(pairs.values())
    return FileDiff(
        paths=sides.map(lambda side: side.path),
        tensors=tuple(tensors),
        only_reference=tuple(name for name in reference if name not in pairs),
        only_target=tuple(name for name in target if name not in taken),
        tolerances=tolerances,
        single=False,
        below=below,
        refused=files.map(refused_of),
    )


def _prefix(wrapped: TensorFile, bare: TensorFile) -> str:
    """`model.` if wrapped has `model.a.weight` and bare has `a.weight`; of several the one that fits most names."""
    found = Counter(
        name[: place + 1]
        for name in wrapped
        for place, character in enumerate(name)
        if character == "." and name[place + 1 :] in bare
    )
    return found.most_common(1)[0][0] if found else ""


def _below(tensors: TensorFile, prefix: str) -> TensorFile:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


_ORDER = tuple(Agreement)


def _severity(tensor: TensorDiff) -> tuple[int, int, float]:
    metrics = tensor.metrics
    if metrics is None:
        return _ORDER.index(tensor.agreement), 0, 0.0
    distance = metrics.relative_distance
    return _ORDER.index(tensor.agreement), metrics.mismatched, math.inf if distance is None else distance


def _compare_quickly(chosen: Pair[_Chosen], tolerances: Tolerances) -> TensorDiff:
    """One of many: identical bits need no metrics, and a pair that cannot be compared does not stop the others."""
    sides = chosen.map(_side)
    try:
        if sides.reference.shape != sides.target.shape:
            return TensorDiff(sides, Agreement.NOT_COMPARED, problem="shapes differ")
        pieces = _pieces(chosen)
    except UlpscopeError as error:
        return TensorDiff(sides, Agreement.NOT_COMPARED, problem=error.seen)
    if pieces.same_bits():
        return TensorDiff(sides, Agreement.IDENTICAL)
    metrics, outside = _metrics(pieces, detailed=False), None
    if tolerances.asked and metrics.different:
        outside = scan_elements(pieces, tolerance=Tolerance(tolerances.atol, tolerances.rtol), worst=0).outside
    return TensorDiff(sides, _agreement(metrics, outside, tolerances), metrics, outside)


def _compare_whole(chosen: Pair[_Chosen], tolerances: Tolerances, count: int) -> TensorDiff:
    """Everything there is to say about two tensors."""
    sides = chosen.map(_side)
    if sides.reference.shape != sides.target.shape:
        return TensorDiff(sides, Agreement.NOT_COMPARED, problem="shapes differ")
    pieces = _pieces(chosen)
    metrics = _metrics(pieces, detailed=True)
    scan = scan_elements(pieces, tolerance=Tolerance(tolerances.atol, tolerances.rtol), worst=count)
    agreement = Agreement.IDENTICAL if pieces.same_bits() else _agreement(metrics, scan.outside, tolerances)
    elements = [
        ElementPair(index, numbers.map(_number), numbers.map(str))
        for index, numbers in _elements(pieces.arrays, scan.worst)
    ]
    return TensorDiff(sides, agreement, metrics, scan.outside, tuple(elements))


def _side(chosen: _Chosen) -> TensorSide:
    return TensorSide(chosen[0], chosen[1].dtype, chosen[1].shape)


def _pieces(chosen: Pair[_Chosen]) -> PairPieces:
    (_, reference), (_, target) = chosen
    dtypes = {"reference_dtype": reference.dtype, "target_dtype": target.dtype}
    return PairPieces.of(reference.array(), target.array(), **dtypes)


def _metrics(pieces: PairPieces, *, detailed: bool) -> PairMetrics:
    dtypes = {"reference_dtype": pieces.dtypes.reference.name, "target_dtype": pieces.dtypes.target.name}
    return compare_arrays(pieces.arrays.reference, pieces.arrays.target, **dtypes, detailed=detailed)


def _agreement(metrics: PairMetrics, outside: int | None, tolerances: Tolerances) -> Agreement:
    if not metrics.different:
        return Agreement.EQUAL
    return Agreement.WITHIN if tolerances.asked and outside == 0 else Agreement.DIFFERENT


def _elements(arrays: Pair[AnyArray], places: Iterable[int]) -> Iterator[tuple[tuple[int, ...], Pair[Any]]]:
    for place in places:
        index = tuple(int(number) for number in np.unravel_index(place, arrays.reference.shape))
        yield index, Pair(arrays.reference[index], arrays.target[index])


def _number(element: Any) -> Number:
    if isinstance(element, np.void):
        return complex(float(element["real"]), float(element["imag"]))
    kind = np.asarray(element).dtype.kind
    if kind == "b":
        return bool(element)
    if kind in "iu":
        return int(element)
    return complex(element) if kind == "c" else float(element)


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

    tensors: "Pair[FoundTensor]"
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


def pair_elements(tensors: "Pair[FoundTensor]", *, tolerance: Tolerance, count: int) -> PairedElements:
    """Compare two tensors of as many elements; of others there is nothing true to say."""
    dtypes, arrays = tensors.map(lambda each: each.stored.dtype), tensors.map(lambda each: each.stored.array())
    stats = Pair(stats_of(arrays.reference, dtypes.reference), stats_of(arrays.target, dtypes.target))
    reordered = _orders(arrays)
    if reordered is not None:
        arrays = Pair(arrays.reference, convert_layout(arrays.target, Conversion(*reordered)))
    reshaped = arrays.reference.shape != arrays.target.shape
    if reshaped and arrays.reference.size != arrays.target.size:
        told = [f"{each.name} has {list(array.shape)}" for each, array in zip(tensors, arrays, strict=True)]
        raise UlpscopeError(
            f"the tensors are not of one size: {told[1]}, {told[0]}",
            expected="as many elements on both sides; an array that was decoded as it lies on a device has padding",
            next_step="name the tensor of the dump itself (FILE.output.0): its padding is taken off",
        )
    if reshaped:
        arrays = arrays.map(lambda array: array.reshape(-1))
    names = {"reference_dtype": dtypes.reference, "target_dtype": dtypes.target}
    pieces = PairPieces.of(arrays.reference, arrays.target, **names)
    return PairedElements(
        tensors=tensors,
        stats=stats,
        metrics=_metrics(pieces, detailed=False),
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


def _rows(arrays: Pair[AnyArray], places: Iterable[int]) -> Iterator[ElementRow]:
    for index, elements in _elements(arrays, places):
        reference, target = elements.map(_number)
        yield ElementRow(index, elements.map(str), float(abs(target - reference)))


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


def view_tensor(found: "FoundTensor", *, count: int, text: Path | None = None) -> TensorView:
    """Look at a tensor, and write its elements to `text` if they are not too many."""
    array, dtype, problem = found.stored.array(), found.stored.dtype, None
    if text is not None and (array.size > MOST_AS_TEXT or array.dtype == COMPLEX32):
        problem = f"{array.size:,} elements of {dtype}: ulpscope convert --to bin has them"
    elif text is not None:
        try:
            text.parent.mkdir(parents=True, exist_ok=True)
            write_array(text, array, dtype, FileKind.TXT)
        except OSError as error:
            problem = error.strerror or str(error)
    return TensorView(
        name=found.name,
        path=found.path,
        dtype=dtype,
        shape=found.stored.shape,
        stats=stats_of(array, dtype),
        first=array.flat[:count],
        text=text if problem is None else None,
        problem=problem,
    )
