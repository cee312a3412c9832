"""What a served report answers about two tensors: by fixed questions on pairs of the result, never by paths.

pairs/RANK/REFERENCE/TARGET               what both are, and whether they can be looked at
pairs/RANK/REFERENCE/TARGET/overview      spread, errors in ULP, worst channels, worst elements: one read of all
pairs/RANK/REFERENCE/TARGET/histogram     both over equal bins of their range
pairs/RANK/REFERENCE/TARGET/heat?rows=1&columns=2
pairs/RANK/REFERENCE/TARGET/slice?rows=1&columns=2&at=0,0,256,0      a window of it, from these indices on

A long read of big tensors is done once, in the background, and tells how far it is to all who ask.
"""

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from ulpscope.numerics.dtypes import Shape
from ulpscope.numerics.pairs.overview import Advance, heat, linear_histogram, overview
from ulpscope.numerics.pairs.pieces import PairBoxes
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.report.files.tensor_pair_json import (
    error_json,
    heat_json,
    histogram_json,
    overview_json,
    side_json,
    window_json,
)
from ulpscope.workflows.report.tensor_pairs import PairKey, TensorPair, TensorPairs

WORKERS = 2
KEPT = 16
"""Answers; the largest, a heat map of 256 x 256 cells, takes about 5 MB. The page keeps its own, too."""
PATIENCE = 1.0
"""Seconds that a request waits; then it tells the progress instead."""
FORGOTTEN_AFTER = 20.0
"""Seconds after which work that nobody asks for any more is given up."""

Work = Callable[[Advance], Any]


class _GivenUpError(Exception):
    """Nobody waits for this answer."""


@dataclass(slots=True)
class _Job:
    asked: float
    share: float = 0.0
    future: "Future[Any]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Running:
    """Not done yet."""

    share: float


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked for."""

    answer: Any


class TensorJobs:
    """Does work in the background and keeps the latest answers."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="ulpscope-tensors")
        self._jobs: OrderedDict[Hashable, _Job] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, key: Hashable, work: Work, *, patience: float = PATIENCE) -> Done | Running:
        """The answer, or how far it is; the work's own error if it failed."""
        job = self._job(key, work)
        try:
            return Done(job.future.result(timeout=patience))
        except NotDone:
            return Running(job.share)
        except _GivenUpError:
            # Given up just when it was asked for again: the next request begins anew.
            return Running(0.0)

    def close(self) -> None:
        """Stop all work at its next step."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _job(self, key: Hashable, work: Work) -> _Job:
        with self._lock:
            job = self._jobs.get(key)
            # What failed is tried again: a file may be there now.
            if job is None or (job.future.done() and (job.future.cancelled() or job.future.exception() is not None)):
                job = self._jobs[key] = _Job(time.monotonic())
                job.future = self._pool.submit(self._do, job, work)
                self._forget_oldest()
            self._jobs.move_to_end(key)
            job.asked = time.monotonic()
            return job

    def _do(self, job: _Job, work: Work) -> Any:
        def advance(share: float) -> None:
            job.share = share
            if self._closed or time.monotonic() - job.asked > FORGOTTEN_AFTER:
                raise _GivenUpError

        return work(advance)

    def _forget_oldest(self) -> None:
        done = [key for key, job in self._jobs.items() if job.future.done()]
        for key in done[: max(len(self._jobs) - KEPT, 0)]:
            del self._jobs[key]


WINDOW = 256
"""Rows and columns of a slice that are given at once."""

_ADDRESS = re.compile(r"pairs/(\d{1,9})/(\d{1,18})/(\d{1,18})(?:/(overview|histogram|heat|slice))?", re.ASCII)
_NUMBERS = re.compile(r"\d{1,15}(,\d{1,15}){0,63}", re.ASCII)


class TensorAnswers:
    """Answers the questions of one result's page."""

    def __init__(self, pairs: TensorPairs) -> None:
        self._pairs = pairs
        self._jobs = TensorJobs()

    def answer(self, path: str, query: str) -> Done | Running | None:
        """The answer to one address; none if there is no such question. UlpscopeError if it cannot be answered."""
        address = _ADDRESS.fullmatch(path)
        if address is None:
            return None
        rank, reference, target = (int(number) for number in address.group(1, 2, 3))
        key, question = PairKey(rank, Pair(reference, target)), address.group(4)
        pair = self._pairs.find(key)
        if question is None:
            return Done(_about(pair))
        boxes, asked = pair.readable(), parse_qs(query)
        if question in _WHOLE:
            return self._jobs.ask((key, question), partial(_WHOLE[question], boxes))
        rows, columns = _axes(asked, boxes.shape)
        if question == "heat":
            return self._jobs.ask((key, question, rows, columns), partial(_heat, boxes, rows, columns))
        return Done(window_json(boxes, rows=rows, columns=columns, index=_window(asked, boxes.shape, rows, columns)))

    def close(self) -> None:
        """Give up what is being read."""
        self._jobs.close()


