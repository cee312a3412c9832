"""`ulpscope diff`: two tensors, or all tensors of two files."""

import difflib
import math
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.dialects.files.opening import StoredTensor, TensorFile, load_tensor_file
from ulpscope.numerics.pairs.elements import ElementScan, Tolerance, scan_elements
from ulpscope.numerics.pairs.metrics import compare_arrays
from ulpscope.numerics.pairs.pieces import PairPieces
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

SEPARATOR = "::"
DEFAULT_COUNT = 10
# numpy.allclose's own, shown where no tolerance was asked for.
DEFAULT_ATOL, DEFAULT_RTOL = 1e-8, 1e-5

Advance = Callable[[int], None]
Task = tuple[str, Pair[StoredTensor]]
AnyArray = NDArray[Any]


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
    tolerances = _tolerances(atol, rtol)
    chosen = _single(sides)
    if chosen is not None:
        tensors: list[TensorDiff] = [
            _compare_whole(chosen, tolerances, count or math.prod(chosen.reference.tensor.shape))
        ]
        found = FileDiff(_paths(sides), tuple(tensors), (), (), tolerances, single=True, below=Pair("", ""))
    else:
        found = _diff_files(sides, tolerances, advance)
    code = ExitCode.OK if found.agrees else ExitCode.DIFFERENCE
    return Answer(found, code if found.tensors else ExitCode.NOTHING, partial(diff_text, count=count), diff_json)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """One tensor of a file."""

    key: str
    tensor: StoredTensor


@dataclass(frozen=True, slots=True)
class _Opened:
    path: str
    tensors: TensorFile
    key: str | None

    def chosen(self, default: str | None = None) -> _Chosen | None:
        """The tensor that was asked for, or the only one."""
        if self.key is not None:
            return _Chosen(self.key, self.tensors[self.key])
        if default is not None and default in self.tensors:
            return _Chosen(default, self.tensors[default])
        if len(self.tensors) == 1:
            return next(_Chosen(key, tensor) for key, tensor in self.tensors.items())
        return None


def _open(text: str, key: str | None) -> _Opened:
    path, separator, own = text.rpartition(SEPARATOR)
    if not separator or os.path.exists(text):
        path, own = text, ""
    tensors = load_tensor_file(Path(path))
    wanted = own if separator and path != text else key
    if wanted is not None and wanted not in tensors and not (key is not None and set(tensors) == {""}):
        raise _no_such_tensor(path, wanted, tensors)
    return _Opened(path, tensors, wanted if wanted in tensors else None)


def _no_such_tensor(path: str, key: str, tensors: TensorFile) -> UlpscopeError:
    near = difflib.get_close_matches(key, list(tensors), n=3, cutoff=0.3) or list(tensors)[:3]
    named = ", ".join(repr(name) for name in near)
    return UlpscopeError(
        f"{path} has no tensor {key!r}",
        expected=f"one of its {len(tensors)} tensors, such as {named}" if tensors else "a file that holds tensors",
        next_step=f"ulpscope diff {path}{SEPARATOR}{near[0]} ..." if near else "check the file",
    )


def _paths(sides: Pair[_Opened]) -> Pair[str]:
    return Pair(sides.reference.path, sides.target.path)


def _tolerances(atol: float | None, rtol: float | None) -> Tolerances:
    if atol is None and rtol is None:
        return Tolerances(DEFAULT_ATOL, DEFAULT_RTOL, asked=False)
    return Tolerances(atol or 0.0, rtol or 0.0, asked=True)


def _single(sides: Pair[_Opened]) -> Pair[_Chosen] | None:
    """One tensor of each side: both nameless, of one name, or chosen by a key."""
    reference = sides.reference.chosen(sides.target.key)
    target = sides.target.chosen(sides.reference.key)
    asked = sides.reference.key is not None or sides.target.key is not None
    if reference is None or target is None:
        if asked or (reference is not None and reference.key == "") or (target is not None and target.key == ""):
            raise _key_needed(sides, "reference" if reference is None else "target")
        return None
    if asked or "" in (reference.key, target.key) or reference.key == target.key:
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
    below = _prefixes(sides.reference.tensors, sides.target.tensors)
    reference, target = _below(sides.reference.tensors, below.reference), _below(sides.target.tensors, below.target)
    tasks = [(name, Pair(tensor, target[name])) for name, tensor in reference.items() if name in target]

    def compare(task: Task) -> TensorDiff:
        found = _compare_quickly(task, tolerances)
        advance(1)
        return found

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tensors = sorted(pool.map(compare, tasks), key=_severity, reverse=True)
    return FileDiff(
        paths=_paths(sides),
        tensors=tuple(tensors),
        only_reference=tuple(name for name in reference if name not in target),
        only_target=tuple(name for name in target if name not in reference),
        tolerances=tolerances,
        single=False,
        below=below,
    )


