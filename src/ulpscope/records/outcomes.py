"""What came of a captured run, as `ulpscope run` saw it from outside."""

from dataclasses import dataclass, field

from ulpscope.records.enums import ExitCode
from ulpscope.records.runs import RankInfo
from ulpscope.records.settings import CaptureSettings


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
