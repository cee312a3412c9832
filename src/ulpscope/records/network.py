"""A network as a device ran it, beside the network that it was made of: what stands for what."""

from dataclasses import dataclass
from enum import Enum

from ulpscope.records.graphs import Operator

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
