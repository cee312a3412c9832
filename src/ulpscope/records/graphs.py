"""Operator graphs, whichever tool wrote them: operators, what they read, what they make."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

AttributeValue: TypeAlias = (
    str | int | float | bool | tuple["AttributeValue", ...] | Mapping[str, "AttributeValue"] | None
)
"""What an attribute holds. Tensors, graphs and bytes inside attributes are described, not kept."""

Attributes: TypeAlias = Mapping[str, AttributeValue]

Ranges: TypeAlias = tuple[tuple[int, ...], ...]
"""A lowest and a highest number for each dimension."""


class GraphFormat(str, Enum):
    """Which tool's file a graph was read from."""

    GE_TEXT = "GE text"
    GE_JSON = "GE JSON"
    GE_ONNX = "GE ONNX text"
    TENSORFLOW = "TensorFlow GraphDef"
    TENSORFLOW_META = "TensorFlow meta graph"
    ONNX = "ONNX"


@dataclass(frozen=True, slots=True)
class Origin:
    """The tensor of the original network that a tensor stands for."""

    name: str
    """Of the original operator; empty where the compiler says that there is none."""
    output: int | None = None
    """Which output of it; none where the file does not say: the tensor's own position."""
    layout: str | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class TensorDesc:
    """What a graph says about one tensor."""

    name: str = ""
    dtype: str = ""
    """As everywhere in ulpscope (float16); what has no such name is kept in small letters (hifloat8)."""
    layout: str = ""
    shape: tuple[int, ...] | None = None
    """-1 for a dimension that is not known; none if even their number is not."""
    origin_shape: tuple[int, ...] | None = None
    origin_layout: str | None = None
    value_range: Ranges = ()
    shape_range: Ranges = ()
    origin: Origin | None = None
    """What the compiler noted for dumps (_datadump_origin_*)."""
    fusion_origin: Origin | None = None
    """What the fusion passes noted (_fusion_origin_*)."""
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Source:
    """An output of an operator, or a tensor of this name that no operator makes (ONNX: a weight, an input)."""

    operator: str
    output: int

    def __str__(self) -> str:
        return f"{self.operator}:{self.output}"


@dataclass(frozen=True, slots=True)
class Input:
    """One data input: where it comes from, none if nothing is connected, and what the graph says about it."""

    source: Source | None
    desc: TensorDesc | None = None


@dataclass(frozen=True, slots=True)
class Operator:
    """One node of a graph."""

    name: str
    type: str
    graph: str
    id: int
    stream: int = 0
    inputs: tuple[Input, ...] = ()
    outputs: tuple[TensorDesc, ...] = ()
    controls: tuple[str, ...] = ()
    """Operators that it waits for without reading anything of theirs."""
    kernel: str | None = None
    kernel_library: str | None = None
    passes: tuple[str, ...] = ()
    """Fusion passes that made it."""
    originals: tuple[str, ...] | None = None
    """Operators of the original network that it stands for; empty: the compiler inserted it; none: it is one itself."""
    multiple: bool = False
    """Whether it is one of several that stand for the same originals."""
    l1_fusion: str | None = None
    subgraphs: tuple[str, ...] = ()
    """Graphs that it runs."""
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor on its way from an operator to another one of the same graph."""

    producer: str
    output: int
    consumer: str
    input: int


@dataclass(frozen=True, slots=True)
class ControlEdge:
    """An order of two operators of the same graph, without a tensor."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Graph:
    """Operators that run together, in the order of the file."""

    name: str
    operators: tuple[Operator, ...]
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GraphModel:
    """A graph file: the graph of the network first, then those that its operators run."""

    name: str
    format: GraphFormat
    graphs: tuple[Graph, ...]
    attributes: Attributes = field(default_factory=dict)
