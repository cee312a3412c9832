"""Where the traces of a stage come from: commands that are run, or traces that were made on other hosts."""

import json
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ulpscope.dialects.opening import open_run
from ulpscope.records.enums import Level, Save, Watch
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.investigations import Plan, Stage
from ulpscope.records.pairs import Pair
from ulpscope.records.runs import CaptureSettings, IntRanges, RunOutcome
from ulpscope.trace.reader import Trace, has_rank_file
from ulpscope.workflows.results import prepare_destination, write_json
from ulpscope.workflows.run.command import capture_command, tell

STDERR = 2
"""Where the commands' own output goes: stdout is the answer's."""
RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class Obtained:
    """One side's trace for a stage."""

    path: Path | None
    """None if there was nothing to capture."""
    seconds: float = 0.0
    is_run: bool = False
    """Whether a command was run for it, now or in an earlier attempt."""


class Source(Protocol):
    """Gives traces, or None where one has to be made elsewhere first."""

    def obtain(self, plan: Plan, side: str) -> Obtained | None: ...


def settings_of(plan: Plan, out: Path) -> CaptureSettings:
    """How a plan's runs are captured."""
    return CaptureSettings(
        out,
        level=Level.MODULE if plan.stage is Stage.MODULES else Level.API,
        save=Save.TENSORS if plan.stage is Stage.TENSORS else Save.STATS,
        steps=None if plan.steps is None else IntRanges((plan.steps,)),
        stop=plan.steps is not None,
        only=() if plan.only is None else (plan.only,),
        in_float32=() if plan.in_float32 is None else (plan.in_float32,),
        on_cpu=() if plan.on_cpu is None else (plan.on_cpu,),
        watch=Watch.GRADIENTS if plan.stage is Stage.LOSSES else None,
    )


@dataclass(frozen=True, slots=True)
class CommandRuns:
    """Runs commands, each time into a trace of its own; what an earlier attempt has completed is not run again."""

    commands: Pair[tuple[str, ...]]
    folder: Path

    def obtain(self, plan: Plan, side: str) -> Obtained:
        command = getattr(self.commands, side)
        place = self.folder / folder_of(plan)
        noted = place / f"{side}-{RUN_FILE}"
        known = read_note(noted)
        if known is not None and known.get("command") == list(command) and known.get("options") == list(plan.options):
            return Obtained(place / side if known["captured"] else None, known["seconds"], is_run=True)
        begin = time.monotonic()
        outcome = _run(command, settings_of(plan, place / side), side)
        seconds, captured = time.monotonic() - begin, not outcome.nothing_captured
        entry = {"command": command, "options": plan.options, "captured": captured, "seconds": seconds}
        write_json(noted, entry)
        return Obtained(place / side if captured else None, seconds, is_run=True)


def folder_of(plan: Plan) -> str:
    """Of a stage, by what it captures: `losses`, `step-70`."""
    if plan.steps is None:
        return plan.stage.value
    first, last = plan.steps
    return f"{plan.stage.value}-{first}" + (f"-{last}" if last != first else "")


def read_note(file: Path) -> Mapping[str, Any] | None:
    """What an earlier attempt has noted; None where there is none that can be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _run(command: tuple[str, ...], settings: CaptureSettings, side: str) -> RunOutcome:
    prepare_destination(settings.out, overwrite=True)
    outcome = capture_command(command, settings, stdout=STDERR)
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.script_exit:
        raise UlpscopeError(
            f"the {side}, {shlex.join(command)}, ended with exit code {outcome.script_exit}",
            expected="commands that end with 0 each time",
            next_step="see what it says above, or run it alone",
        )
    if outcome.nothing_captured and settings.watch is None:
        tell(f"ulpscope: the {side} has nothing to capture with {settings.level.value}")
    return outcome


@dataclass(frozen=True, slots=True)
class TracesAtHand:
    """Looks among the traces of two folders, as they were copied from two hosts; a folder may be a trace itself."""

    folders: Pair[Path]

    def obtain(self, plan: Plan, side: str) -> Obtained | None:
        traces = list(_traces(getattr(self.folders, side)))
        found = next((trace for trace in traces if _fits(plan, trace)), None)
        if found is not None:
            return Obtained(found.path)
        if plan.stage is Stage.LOSSES and any(_fits(Plan(Stage.MODULES), trace) for trace in traces):
            return Obtained(None)  # whoever captured modules of all steps has no optimizer to watch
        return None


def _traces(folder: Path) -> Iterator[Trace]:
    if _is_trace(folder):
        yield open_run(folder)
        return
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _is_trace(place):
            yield open_run(place)


def _is_trace(folder: Path) -> bool:
    return has_rank_file(folder) or any(map(has_rank_file, folder.glob("rank*")))


def _fits(plan: Plan, trace: Trace) -> bool:
    """Whether a trace has what a plan would capture."""
    captured = trace.ranks[0].info.capture
    if (captured.get("watch") == Watch.GRADIENTS.value) != (plan.stage is Stage.LOSSES):
        return False
    if plan.stage is Stage.LOSSES:
        return True
    settings = settings_of(plan, trace.path)
    asked = {"only": settings.only, "in_float32": settings.in_float32, "on_cpu": settings.on_cpu}
    chosen = all(tuple(captured.get(name) or ()) == wanted for name, wanted in asked.items())
    deep = plan.stage is Stage.MODULES or captured.get("level") != Level.MODULE.value
    saved = plan.stage is not Stage.TENSORS or captured.get("save") == Save.TENSORS.value
    return chosen and deep and saved and set(_steps(plan)) <= set(trace.steps)


def _steps(plan: Plan) -> range:
    """Those that a trace must have: a training may end before the step behind that of the suspect."""
    if plan.steps is None:
        return range(0)
    first, last = plan.steps
    return range(first, first + 1 if plan.stage is Stage.RAISED else last + 1)
