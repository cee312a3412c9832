"""What `ulpscope show` has to tell of a trace or a graph, before it is told."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray

from ulpscope.graph.query import Place
from ulpscope.records.calls import Call, Frame
from ulpscope.records.graphs import Edge, GraphModel, Operator
from ulpscope.records.values import Stats, Use, Value
from ulpscope.trace.overview import Overview
from ulpscope.trace.query import Neighbours


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


@dataclass(frozen=True, slots=True)
class GraphView:
    """A graph file at a glance."""

    path: str
    model: GraphModel
    counts: tuple[tuple[str, int], ...]
    """Types of operators, and how many there are of each."""


@dataclass(frozen=True, slots=True)
class OperatorListView:
    """Operators that a filter wants, or that a name may mean; only the first of them are in `operators`."""

    path: str
    filter: str
    operators: tuple[Operator, ...]
    total: int
    graphs: int
    """How many the file has; with several, each operator's is told."""
    meant: str | None = None
    """The name that no operator bears, but that stands in these operators' names."""
    nearest: tuple[str, ...] = ()
    """What to try when there are none."""


@dataclass(frozen=True, slots=True)
class SummarisedTensor:
    """One tensor of an operator that a dump holds."""

    file: str
    """Relative to the directory that was searched."""
    place: str
    """`output.0`."""
    dtype: str
    shape: tuple[int, ...]
    """As the network has it, padding removed."""
    stats: Stats | None


@dataclass(frozen=True, slots=True)
class FoundDumps:
    """An operator's tensors in a dump, and what could not be read."""

    tensors: tuple[SummarisedTensor, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture of an operator's surroundings."""

    path: Path
    depth: int
    operators: int
    by: str


@dataclass(frozen=True, slots=True)
class OperatorView:
    """One operator with everything around it."""

    operator: Operator
    readers: tuple[Edge, ...]
    followers: tuple[str, ...]
    made_at: Mapping[int, Place]
    """Inputs that come from beyond the graph, and where they were made."""
    dumps: FoundDumps | None = None
    """None if no dumps were asked for."""
    references: FoundDumps | None = None


@dataclass(frozen=True, slots=True)
class OperatorsView:
    """The operators of one name: one in each graph that has it."""

    path: str
    operators: tuple[OperatorView, ...]
    attributes: bool = False
    """Whether all attributes are told."""
    names_shown: int | None = None
    """How many readers of a tensor are listed; None for all."""
    drawing: Drawing | None = None


AnyGraphView = GraphView | OperatorListView | OperatorsView
