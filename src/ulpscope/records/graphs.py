"""Operator graphs, whichever tool wrote them: operators, what they read, what they make.

A network as a device ran it stands beside the network that it was made of: what stands for what; and what fusion does
to its numbers, pass by pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from ulpscope.records.enums import ExitCode
from ulpscope.records.findings import Outcome

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
    TFDBG2 = "graphs of tfdbg2"
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


ARGUMENT, RESULT = "_Arg", "_Retval"
"""Types of the operators that stand for what a function of TensorFlow takes and gives."""
INDEX = "index"
"""Their attribute that says which."""


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


Shape = tuple[int, ...]


class TensorSide(str, Enum):
    """Whether an operator read or made a tensor."""

    INPUT = "input"
    OUTPUT = "output"


class Relation(str, Enum):
    """How operators of the device and of the original network belong together."""

    ONE_TO_ONE = "one to one"
    FUSED = "several to one"
    """Several originals became one operator."""
    SPLIT = "one to several"
    REBUILT = "several to several"
    L1_FUSION = "L1 fusion"
    """Several operators pass data on in a core's own memory: dumps of the first and the last are whole."""


@dataclass(frozen=True, slots=True)
class Original:
    """A tensor of the network that is the reference: mostly an operator's output."""

    operator: str
    position: int
    layout: str | None = None
    """The order in which the graph says that its axes are."""
    shape: Shape | None = None
    side: TensorSide = TensorSide.OUTPUT
    described: tuple[int, int] | None = None
    """Of an input: its place among all that the graph describes, and how many these are.

    `position` counts connected ones only. Some dumps do so, too, others have what is not connected without data.
    """

    def __str__(self) -> str:
        return f"{self.operator}:{self.side.value}:{self.position}"


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """An input or output, and the originals that it may be compared with: the first that the reference holds."""

    candidates: tuple[Original, ...] = ()
    source: tuple[str, int] | None = None
    """Of an input: the operator that made it, and which output of that it is."""


@dataclass(frozen=True, slots=True)
class PlannedOperator:
    """An operator of the device with what each of its tensors stands for."""

    operator: Operator
    originals: tuple[str, ...]
    """Operators of the original network; empty: the compiler inserted it."""
    inputs: tuple[PlannedTensor, ...]
    """Those that are connected."""
    outputs: tuple[PlannedTensor, ...]
    quantised: bool = False
    """Computes in integers between two operators that quantise and dequantise: nothing of it has an original."""

    @property
    def inserted(self) -> bool:
        return not self.originals

    @property
    def inner(self) -> bool:
        """One of several that stand for the same originals, of which no output is one of theirs."""
        return self.operator.multiple and not any(
            desc.origin is not None and desc.origin.name for desc in self.operator.outputs
        )


@dataclass(frozen=True, slots=True)
class OperatorGroup:
    """Operators of the device that stand for the same originals; most groups have one."""

    index: int
    """As msaccucmp counts them: in the order in which the graph has the first of each."""
    relation: Relation
    members: tuple[PlannedOperator, ...]

    @property
    def names(self) -> str:
        """`bn/Reduce,bn/Update`: those of equal originals together, as in msaccucmp's tables."""
        return ",".join(member.operator.name for members in self._by_originals().values() for member in members)

    @property
    def originals(self) -> str:
        """`conv1/Conv2D,conv1/Relu`; a star where there is none."""
        return ",".join(",".join(names) for names in self._by_originals()) or "*"

    def _by_originals(self) -> dict[tuple[str, ...], list[PlannedOperator]]:
        found: dict[tuple[str, ...], list[PlannedOperator]] = {}
        for member in self.members:
            found.setdefault(member.originals, []).append(member)
        return found


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """What of a network's operators is compared with what of the original network."""

    graph: str
    """The name of the network, which is also that of its dumps' directory."""
    groups: tuple[OperatorGroup, ...]


JUDGEMENTS = ("identical", "rounding", "unresolved", "after_choice", "another_way", "inherited", "made_here")
"""From best to worst: an operator is as bad as the worst of its outputs."""


@dataclass(frozen=True, slots=True)
class FusedOperator:
    """An operator of the compilation with fusion, set against what it stands for in the one without."""

    name: str
    type: str
    passes: tuple[str, ...]
    """Passes that made it; empty: it was not fused."""
    call: str
    rank: int
    step: int
    tensor: str
    """The output that decided."""
    judgement: str
    error: float | None
    """Relative L2 distance."""
    error_in: float | None
    expected: float | None
    """What rounding and the inputs explain of the error."""

    @property
    def parts(self) -> bool:
        """Whether it made error of its own."""
        return self.judgement == "made_here"


@dataclass(frozen=True, slots=True)
class FusionAnalysis:
    """All operators that have a partner, in the order in which they ran."""

    fused: str
    """The dump with fusion."""
    unfused: str
    graphs: tuple[str, str]
    """Of both, in this order."""
    operators: tuple[FusedOperator, ...]
    missing: tuple[str, ...] = ()

    @property
    def parting(self) -> tuple[FusedOperator, ...]:
        """Operators that made error of their own: the first is the answer."""
        return tuple(operator for operator in self.operators if operator.parts)

    @property
    def passes(self) -> dict[str, tuple[FusedOperator, ...]]:
        """Operators by the pass that made them; one that several made is in each of them."""
        found: dict[str, list[FusedOperator]] = {}
        for operator in self.operators:
            for name in operator.passes:
                found.setdefault(name, []).append(operator)
        return {name: tuple(operators) for name, operators in found.items()}

    @property
    def outcome(self) -> Outcome:
        if not self.operators:
            return Outcome.NOTHING_COMPARED
        return Outcome.DIVERGED if self.parting else Outcome.AGREE

    @property
    def code(self) -> ExitCode:
        return self.outcome.code
