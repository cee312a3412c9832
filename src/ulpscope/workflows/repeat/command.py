"""`ulpscope repeat`: runs a command again, compares bit by bit, and tries what would make it repeatable."""

import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ulpscope.diagnose.repeating import Compared, compare_bits
from ulpscope.dialects.opening import open_run
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.records.repeats import Parting, Repetition, Switch, Trial
from ulpscope.records.runs import CaptureSettings
from ulpscope.report.terminal.repeat import repetition_json, repetition_text
from ulpscope.workflows.answers import SpokenAnswer
from ulpscope.workflows.repeat.switches import candidates, switched, variables_of
from ulpscope.workflows.results import SUMMARY, prepare_destination, prepare_result, write_json
from ulpscope.workflows.run.command import capture_command, executable_of, tell

STDERR = 2
"""Where the command's own output goes: stdout is the answer's."""
_PREFIX = "ulpscope repeat --"


@dataclass(frozen=True, slots=True)
class AskedRepeats:
    """How often a command is run, at most, and where its traces stay."""

    runs: int = 2
    until_differs: int | None = None
    """Run it so often at most, until one differs."""
    out: Path | None = None

    @property
    def most(self) -> int:
        return max(self.runs, self.until_differs or 0)


def repeat(
    command: Sequence[str], settings: CaptureSettings, asked: AskedRepeats, *, overwrite: bool = False
) -> SpokenAnswer:
    """Run, compare, and try."""
    executable_of(command, prefix=_PREFIX)
    if asked.out is not None:
        prepare_result(asked.out, overwrite=overwrite)
    with _folder(asked.out) as folder:
        runner = _Runner(tuple(command), settings, Path(folder))
        found = _repeat(runner, asked)
    traces = found.traces if asked.out is not None else ()
    answer = _answer(replace(found, traces=traces))
    if asked.out is not None:
        write_json(asked.out / SUMMARY, answer.json())
    return answer


def _folder(out: Path | None) -> AbstractContextManager[str]:
    return nullcontext(str(out)) if out is not None else tempfile.TemporaryDirectory(prefix="ulpscope-repeat-")


def _answer(found: Repetition) -> SpokenAnswer:
    code = ExitCode.OK if found.repeats else ExitCode.DIFFERENCE
    return SpokenAnswer(found, code, repetition_text, repetition_json, has_page=False)


@dataclass(frozen=True, slots=True)
class _Runner:
    """Runs the command, each time into a trace of its own."""

    command: tuple[str, ...]
    settings: CaptureSettings
    folder: Path

    def run(self, name: str, switches: Sequence[Switch] = ()) -> tuple[Path, float]:
        """One run, and how many seconds it took."""
        out = self.folder / name
        prepare_destination(out, overwrite=True)
        settings = switched(replace(self.settings, out=out), switches)
        begin = time.monotonic()
        outcome = capture_command(self.command, settings, stdout=STDERR, variables=variables_of(switches))
        seconds = time.monotonic() - begin
        if outcome.interrupted:
            raise KeyboardInterrupt
        if outcome.script_exit:
            raise UlpscopeError(
                f"{name} of {shlex.join(self.command)} ended with exit code {outcome.script_exit}",
                expected="a command that ends with 0 each time",
                next_step="see what it says above, or run it alone",
            )
        if outcome.nothing_captured:
            raise UlpscopeError(
                f"{shlex.join(self.command)}: nothing was captured",
                expected="a command that computes with torch or TensorFlow",
                next_step=f"see why: ulpscope run -o TRACE -- {shlex.join(self.command)}",
                code=ExitCode.NOTHING,
            )
        tell(f"ulpscope: {name}: {seconds:.1f} s{''.join(f', {switch.value}' for switch in switches)}")
        return out, seconds

    def compare(self, first: Path, other: Path) -> Compared:
        return compare_bits(Pair(open_run(first), open_run(other)))


def _repeat(runner: _Runner, asked: AskedRepeats) -> Repetition:
    first, seconds = runner.run("run0")
    times, compared, other = [seconds], Compared((), 0, 0), first
    for number in range(1, asked.most):
        if number > 1:
            shutil.rmtree(other)
        other, seconds = runner.run(f"run{number}")
        times.append(seconds)
        compared = runner.compare(first, other)
        if compared.partings or (asked.until_differs is None and number + 1 >= asked.runs):
            break
    found = Repetition(
        command=runner.command,
        runs=len(times),
        seconds=sum(times) / len(times),
        calls=compared.calls,
        tensors=compared.tensors,
        partings=compared.partings,
        traces=(str(first), str(other)),
    )
    return replace(found, trials=tuple(_tried(runner, compared.partings, len(times)))) if found.partings else found


def _tried(runner: _Runner, partings: Sequence[Parting], runs: int) -> list[Trial]:
    """One switch after the other; one that brings the run further stays on while the next is tried."""
    parting, tried = partings[0], list[Trial]()
    kept: tuple[Switch, ...] = ()
    waiting = list(candidates(parting.part))
    while waiting:
        switches = (*kept, waiting.pop(0))
        trial = _trial(runner, switches, runs)
        tried.append(trial)
        if trial.parting is None:
            break
        if _is_further(trial.parting, parting):
            parting, kept = trial.parting, switches
            waiting = [each for each in candidates(parting.part) if each not in kept]
    return tried


def _is_further(parting: Parting, before: Parting) -> bool:
    """Whether the runs part later, at another operation: the same one may have repeated itself a while by chance."""
    places = parting.place, before.place
    (op, reached), (op_before, reached_before) = ((each.op, (each.step, each.call_id or 0)) for each in places)
    return op != op_before and reached > reached_before


def _trial(runner: _Runner, switches: tuple[Switch, ...], runs: int) -> Trial:
    """One run more than it took to see the difference: a race may end alike by chance."""
    run = partial(runner.run, switches=switches)
    first, seconds = run("trial0")
    times, parting = [seconds], None
    for number in range(1, runs + 1):
        other, seconds = run(f"trial{number}")
        times.append(seconds)
        parting = next(iter(runner.compare(first, other).partings), None)
        shutil.rmtree(other)
        if parting is not None:
            break
    shutil.rmtree(first)
    return Trial(switches, len(times), sum(times) / len(times), parting)