_Asked = Mapping[str, Sequence[str]]
"""The part of an address after `?`."""


def _axes(asked: _Asked, shape: Shape) -> tuple[int, int | None]:
    """Two axes, or the only one and none."""
    names = [name for name in ("rows", "columns") if name == "rows" or name in asked]
    given = {name: _numbers(asked, name) for name in names}
    for name, found in given.items():
        if len(found) != 1:
            raise _bad(f"{name}={list(found)}", expected="one number")
    wanted = [found[0] for found in given.values()]
    if len(set(wanted)) != min(len(shape), 2) or max(wanted) >= len(shape):
        raise _bad(f"axes {wanted} of a tensor with {len(shape)}", expected="two of its axes, or its only one")
    return wanted[0], wanted[1] if len(wanted) > 1 else None


def _window(asked: _Asked, shape: Shape, rows: int, columns: int | None) -> tuple[slice, ...]:
    """Where the window on a slice lies: WINDOW indices of both axes, one of each other."""
    at = _numbers(asked, "at")
    if len(at) != len(shape) or any(place >= size for place, size in zip(at, shape, strict=True)):
        raise _bad(f"at={list(at)} of a tensor {list(shape)}", expected="an index of each axis")
    return tuple(
        slice(place, min(place + WINDOW, size)) if axis in (rows, columns) else slice(place, place + 1)
        for axis, (place, size) in enumerate(zip(at, shape, strict=True))
    )


def _numbers(asked: _Asked, name: str) -> tuple[int, ...]:
    given = asked.get(name, ())
    if len(given) != 1 or not _NUMBERS.fullmatch(given[0]):
        raise _bad(f"{name} is {list(given)}", expected="numbers with commas between them")
    return tuple(int(number) for number in given[0].split(","))


def _about(pair: TensorPair) -> dict[str, Any]:
    sides = {"reference": pair.sides.reference, "target": pair.sides.target}
    boxes = pair.boxes
    return {
        "sides": {name: side_json(side.value, side.trace, side.problem) for name, side in sides.items()},
        "problem": None if pair.problem is None else error_json(pair.problem),
        "shape": None if boxes is None else list(boxes.shape),
        "complex": boxes is not None and boxes.complex_parts,
        "window": WINDOW,
    }


def _overview(pair: PairBoxes, advance: Advance) -> dict[str, Any]:
    return overview_json(overview(pair, advance))


def _heat(pair: PairBoxes, rows: int, columns: int | None, advance: Advance) -> dict[str, Any]:
    return heat_json(heat(pair, rows, columns, advance))


def _histogram(pair: PairBoxes, advance: Advance) -> dict[str, Any]:
    found = linear_histogram(pair, advance)
    return {} if found is None else histogram_json(found)


_WHOLE = {"overview": _overview, "histogram": _histogram}
"""Questions about all elements, whichever axes are looked at."""


def _bad(seen: str, *, expected: str) -> UlpscopeError:
    return UlpscopeError(seen, expected=expected, next_step="open the page again; it asks for what is there")
