"""The saved tensors behind the rows of a comparison's result: both of a pair, mapped, opened when asked for."""

import math
import shlex
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from ulpscope.dialects.files.stored import AnyArray
from ulpscope.dialects.opening import open_run
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.pairs.pieces import PairBoxes
from ulpscope.records.calls import Value
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.workflows.report.command import PAIRS, located, read_summary, read_table
from ulpscope.workflows.results import SUMMARY

SIDES = ("reference", "target")
OPENED = 4
"""Pairs that are kept open: mapped, but for arrays that another tool's dump holds in a layout of its own."""
STATS = ("min", "max", "mean", "norm")
"""Numbers of a value that a table keeps: of the same trace they are the same to the last bit."""

Row = Mapping[str, Any]


class Problem(str, Enum):
    """Why two tensors cannot be looked at element by element."""

    NOT_SAVED = "not_saved"
    UNWRITTEN = "unwritten"
    UNREADABLE = "unreadable"
    OTHER_TRACE = "other_trace"
    SIZES_DIFFER = "sizes_differ"
    TYPES_DIFFER = "types_differ"
    NO_NUMBERS = "no_numbers"
    EMPTY = "empty"


class PairError(UlpscopeError):
    """Two tensors that cannot be looked at, with the reason as a word."""

    def __init__(self, problem: Problem, seen: str, *, expected: str, next_step: str) -> None:
        super().__init__(seen, expected=expected, next_step=next_step)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class PairKey:
    """Which two tensors: their ids, of one rank."""

    rank: int
    values: Pair[int]


@dataclass(frozen=True, slots=True)
class TensorSide:
    """One tensor of a pair."""

    trace: str
    """The path that the result names."""
    value: Value | None
    """None if its trace cannot be read."""
    array: AnyArray | None
    problem: PairError | None
    """Why there is no array."""


@dataclass(frozen=True, slots=True)
class TensorPair:
    """Two tensors, and both side by side if that is possible."""

    sides: Pair[TensorSide]
    boxes: PairBoxes | None
    problem: PairError | None
    """Why they cannot be read side by side."""

    def readable(self) -> PairBoxes:
        """Both side by side; PairError if that is not possible."""
        if self.boxes is None:
            raise self.problem or _unreadable("the tensors cannot be read")
        return self.boxes


class TensorPairs:
    """All pairs of tensors of one comparison."""

    def __init__(self, result: Path) -> None:
        self._result = result
        of_sides = (f"{name}_{side}" for name in ("value", "dtype", "shape", *STATS) for side in SIDES)
        self._rows = read_table(result / PAIRS, ["rank", "module", "place", *of_sides])
        self._summary = read_summary(result)
        if not all(isinstance(self._summary.get(side), str) for side in SIDES):
            raise UlpscopeError(
                f"{result / SUMMARY} does not name both traces",
                expected="their paths, under reference and target",
                next_step="compare again: ulpscope compare REFERENCE TARGET --out DIR",
            )
        self._opened: dict[str, Trace] = {}
        # A foreign dump loads its steps in order when they are first asked for: not by two requests at once.
        self._lock = threading.Lock()
        self._pair = lru_cache(maxsize=OPENED)(self._open)

    def find(self, key: PairKey) -> TensorPair:
        """The tensors of a row; UlpscopeError if the result has no such row, or its rows are no values of traces."""
        if self._summary.get("graph") is not None:
            raise self._of_network(key)
        with self._lock:
            found = self._pair(key)
            if any(side.problem is not None for side in (found.sides.reference, found.sides.target)):
                # What was not there may come: a file that is copied, a disk that is mounted, a trace captured anew.
                self._pair.cache_clear()
                self._opened.clear()
        return found

    def _open(self, key: PairKey) -> TensorPair:
        row = self._row(key)
        sides = Pair(*(self._side(side, row, key.rank) for side in SIDES))
        problem = sides.reference.problem or sides.target.problem
        if problem is not None:
            return TensorPair(sides, None, problem)
        try:
            return TensorPair(sides, _side_by_side(sides), None)
        except PairError as error:
            return TensorPair(sides, None, error)

    def _row(self, key: PairKey) -> Row:
        found = self._rows.filter(
            pl.col("rank") == key.rank,
            pl.col("value_reference") == key.values.reference,
            pl.col("value_target") == key.values.target,
        )
        if not found.height:
            raise UlpscopeError(
                f"{PAIRS} has no pair of the values {key.values.reference} and {key.values.target} of rank {key.rank}",
                expected="a pair of tensors of this result",
                next_step="load the page again: the result may have been written anew",
            )
        return found.row(0, named=True)

    def _side(self, side: str, row: Row, rank: int) -> TensorSide:
        path = self._summary[side]
        value = None
        try:
            rank_trace = self._rank(path, rank)
            value = rank_trace.value(row[f"value_{side}"])
            _check_same(value, row, side, path)
            array = rank_trace.data(value)
        except PairError as error:
            return TensorSide(path, None, None, error)
        except UlpscopeError as error:
            reworded = {"expected": error.expected, "next_step": error.next_step}
            return TensorSide(path, value, None, PairError(Problem.UNREADABLE, error.seen, **reworded))
        except OSError as error:
            return TensorSide(path, value, None, _unreadable(f"{error.filename or path}: {error.strerror or error}"))
        if array is None:
            missing = _not_saved(side, path, rank_trace) if value.initialized else _unwritten(side)
            return TensorSide(path, value, None, missing)
        return TensorSide(path, value, array, None)

    def _of_network(self, key: PairKey) -> UlpscopeError:
        row = self._row(key)
        side, _, position = str(row["place"]).partition(".")
        which = ["--input" if side == "args" else "--output", position] if position.isdigit() else []
        paths = [str(self._summary[name]) for name in (*SIDES, "graph")]
        words = ["ulpscope", "compare", *paths[:2], "--graph", paths[2], f"--op={row['module']}", *which]
        return UlpscopeError(
            "tensors of a network are paired by its graph, each in the layout of its own dump",
            expected="a comparison of two traces",
            next_step=shlex.join(words),
        )

    def _rank(self, path: str, rank: int) -> RankTrace:
        if path not in self._opened:
            self._opened[path] = open_run(located(path, self._result))
        trace = self._opened[path]
        found = next((each for each in trace.ranks if each.info.rank == rank), None)
        if found is None:
            raise TraceError(
                f"{path} has no rank {rank}",
                expected="the trace that was compared",
                next_step="copy all ranks of the trace to where the result names it",
            )
        return found