def _prefixes(reference: TensorFile, target: TensorFile) -> Pair[str]:
    """Below what the same names are to be found, where no name is the same: a checkpoint may wrap its weights."""
    if reference.keys() & target.keys():
        return Pair("", "")
    return Pair(_prefix(reference, target), "") if _prefix(reference, target) else Pair("", _prefix(target, reference))


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


def _compare_quickly(task: Task, tolerances: Tolerances) -> TensorDiff:
    """One of many: identical bits need no metrics, and a pair that cannot be compared does not stop the others."""
    name, pair = task
    sides = _sides(Pair(_Chosen(name, pair.reference), _Chosen(name, pair.target)))
    try:
        if pair.reference.shape != pair.target.shape:
            return TensorDiff(sides, Agreement.NOT_COMPARED, problem="shapes differ")
        pieces = _pieces(pair)
    except UlpscopeError as error:
        return TensorDiff(sides, Agreement.NOT_COMPARED, problem=error.seen)
    if pieces.same_bits():
        return TensorDiff(sides, Agreement.IDENTICAL)
    metrics = _metrics(pieces, detailed=False)
    outside = _scan(pieces, tolerances, 0).outside if tolerances.asked and metrics.different else None
    return TensorDiff(sides, _agreement(metrics, outside, tolerances), metrics, outside)


def _compare_whole(chosen: Pair[_Chosen], tolerances: Tolerances, count: int) -> TensorDiff:
    """Everything there is to say about two tensors."""
    sides = _sides(chosen)
    if sides.reference.shape != sides.target.shape:
        return TensorDiff(sides, Agreement.NOT_COMPARED, problem="shapes differ")
    pieces = _pieces(Pair(chosen.reference.tensor, chosen.target.tensor))
    metrics, scan = _metrics(pieces, detailed=True), _scan(pieces, tolerances, count)
    agreement = Agreement.IDENTICAL if pieces.same_bits() else _agreement(metrics, scan.outside, tolerances)
    return TensorDiff(sides, agreement, metrics, scan.outside, tuple(_elements(pieces.arrays, scan.worst)))


def _sides(chosen: Pair[_Chosen]) -> Pair[TensorSide]:
    left, right = (
        TensorSide(side.key, side.tensor.dtype, side.tensor.shape) for side in (chosen.reference, chosen.target)
    )
    return Pair(left, right)


def _pieces(pair: Pair[StoredTensor]) -> PairPieces:
    return PairPieces.of(
        pair.reference.array(),
        pair.target.array(),
        reference_dtype=pair.reference.dtype,
        target_dtype=pair.target.dtype,
    )


def _metrics(pieces: PairPieces, *, detailed: bool) -> PairMetrics:
    return compare_arrays(
        pieces.arrays.reference,
        pieces.arrays.target,
        reference_dtype=pieces.dtypes.reference.name,
        target_dtype=pieces.dtypes.target.name,
        detailed=detailed,
    )


def _scan(pieces: PairPieces, tolerances: Tolerances, count: int) -> ElementScan:
    return scan_elements(pieces, tolerance=Tolerance(tolerances.atol, tolerances.rtol), worst=count)


def _agreement(metrics: PairMetrics, outside: int | None, tolerances: Tolerances) -> Agreement:
    if not metrics.different:
        return Agreement.EQUAL
    return Agreement.WITHIN if tolerances.asked and outside == 0 else Agreement.DIFFERENT


def _elements(arrays: Pair[AnyArray], places: Iterable[int]) -> Iterable[ElementPair]:
    for place in places:
        index = tuple(int(i) for i in np.unravel_index(place, arrays.reference.shape))
        numbers = Pair(arrays.reference[index], arrays.target[index])
        yield ElementPair(
            index,
            Pair(_number(numbers.reference), _number(numbers.target)),
            Pair(str(numbers.reference), str(numbers.target)),
        )


def _number(element: Any) -> Number:
    if isinstance(element, np.void):
        return complex(float(element["real"]), float(element["imag"]))
    kind = np.asarray(element).dtype.kind
    if kind == "b":
        return bool(element)
    if kind in "iu":
        return int(element)
    return complex(element) if kind == "c" else float(element)
