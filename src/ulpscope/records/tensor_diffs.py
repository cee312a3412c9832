"""What `ulpscope diff` finds: how tensors of two files differ."""

from dataclasses import dataclass
from enum import Enum

from ulpscope.records.pairs import Pair, PairMetrics

Number = bool | int | float | complex


class Agreement(str, Enum):
    """How two tensors stand to each other, from the best to the worst."""

    IDENTICAL = "identical"
    """The same type and the same bits."""
    EQUAL = "equal"
    """The same numbers: of another type, or with another sign of zero or another nan."""
    WITHIN = "within"
    """Different, and within the tolerance that was asked for."""
    DIFFERENT = "different"
    NOT_COMPARED = "not_compared"
    """Of other shapes, or of a type that cannot be compared."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """An element is within if |target - reference| <= atol + rtol * |reference|."""

    atol: float
    rtol: float
    asked: bool
    """Whether they decide. If not they are numpy's defaults, and only told."""


@dataclass(frozen=True, slots=True)
class ElementPair:
    """One place where two tensors differ."""

    index: tuple[int, ...]
    numbers: Pair[Number]
    texts: Pair[str]
    """Both as their own types write them."""


@dataclass(frozen=True, slots=True)
class TensorSide:
    key: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """Two tensors."""

    sides: Pair[TensorSide]
    agreement: Agreement
    metrics: PairMetrics | None = None
    """None if they are identical and nobody asked, or were not compared."""
    outside: int | None = None
    """Elements outside of the tolerance."""
    worst: tuple[ElementPair, ...] = ()
    problem: str | None = None
    """Why they were not compared."""

    @property
    def name(self) -> str:
        return self.sides.reference.key or self.sides.target.key


@dataclass(frozen=True, slots=True)
class FileDiff:
    """Two files. `single`: one tensor of each was asked for, or is all they hold."""

    paths: Pair[str]
    tensors: tuple[TensorDiff, ...]
    """The worst first."""
    only_reference: tuple[str, ...]
    only_target: tuple[str, ...]
    tolerances: Tolerances
    single: bool
    below: Pair[str]
    """Prefix of the names that were compared, without it, where names have nothing in common otherwise."""

    @property
    def agrees(self) -> bool:
        apart = (Agreement.DIFFERENT, Agreement.NOT_COMPARED)
        return not (
            self.only_reference or self.only_target or any(tensor.agreement in apart for tensor in self.tensors)
        )
