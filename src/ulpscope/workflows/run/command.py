"""`ulpscope run`: starts the user's command with the capture injected, watches it, and says what came of it.

The command is a child that keeps our terminal; signals that only we receive are handed on.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from ulpscope.capture.events import EVENTS_VARIABLE, Event, EventReader, run_of
from ulpscope.capture.processes import rank_and_world_size, starts_ranks
from ulpscope.capture.settings import SETTINGS_VARIABLE, settings_to_json
from ulpscope.records.anomalies import Anomaly
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.runs import (
    CapturedProcess,
    CaptureSettings,
    FinishedProcess,
    LastCall,
    Progress,
    RunOutcome,
    SeenProcesses,
)
from ulpscope.report.progress import StatusLine, status_text
from ulpscope.report.terminal.run import CHANGED_NUMBERS, outcome_object, plan_text, summary_text
from ulpscope.workflows.results import held_destination, prepare_destination, rank_directories

if TYPE_CHECKING:
    from ulpscope.trace.description import StepParts


Told = TypeVar("Told")

POLL_SECONDS = 0.2
TWIN_VARIABLE = "ULPSCOPE_TWIN"
"""Tells a script that it runs as a twin, and as which."""


class Child:
    """The user's command while it runs."""

    def __init__(self, *, on_tick: Callable[[], None], on_stop: Callable[[], None]) -> None:
        self._on_tick = on_tick
        self._on_stop = on_stop
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self.interrupted = False

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdout: int | None,
        stderr: int | None = None,
        stdin: int | None = None,
    ) -> int:
        """Start the command and wait for its end, calling `on_tick` a few times a second.

        The exit code is as a shell reports it: 128 + n after signal n.
        """
        with self._signals():
            try:
                self._process = process = subprocess.Popen(
                    command, env=environment, stdin=stdin, stdout=stdout, stderr=stderr
                )
            except OSError as error:
                raise UlpscopeError(
                    f"{command[0]} cannot be started: {error.strerror}",
                    expected="a program, or a script whose first line names its interpreter",
                    next_step="name the interpreter before the script: -- bash script.sh",
                ) from error
            for number in self._early:
                process.send_signal(number)
            code = None
            while code is None:
                try:
                    code = process.wait(timeout=POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    self._on_tick()
        return code if code >= 0 else 128 - code

    @contextmanager
    def _signals(self) -> Iterator[None]:
        handlers = {
            signal.SIGINT: self._interrupt,
            signal.SIGTERM: self._forward,
            signal.SIGHUP: self._forward,
            signal.SIGTSTP: self._stop,
        }
        # A signal that our caller ignores (nohup, a background job) stays ignored.
        heard = [number for number in handlers if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, handlers[number]) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        # The terminal sends Ctrl-C to the child as well; torchrun takes a second one for an order to give up at once.
        if self._process is None or not _own_the_terminal():
            self._forward(number, frame)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._on_stop()
        os.kill(os.getpid(), signal.SIGSTOP)


def _own_the_terminal() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


# One part is written in well below a second; a shared file system may hang.
WRITER_SECONDS = 60.0

NOTHING_ADDED: Mapping[str, str] = {}
INJECT_DIRECTORY = Path(__file__).parents[2] / "capture" / "inject"


def run_command(
    command: Sequence[str], settings: CaptureSettings, *, overwrite: bool = False, as_json: bool = False
) -> RunOutcome:
    """Run `command` captured into `settings.out`; tells on stderr, and with `as_json` answers on stdout."""
    executable = find_executable(command, out=settings.out)
    rank, world_size = rank_and_world_size(os.environ)
    is_one_of_several = world_size > 1 or starts_ranks(command)
    with held_destination(settings.out, shared=is_one_of_several):
        prepare_destination(settings.out, overwrite=overwrite, rank=rank if world_size > 1 else None)
        tell(plan_text(settings, command=command, interpreter=find_interpreter(executable)))
        if settings.changes_numbers:
            tell(CHANGED_NUMBERS)
        outcome = capture_command(command, settings, stdout=sys.stderr.fileno() if as_json else None)
    tell(summary_text(outcome))
    if as_json:
        print(json.dumps(outcome_object(outcome)))
    return outcome


def find_executable(command: Sequence[str], *, out: Path) -> str:
    """The program that a captured `command` starts."""
    return executable_of(command, prefix=f"ulpscope run -o {shlex.quote(str(out))} --")


def executable_of(command: Sequence[str], *, prefix: str) -> str:
    """The program that `command` starts, which stands behind `prefix`."""
    if not command:
        raise UlpscopeError("no command to run", expected="a command after `--`", next_step=f"{prefix} python train.py")
    found = shutil.which(command[0])
    if found is None:
        program = Path(command[0])
        interpreter = {".py": "python", ".sh": "bash"}.get(program.suffix)
        raise UlpscopeError(
            f"{command[0]} is not executable" if program.is_file() else f"there is no command {command[0]!r}",
            expected="a program on PATH or an executable file",
            next_step=f"{prefix} {interpreter} {shlex.join(command)}" if interpreter else "check its spelling and PATH",
        )
    return found


def find_interpreter(executable: str) -> str | None:
    """The Python that `executable` is or, by its first line, runs in; None if that cannot be told."""
    if Path(executable).name.startswith("python"):
        return executable
    try:
        with open(executable, "rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = words[1:]
    python = words[0] if words and Path(words[0]).name.startswith("python") else None
    return shutil.which(python) if python else None


def capture_command(
    command: Sequence[str],
    settings: CaptureSettings,
    *,
    stdout: int | None,
    stderr: int | None = None,
    variables: Mapping[str, str] = NOTHING_ADDED,
) -> RunOutcome:
    """Run a command captured, where a place for its trace is prepared; `variables` are added to its environment."""
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as rendezvous:
        watch = RunWatch(Path(rendezvous))
        try:
            environ = {**os.environ, **variables}
            environment = child_environment(environ, settings, rendezvous=Path(rendezvous))
            child = Child(on_tick=watch.tick, on_stop=watch.status.close)
            code = child.run(command, environment=environment, stdout=stdout, stderr=stderr)
        finally:
            watch.finish()
    from ulpscope.trace.writer import read_claim

    directories = [found for found in rank_directories(settings.out) if read_claim(found).get("run") == watch.run]
    return RunOutcome(
        trace=str(settings.out),
        command=tuple(command),
        settings=settings,
        script_exit=code,
        interrupted=child.interrupted,
        captured=tuple(_captured(directory, watch.last_calls) for directory in directories),
        seen=watch.seen(),
        anomalies=tuple(sorted(watch.anomalies, key=lambda each: each.when)),
    )


def child_environment(environ: Mapping[str, str], settings: CaptureSettings, *, rendezvous: Path) -> dict[str, str]:
    """The environment that makes every Python below load capture/inject/sitecustomize.py."""
    # The child may change its directory before it imports torch.
    configs = tuple(path.absolute() for path in settings.configs)
    absolute = replace(settings, out=settings.out.absolute(), configs=configs)
    twin = {} if settings.noise is None else {TWIN_VARIABLE: str(settings.noise.seed)}
    return {
        **environ,
        **twin,
        "PYTHONPATH": injecting_path(environ),
        SETTINGS_VARIABLE: settings_to_json(absolute),
        EVENTS_VARIABLE: str(rendezvous),
    }


def injecting_path(environ: Mapping[str, str]) -> str:
    """PYTHONPATH with our sitecustomize before all else."""
    python_path = environ.get("PYTHONPATH")
    return f"{INJECT_DIRECTORY}{os.pathsep}{python_path}" if python_path else str(INJECT_DIRECTORY)


class RunWatch:
    """Collects what the captured processes tell; shows progress and messages as they come."""

    def __init__(self, rendezvous: Path) -> None:
        self.status = StatusLine(sys.stderr)
        self._reader = EventReader(rendezvous)
        self.run = run_of(rendezvous)
        self._events: list[Event] = []
        self._progress: dict[int, Progress] = {}
        self._messages: dict[str, None] = {}
        self.last_calls: dict[int, LastCall] = {}
        """By process: those that did not live to say that they end."""
        self.anomalies: list[Anomaly] = []

    def tick(self) -> None:
        """Read what is new and show it."""
        for event in self._reader.read_new():
            self._take(event)
        if self._progress:
            self.status.draw(status_text(list(self._progress.values())))

    def finish(self) -> None:
        """The command has ended; where a captured process has died, who writes for it may still be at its last step."""
        until = time.monotonic() + WRITER_SECONDS
        while self._reader.left_at_work() and time.monotonic() < until:
            time.sleep(POLL_SECONDS / 4)
        self.tick()
        self.status.close()
        ended = {event["pid"] for event in self._of("finished")}
        died = [event["pid"] for event in self._of("started") if event["pid"] not in ended]
        self.last_calls = {pid: call for pid in died if (call := self._reader.last_call(pid)) is not None}

    def seen(self) -> SeenProcesses:
        """Everything that was told, in order."""
        started = self._of("started")
        alone = [str(event["reason"]) for event in self._of("left_alone")]
        return SeenProcesses(
            pythons=len(self._of("python")),
            ranks=tuple(sorted({int(event["rank"]) for event in [*started, *self._of("finished")]})),
            finished=tuple({event["pid"]: _record(FinishedProcess, event) for event in self._of("finished")}.values()),
            without_ulpscope={str(event["interpreter"]): str(event["reason"]) for event in self._of("no_ulpscope")},
            left_alone={reason: alone.count(reason) for reason in sorted(set(alone))},
            failures=tuple(str(event["text"]) for event in self._of("failed")),
            messages=tuple(self._messages),
        )

    def _take(self, event: Event) -> None:
        if event["event"] == "progress":
            self._progress[event["pid"]] = _record(Progress, event)
            return
        if event["event"] == "started" and not self._of("started"):
            threading.Thread(target=_import_tables, daemon=True).start()
        self._events.append(event)
        if event["event"] == "anomaly":
            self._hear(event["found"])
        if event["event"] in ("message", "failed") and event["text"] not in self._messages:
            self._messages[event["text"]] = None
            tell(f"ulpscope: {event['text']}")

    def _hear(self, found: dict[str, Any]) -> None:
        """An anomaly of a watched training; what several ranks see alike is told once."""
        from ulpscope.report.terminal.anomalies import anomaly_text
        from ulpscope.trace.trainings.written import anomaly_from

        anomaly = anomaly_from(found)
        if not any(each.is_like(anomaly) for each in self.anomalies):
            self.anomalies.append(anomaly)
            tell(f"ulpscope: {anomaly_text(anomaly)}")

    def _of(self, name: str) -> list[Event]:
        return [event for event in self._events if event["event"] == name]


def _record(kind: type[Told], event: Event) -> Told:
    """What a process tells of itself."""
    return kind(**{field.name: event.get(field.name) for field in fields(kind)})  # type: ignore[arg-type]


def _import_tables() -> None:
    """The table library costs a quarter of a second: not before the user's command begins, nor after it has ended."""
    import ulpscope.trace.description  # noqa: F401


def _captured(directory: Path, last_calls: Mapping[int, LastCall]) -> CapturedProcess:
    from ulpscope.trace.description import read_rank_info, survey_rank
    from ulpscope.trace.schema import RANK_FILE

    info = read_rank_info(directory / RANK_FILE)
    parts = survey_rank(directory)
    steps = {number: step for number, step in parts.steps.items() if step.info is None or step.info.calls}
    return CapturedProcess(
        directory=directory.name,
        info=info,
        steps=tuple(sorted(steps)),
        calls=info.coverage.calls_recorded if info.closed else _calls_on_disk(directory, steps.values()),
        unfinished=tuple(sorted(number for number, step in steps.items() if step.info is None)),
        bytes=sum(file.stat().st_size for file in directory.rglob("*") if file.is_file()),
        last_call=last_calls.get(info.process.get("pid", -1)),
    )


def _calls_on_disk(directory: Path, steps: Iterable["StepParts"]) -> int:
    """All of them; those of whole steps if a table cannot be read."""
    from ulpscope.trace.reader import open_trace

    try:
        (rank,) = open_trace(directory).ranks
        return rank.collect(rank.calls().select("id")).height
    except UlpscopeError:
        return sum(step.info.calls for step in steps if step.info is not None)


def tell(text: str) -> None:
    """On stderr: stdout is the script's."""
    print(text, file=sys.stderr, flush=True)