def _check_same(value: Value, row: Row, side: str, path: str) -> None:
    shape = row[f"shape_{side}"]
    same = value.dtype == row[f"dtype_{side}"] and (shape is None or list(value.shape) == list(shape))
    numbers = [(row[f"{name}_{side}"], None if value.stats is None else getattr(value.stats, name)) for name in STATS]
    if not (same and all(_is_same(*both) for both in numbers)):
        raise PairError(
            Problem.OTHER_TRACE,
            f"value {value.id} of {path} is not the one that was compared: it is {value.dtype} {list(value.shape)}",
            expected=f"{row[f'dtype_{side}']} {list(shape or ())} as in {PAIRS}",
            next_step="the trace was captured anew since: compare again with ulpscope compare --out",
        )


def _is_same(noted: float | None, found: float | None) -> bool:
    if noted is None or found is None:
        return True
    return noted == found or (math.isnan(noted) and math.isnan(found))


def _side_by_side(sides: Pair[TensorSide]) -> PairBoxes:
    reference, target = _held(sides.reference), _held(sides.target)
    dtypes = Pair(reference[0].dtype, target[0].dtype)
    for dtype in (dtypes.reference, dtypes.target):
        if dtype not in DTYPES:
            raise PairError(
                Problem.NO_NUMBERS,
                f"the elements are {dtype}, which holds no single numbers",
                expected="floating point, complex, integer or bool elements",
                next_step="look at the call that unpacks them",
            )
    if DTYPES[dtypes.reference].parts != DTYPES[dtypes.target].parts:
        raise PairError(
            Problem.TYPES_DIFFER,
            f"the reference is {dtypes.reference}, the target {dtypes.target}: only one of them is complex",
            expected="complex numbers on both sides, or on none",
            next_step="look at the call's inputs instead",
        )
    shapes = Pair(reference[1].shape, target[1].shape)
    if reference[1].size != target[1].size:
        raise PairError(
            Problem.SIZES_DIFFER,
            f"the reference has {list(shapes.reference)}, the target {list(shapes.target)}",
            expected="as many elements on both sides",
            next_step="compare the calls before it: the shapes part there",
        )
    if not reference[1].size:
        raise PairError(
            Problem.EMPTY, f"the shape is {list(shapes.target)}", expected="elements", next_step="choose another tensor"
        )
    return PairBoxes.of(reference[1], target[1], reference_dtype=dtypes.reference, target_dtype=dtypes.target)


def _held(side: TensorSide) -> tuple[Value, AnyArray]:
    if side.value is None or side.array is None:
        raise side.problem or _unreadable(f"{side.trace} has no such tensor")
    return side.value, side.array


def _not_saved(side: str, path: str, rank: RankTrace) -> PairError:
    command = rank.info.process.get("command")
    known = isinstance(command, list) and all(isinstance(word, str) for word in command)
    again = f"ulpscope run --save tensors -o {shlex.quote(f'{path}-tensors')} -- {shlex.join(command or ())}"
    return PairError(
        Problem.NOT_SAVED,
        f"the {side} ({path}) has the stats of this tensor, not its elements",
        expected="runs that saved their tensors",
        next_step=again if known else "dump this run again, with the tensors themselves",
    )


def _unwritten(side: str) -> PairError:
    return PairError(
        Problem.UNWRITTEN,
        f"nobody had written to this memory of the {side} yet (torch.empty)",
        expected="a tensor with a content",
        next_step="look at the call that fills it",
    )


def _unreadable(seen: str) -> PairError:
    return PairError(
        Problem.UNREADABLE,
        seen,
        expected="the files that the capture wrote, where the result names them",
        next_step="copy the trace to where it was, or capture and compare again",
    )
