"""Pairs: what of the reference belongs to what of the target, and how it was judged."""

from collections.abc import Callable, Iterator
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
