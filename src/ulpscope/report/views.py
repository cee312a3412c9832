"""What `ulpscope show` has to tell, before it is told."""

from dataclasses import dataclass
from typing import Any

import polars as pl
from numpy.typing import NDArray

from ulpscope.records.calls import Call, Frame
from ulpscope.records.values import Use, Value
from ulpscope.trace.neighbours import Neighbours
from ulpscope.trace.overview import Overview


@dataclass(frozen=True, slots=True)
class OverviewView:
    """A trace at a glance."""

    overview: Overview


@dataclass(frozen=True, slots=True)
class EnvironmentView:
    """Where and how each process ran."""

    overview: Overview


@dataclass(frozen=True, slots=True)
class CoverageView:
    """What was seen of each process and what was not."""

    overview: Overview


@dataclass(frozen=True, slots=True)
class CallListView:
    """Calls that a filter wants; only the first of them are in `calls`."""

    path: str
    filter: str
    calls: pl.DataFrame
    total: int
    processes: int
    """How many the trace has; with several, each call's is told."""
    hints: tuple[str, ...] = ()
    """What to try when there are none."""


@dataclass(frozen=True, slots=True)
class TensorElements:
    """Elements of one saved tensor of a call."""

    use: Use
    value: Value
    indices: tuple[tuple[int, ...], ...]
    elements: NDArray[Any]
    total: int


@dataclass(frozen=True, slots=True)
class CallView:
    """One call with everything around it."""

    path: str
    process: str
    call: Call
    stack: tuple[Frame, ...]
    around: Neighbours
    elements: tuple[TensorElements, ...] = ()
    edges_shown: int | None = None
    """How many neighbours are listed; None for all."""


@dataclass(frozen=True, slots=True)
class ElementsView:
    """Elements of chosen tensors of a call."""

    path: str
    process: str
    call: Call
    tensors: tuple[TensorElements, ...]


View = OverviewView | EnvironmentView | CoverageView | CallListView | CallView | ElementsView
