"""What a capture was asked to do."""

from dataclasses import dataclass
from pathlib import Path

from ulpscope.records.enums import Compiled, Level, Save


@dataclass(frozen=True, slots=True)
class IntRanges:
    """A set of step or rank numbers as the user wrote it: `0,2-4`."""

    ranges: tuple[tuple[int, int], ...]

    def __contains__(self, number: int) -> bool:
        return any(low <= number <= high for low, high in self.ranges)

    def __str__(self) -> str:
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in self.ranges)

    @property
    def last(self) -> int:
        return max(high for _, high in self.ranges)


@dataclass(frozen=True, slots=True)
class Noise:
    """How a twin's results are moved: as far as another run's precision rounds them."""

    seed: int
    precision: str | None = None
    """In which autocast would compute; None: each result in its own."""
    table: Path | None = None
    """A file that says in which dtype the other run has what operations of a family give inside of a module."""


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """Options of `ulpscope run` and `ulpscope.capture`."""

    out: Path
    level: Level = Level.API
    save: Save = Save.STATS
    steps: IntRanges | None = None
    ranks: IntRanges | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    max_disk: int | None = None
    """Bytes a rank may write before saving stops."""
    stop: bool = False
    compiled: Compiled = Compiled.AS_COMPILED
    verify: bool = False
    """Recompute every reused summary and count the differences."""
    noise: Noise | None = None
    """Of a twin."""
