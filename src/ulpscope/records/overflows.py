"""Overflows: a call that made inf or nan out of finite numbers, executed again on the CPU in the same dtype."""

from dataclasses import dataclass
from enum import Enum

from ulpscope.records.checks import DataSource, Direction


class Overflow(str, Enum):
    """Why a result is not finite."""

    NORMAL = "normal"
    """The dtype cannot hold it: the CPU gives inf or nan too."""
    ABNORMAL = "abnormal"
    """Only the device gave inf or nan."""
    STATED = "stated"
    """An argument of the call asks for it: masked_fill(mask, -inf)."""
    UNCLEAR = "unclear"
    """Data made from stats does not show it."""
    FINITE = "finite"
    """What the run gave is not recorded, and what comes out here is finite."""


@dataclass(frozen=True, slots=True)
class NotFinite:
    """How many elements of a tensor are not finite."""

    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0

    @property
    def total(self) -> int:
        return self.nan + self.pos_inf + self.neg_inf

    def __str__(self) -> str:
        """`3 nan, 2 +inf`; `none`."""
        counts = {"nan": self.nan, "+inf": self.pos_inf, "-inf": self.neg_inf}
        return ", ".join(f"{number:,} {name}" for name, number in counts.items() if number) or "none"


@dataclass(frozen=True, slots=True)
class OverflowEvidence:
    """One output or gradient that was not finite in the run, or is not recorded, and what became of it here."""

    place: str
    direction: Direction
    dtype: str
    shape: tuple[int, ...]
    recorded: NotFinite | None
    """None where nobody recorded it."""
    cpu: NotFinite | None
    """The call on the CPU in the same dtype; none where the CPU has no kernel for it."""
    exact: NotFinite
    """The call in high precision."""
    exact_largest: float | None
    """Largest finite magnitude in high precision; none where nothing is finite."""
    asked_for: bool
    """An argument of the call is itself inf or nan."""
    source: DataSource
    terms: float
    """About how many terms an element is the sum of."""
    device: NotFinite | None = None
    """The call on the device under test, where one was named."""
