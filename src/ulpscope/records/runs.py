"""What a capture was asked to do, and what is known of a captured process: where it ran, what was seen, its end."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ulpscope.records.anomalies import Anomaly
from ulpscope.records.enums import Compiled, ExitCode, Level, Save, Watch


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


TWINS = "twins"
"""The folder of a trace that holds its twins, each a trace."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How a twin's results are moved: as far as another run's precision rounds them."""

    seed: int
    precision: str | None = None
    """In which autocast would compute; None: each result in its own."""
    table: Path | None = None
    """A file that says in which dtype the other run has what operations of a family give inside of a module."""


@dataclass(frozen=True, slots=True)
class GradientWatch:
    """What is kept of gradients beside their stats, and of which."""

    bounds: tuple[float, ...] = ()
    """How many elements are no larger than each of these is counted."""
    signs: bool = False
    """Whether which elements are positive is kept, a bit each."""


@dataclass(frozen=True, slots=True)
class OverflowWatch:
    """What is done when numbers overflow."""

    most: int = 1
    """Steps with an overflow that are kept; the watch ends after them."""
    stop: bool = False
    """Whether the script ends then."""
    ring: int = 0
    """Bytes of data of the last calls that are written with such a step."""


@dataclass(frozen=True, slots=True)
class TrainingWatch:
    """How a training is watched: modules, gradients, parameters and updates of its steps."""

    every: int = 1
    """Of so many steps the first is recorded."""
    control: Path | None = None
    """A file that is read again whenever it has changed: what of the training is recorded from now on."""
    like: Path | None = None
    """A trace of an earlier training, whose loss this one's should have."""


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
    configs: tuple[Path, ...] = ()
    """Config files of the script, which the trace is to hold."""
    seed: int | None = None
    """What all generators are seeded with before the script begins; None: nothing is touched."""
    in_float32: tuple[str, ...] = ()
    """Calls that run in float32, as patterns of `only`: their numbers are others than the script's."""
    on_cpu: tuple[str, ...] = ()
    """The same, on the CPU."""
    deterministic: bool = False
    """Ask the framework for kernels that give the same bits each time."""
    watch: Watch | None = None
    """What of a long run is recorded in the place of its calls."""
    gradients: GradientWatch = GradientWatch()
    overflow: OverflowWatch = OverflowWatch()
    training: TrainingWatch = TrainingWatch()

    @property
    def changes_numbers(self) -> bool:
        return bool(self.in_float32 or self.on_cpu)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a capture saw and what it did not see; nothing is left out silently."""

    calls_seen: int = 0
    calls_recorded: int = 0
    calls_filtered: int = 0
    calls_unobserved: dict[str, int] = field(default_factory=dict)
    """Calls that ran without a look inside, by reason."""
    calls_raised: dict[str, int] = field(default_factory=dict)
    """Calls that ran in float32 or on the CPU because that was asked for, by where."""
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


@dataclass(frozen=True, slots=True)
class LastCall:
    """The call that a process made last: where it was when it died."""

    step: int
    phase: str
    name: str
    module: str
    running: bool
    """Whether it had not ended."""


@dataclass(frozen=True, slots=True)
class CapturedProcess:
    """One rank's directory of the trace, as it lies on disk after the run."""

    directory: str
    info: RankInfo
    steps: tuple[int, ...]
    calls: int
    """Those with a row on disk."""
    unfinished: tuple[int, ...]
    """Those of the steps of which parts were flushed that no step.json states."""
    bytes: int
    last_call: LastCall | None = None
    """Of a process that did not live to close its part of the trace."""

    @property
    def empty(self) -> bool:
        return self.calls == 0 and not self.unfinished


@dataclass(frozen=True, slots=True)
class FinishedProcess:
    """What a captured process said of itself at its end."""

    rank: int
    steps: int
    """Steps the script made, recorded or not."""
    calls: int
    recorded: int


@dataclass(frozen=True, slots=True)
class SeenProcesses:
    """What the processes of a run told `ulpscope run` while they lived."""

    pythons: int = 0
    """Python processes in which ulpscope was injected."""
    ranks: tuple[int, ...] = ()
    finished: tuple[FinishedProcess, ...] = ()
    without_ulpscope: dict[str, str] = field(default_factory=dict)
    """Interpreters that imported a framework but could not import ulpscope, and why."""
    left_alone: dict[str, int] = field(default_factory=dict)
    """Processes not captured on purpose, by reason."""
    failures: tuple[str, ...] = ()
    """Why a capture that should have started did not."""
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Everything the summary of `ulpscope run` is made from."""

    trace: str
    command: tuple[str, ...]
    settings: CaptureSettings
    script_exit: int
    """As a shell would report it: 128 + n for a script that signal n ended."""
    interrupted: bool
    captured: tuple[CapturedProcess, ...]
    seen: SeenProcesses
    anomalies: tuple[Anomaly, ...] = ()
    """Of a watched training, as they were told."""

    @property
    def nothing_captured(self) -> bool:
        return all(process.empty for process in self.captured)

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return int(ExitCode.INTERRUPTED)
        if self.script_exit:
            return self.script_exit
        return int(ExitCode.NOTHING if self.nothing_captured else ExitCode.OK)
