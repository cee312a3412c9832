"""What is known about one captured process: where it ran, what was seen of it, how it ended."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a capture saw and what it did not see; nothing is left out silently."""

    calls_seen: int = 0
    calls_recorded: int = 0
    calls_filtered: int = 0
    calls_unobserved: dict[str, int] = field(default_factory=dict)
    """Calls that ran without a look inside, by reason."""
    values: int = 0
    values_unsummarized: dict[str, int] = field(default_factory=dict)
    """Values without stats, by reason (sparse, meta, ...)."""
    summaries_made: int = 0
    summaries_reused: int = 0
    summaries_verified: int = 0
    summaries_wrong: int = 0
    other_threads: int = 0
    """Module calls in threads that are not observed."""
    waits: int = 0
    """Times the run had to wait for the writer."""
    saved_bytes: int = 0
    not_saved: int = 0
    """Values whose data was not saved because --max-disk was reached."""
    ended_early: str = ""
    """Why the capture ended before the run did, if it did so on purpose."""


@dataclass(frozen=True, slots=True)
class Stepping:
    """How a run's steps were told apart: how many began in which way."""

    updates: int = 0
    """At the first forward after an optimizer's step."""
    forwards: int = 0
    """When a module ran again, before any update."""
    marks: int = 0
    """Where the script said so."""
    optimizers: int = 0
    """How many optimizers made steps."""


@dataclass(frozen=True, slots=True)
class Root:
    """A module that the run called from outside of any other."""

    name: str
    """Where the paths of its modules begin."""
    module_class: str
    source: str | None
    """The line that called it first."""
    calls: int


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A finished step as its step.json states it."""

    step: int
    calls: int
    values: int
    tensors: int
    parts: int
    first_value: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RankInfo:
    """rank.json of one process; see docs/trace-format.md for each field."""

    rank: int
    world_size: int
    process: dict[str, Any]
    framework: dict[str, Any]
    versions: dict[str, str]
    devices: tuple[str, ...]
    environment: dict[str, Any]
    seeds: dict[str, Any]
    capture: dict[str, Any]
    started: str
    closed: str | None = None
    exit: str | None = None
    coverage: Coverage = Coverage()
    errors: tuple[str, ...] = ()
    stepping: Stepping = Stepping()
    roots: tuple[Root, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """One status of a running capture; `run`'s own process draws it."""

    rank: int
    step: int
    calls: int
    bytes: int
    seconds_per_step: float | None
