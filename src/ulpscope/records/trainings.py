"""Two trainings side by side, step by step: where and why they part, told from gradients, weights and losses."""

from dataclasses import dataclass
from enum import Enum

import polars as pl

from ulpscope.records.enums import ExitCode
from ulpscope.records.evidence import ArgumentDifference
from ulpscope.records.findings import FindingKind, Outcome, Place


class Cause(str, Enum):
    """What was the first to differ by more than the runs' own noise."""

    SETTING = "setting"
    """Options of an optimizer."""
    START = "start"
    """Weights, in the first step."""
    CHANGED = "changed"
    """Weights that somebody else than the optimizer has written."""
    UPDATE = "update"
    """Weights after an update that was given the same."""
    RANDOMNESS = "randomness"
    """Random numbers, with the loss."""
    INPUT = "input"
    """The loss, with the same weights and random numbers."""
    BACKWARD = "backward"
    """Gradients of the same loss."""
    MISSING = "missing"
    """Parameters that have gradients in one run only."""


KIND_OF = {
    Cause.SETTING: FindingKind.OPTIMIZER,
    Cause.START: FindingKind.PARAMETER,
    Cause.CHANGED: FindingKind.PARAMETER,
    Cause.UPDATE: FindingKind.OPTIMIZER,
    Cause.RANDOMNESS: FindingKind.RANDOMNESS,
    Cause.INPUT: FindingKind.INPUT,
    Cause.BACKWARD: FindingKind.COMPUTATION,
    Cause.MISSING: FindingKind.STRUCTURE,
}


@dataclass(frozen=True, slots=True)
class PartedParameter:
    """How far one parameter's gradient, or the parameter itself, is apart at the step of a parting."""

    name: str
    error: float
    """Distance relative to the reference."""
    before: float
    """The largest of the steps just before; 0 where these were identical."""
    cosine: float | None = None
    signs: float | None = None
    """Share of elements whose gradients have one sign, where signs were kept."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two trainings part."""

    cause: Cause
    place: Place
    parameters: tuple[PartedParameter, ...] = ()
    """Those that show it, the furthest apart first."""
    arguments: tuple[ArgumentDifference, ...] = ()
    losses: tuple[float, float] | None = None
    of: int = 0
    """How many parameters the runs have."""
    factor: float | None = None
    """How many times as large the target's gradients are, where they have the same directions."""

    @property
    def kind(self) -> FindingKind:
        return KIND_OF[self.cause]


@dataclass(frozen=True, slots=True)
class Drift:
    """From where on directions differ about as much as those of two batches do: trainings do so by rounding alone."""

    rank: int
    step: int
    parameter: str
    cosine: float | None


@dataclass(frozen=True, slots=True)
class Beginning:
    """How two trainings begin: in which types their forwards hold numbers, and how far apart their first losses are."""

    rank: int
    step: int
    types: tuple[str | None, str | None]
    """The coarsest of each run; None where that is not known."""
    roundoffs: float | None
    """By how many roundoffs of the coarser the losses differ, from weights of the same bits."""
    is_doubtful: bool
    """Whether that is more than rounding usually makes of a loss."""


@dataclass(frozen=True, slots=True)
class Trainings:
    """What a comparison of two watched trainings found."""

    reference: str
    target: str
    outcome: Outcome
    partings: tuple[Parting, ...]
    """Of each rank that parts, the first first."""
    drifts: tuple[Drift, ...]
    noisy_since: int | None
    """The first step in which anything differs, if that was no parting."""
    beginnings: tuple[Beginning, ...]
    """Of each rank."""
    steps: tuple[int, ...]
    gradients: int
    """How many were compared."""
    identical: int
    signs: int
    """Of how many the signs were compared."""
    left: tuple[int, int]
    """Steps that only one of the runs has."""
    missing: tuple[str, ...]
    table: pl.DataFrame
    """A row a gradient."""
    course: pl.DataFrame
    """A row a step."""

    @property
    def code(self) -> ExitCode:
        return self.outcome.code
