"""Pairs: what of the reference belongs to what of the target, how it was judged, and the columns of their table.

Columns are those of pairs.parquet and tensors.csv, a row a tensor of a pair of calls: only names, meanings and kinds,
so that judge, diagnose and report agree on them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

Side = TypeVar("Side")
Other = TypeVar("Other")


@dataclass(frozen=True, slots=True)
class Pair(Generic[Side]):
    """Two things of which the first is trusted and the second is under suspicion."""

    reference: Side
    target: Side

    def __iter__(self) -> Iterator[Side]:
        return iter((self.reference, self.target))

    def map(self, change: Callable[[Side], Other]) -> "Pair[Other]":
        """The same of either side."""
        return Pair(change(self.reference), change(self.target))


class Measured(str, Enum):
    """What a difference of two values was told from."""

    DATA = "data"
    SKETCH = "sketch"
    STATS = "stats"
    DIGEST = "digest"


class Judgement(str, Enum):
    """What a difference of two values is."""

    IDENTICAL = "identical"
    ROUNDING = "rounding"
    INHERITED = "inherited"
    MADE_HERE = "made_here"
    AFTER_CHOICE = "after_choice"
    UNRESOLVED = "unresolved"
    """Bits differ; by how much, and whether rounding explains it, cannot be told from what was captured."""
    ANOTHER_WAY = "another_way"
    """Inside of a step that is computed another way: all that leaves it agrees."""


@dataclass(frozen=True, slots=True)
class PairMetrics:
    """How two arrays of equal shape differ. None: not asked for, or without a meaning for these elements."""

    elements: int
    different: int
    """Elements that are not equal; nan equals nan, 0.0 equals -0.0, inf only inf of the same sign."""
    mismatched: int
    """Places where one is not finite and the other is finite, another kind of inf or nan."""
    distance: float
    """L2 norm of target - reference over the places where both are finite; all that follows is over those, too."""
    reference_norm: float
    target_norm: float
    cosine: float | None
    max_abs: float | None
    max_rel: float | None
    mean_rel: float | None
    accumulated_rel: float | None
    relative_distance: float | None
    rmse: float | None
    mae: float | None
    reference_mean: float | None
    target_mean: float | None
    reference_std: float | None
    target_std: float | None
    within_thousandth: float | None
    within_five_thousandths: float | None
    worst: int | None
    """Flat index of the largest absolute difference."""
    max_ulp: float | None = None
    mean_ulp: float | None = None
    kl_divergence: float | None = None


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
    refused: Pair[Mapping[str, str]] = Pair({}, {})
    """What a file holds that is no tensor, and was not read: by place the class or function that it names."""

    @property
    def renamed(self) -> tuple[Pair[str], ...]:
        """Names of those that were paired by what they hold."""
        keys = (tensor.sides.map(lambda side: side.key) for tensor in self.tensors)
        return () if self.single else tuple(each for each in keys if each.reference != each.target)

    @property
    def agrees(self) -> bool:
        apart = (Agreement.DIFFERENT, Agreement.NOT_COMPARED)
        return not (
            self.only_reference or self.only_target or any(tensor.agreement in apart for tensor in self.tensors)
        )


_TEXT, _COUNT, _SHAPE, _NUMBER = "text", "count", "shape", "number"

PAIR_COLUMNS: dict[str, tuple[str, str]] = {
    "rank": (_COUNT, "rank of both calls"),
    "step": (_COUNT, "step of both calls"),
    "phase": (_TEXT, "setup, forward, backward, update or other"),
    "kind": (_TEXT, "api, backward, module, ..."),
    "op": (_TEXT, "operation, as the target names it"),
    "module": (_TEXT, "module path, as the target names it"),
    "call_reference": (_TEXT, "name of the call in the reference"),
    "call_target": (_TEXT, "name of the call in the target"),
    "id_reference": (_COUNT, "id of the call in the reference"),
    "id_target": (_COUNT, "id of the call in the target"),
    "role": (_TEXT, "input, output, parameter, grad_output, ..."),
    "place": (_TEXT, "args.0, kwargs.mask, output.0, a parameter's name"),
    "value_reference": (_COUNT, "id of the value in the reference"),
    "value_target": (_COUNT, "id of the value in the target"),
    "dtype_reference": (_TEXT, ""),
    "dtype_target": (_TEXT, ""),
    "shape_reference": (_SHAPE, ""),
    "shape_target": (_SHAPE, ""),
    "measured": (_TEXT, "what the difference was told from: data, sketch, stats or digest; null if not compared"),
    "judgement": (
        _TEXT,
        "identical, rounding, inherited, made_here, after_choice, another_way or unresolved; null if not compared",
    ),
    "reason": (_TEXT, "why it was not compared, or cannot be resolved"),
    "error": (_NUMBER, "relative L2 distance (estimated unless measured is data)"),
    "error_in": (_NUMBER, "of an output: the largest error among the call's inputs"),
    "expected": (_NUMBER, "of an output: the error that rounding and the inputs explain"),
    "chance": (_NUMBER, "of an output: how likely a sound call has this error or more, where the reference has twins"),
    "distance": (_NUMBER, "L2 norm of target - reference"),
    "cosine": (_NUMBER, "cosine similarity"),
    "max_abs": (_NUMBER, "largest absolute difference"),
    "max_rel": (_NUMBER, "largest relative difference"),
    "mean_rel": (_NUMBER, "mean relative difference"),
    "accumulated_rel": (_NUMBER, "sum of relative differences"),
    "relative_distance": (_NUMBER, "distance / norm of the reference"),
    "rmse": (_NUMBER, "root of the mean squared difference"),
    "mae": (_NUMBER, "mean absolute difference"),
    "kl_divergence": (_NUMBER, "Kullback-Leibler divergence"),
    "within_thousandth": (_NUMBER, "share of elements within 1/1000"),
    "within_five_thousandths": (_NUMBER, "share of elements within 5/1000"),
    "max_ulp": (_NUMBER, "largest difference in ULP of the coarser dtype"),
    "mean_ulp": (_NUMBER, "mean difference in ULP"),
    "std_reference": (_NUMBER, "standard deviation"),
    "std_target": (_NUMBER, ""),
    "mismatched": (_COUNT, "places where inf or nan do not agree"),
    "min_reference": (_NUMBER, ""),
    "min_target": (_NUMBER, ""),
    "max_reference": (_NUMBER, ""),
    "max_target": (_NUMBER, ""),
    "mean_reference": (_NUMBER, ""),
    "mean_target": (_NUMBER, ""),
    "norm_reference": (_NUMBER, ""),
    "norm_target": (_NUMBER, ""),
    "not_finite_reference": (_COUNT, "count of nan and inf"),
    "not_finite_target": (_COUNT, ""),
}
"""Each with the kind of what it holds, and what that is."""

TEXTS, COUNTS, SHAPES = (
    frozenset(name for name, (kind, _) in PAIR_COLUMNS.items() if kind == wanted) for wanted in (_TEXT, _COUNT, _SHAPE)
)
ALWAYS_KNOWN = ("rank", "step", "phase", "op", "role", "place")
"""Every other column may be empty."""
