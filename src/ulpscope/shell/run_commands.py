"""`npu_dump`, `npu_overflow`, `tf_dump` and `train`: scripts run with the switches of an NPU, or for its reference."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.tf_runs import RunKind, ScriptRun
from ulpscope.report.terminal.tf_runs import script_run_text
from ulpscope.shell.data import DATA, Context
from ulpscope.shell.words import Values, command, option, say, show_text, warn
from ulpscope.workflows.tf_runs.npu import find_overflows, run_on_npu
from ulpscope.workflows.tf_runs.reference import convert_reference, dump_reference
from ulpscope.workflows.tf_runs.running import Streams
from ulpscope.workflows.tf_runs.settings import Settings, read_settings
from ulpscope.workflows.tf_runs.training import ACTIONS, CPU, NPU, run_training

_COMMAND = option("command", metavar="CMD", nargs=argparse.REMAINDER, help="of a script; a line for sh in one word")
DEVICES = ("all", CPU, NPU)


@command("npu_dump", "Run a training script on the NPU with its dump on.", _COMMAND)
def _npu_dump(context: Context, values: Values) -> ExitCode:
    done = run_on_npu(RunKind.NPU_DUMP, values.command, _settings(context), streams=_streams())
    return _told(done)


@command("npu_overflow", "Run a training script on the NPU with overflow detection on; what overflowed.", _COMMAND)
def _npu_overflow(context: Context, values: Values) -> ExitCode:
    done = run_on_npu(RunKind.NPU_OVERFLOW, values.command, _settings(context), streams=_streams())
    return _told(done, overflows=True)


@command("tf_dump", "Run a script for the reference, if one is given, and convert what its sessions dumped.", _COMMAND)
def _tf_dump(context: Context, values: Values) -> ExitCode:
    settings = _settings(context)
    if values.command:
        done = dump_reference(values.command, settings, streams=_streams())
        code = _told(done)
        if code is not ExitCode.OK:
            return code
    return _converted(settings)


@command(
    "train",
    "One training step of the graph in tf/checkpoints: dumped on the CPU for the reference, and on the NPU.",
    option("-d", "--device", metavar="DEVICE", default="all", help="all, cpu or npu (default: all)"),
    option("-a", "--action", metavar="ACTION", default="dump", help=f"{', '.join(ACTIONS)} (default: dump)"),
)
def _train(context: Context, values: Values) -> ExitCode:
    """The first device that fails ends it."""
    _check("device", values.device, DEVICES)
    for word in values.action.split("|"):
        _check("action", word, ACTIONS)
    settings = _settings(context)
    code = ExitCode.OK
    for device in (CPU, NPU) if values.device == "all" else (values.device,):
        done = run_training(device, values.action, settings, _streams())
        code = _told(done, overflows=device == NPU and "overflow" in values.action)
        if code is ExitCode.OK and device == CPU:
            code = _converted(settings)
        if code is not ExitCode.OK:
            return code
    return code


def _check(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise UlpscopeError(
            f"{given!r} is no {what}",
            expected=f"one of {', '.join(known)}" + ("; several joined by |" if what == "action" else ""),
            next_step="help train",
        )


def _settings(context: Context) -> Settings:
    """What the script runs with is what the shell looks at: the folder that it was started on, by its own names."""
    root = context.data.root
    variable = "PRECISION_TOOL_DATA_ROOT_DIR"
    is_laid_out = root not in (Path(), Path(DATA)) and context.data.own.results.is_relative_to(root)
    own = {variable: str(root)} if is_laid_out else {}
    environ = {**own, **os.environ}
    if variable in environ:
        # The script reads its environment.
        os.environ[variable] = environ[variable]
    settings = read_settings(environ)
    for problem in settings.problems:
        warn(problem)
    return settings


def _streams() -> Streams:
    """The lines of a pipe are the shell's, not the script's."""
    return Streams(stdin=None if sys.stdin.isatty() else subprocess.DEVNULL)


def _told(done: ScriptRun, *, overflows: bool = False) -> ExitCode:
    for line in script_run_text(done).splitlines():
        say(line)
    found = find_overflows(done) if overflows else None
    if found is not None:
        show_text(found.text)
    if done.interrupted:
        return ExitCode.INTERRUPTED
    if done.script_exit:
        return ExitCode.DIFFERENCE
    if done.exit_code:
        return ExitCode.NOTHING
    return ExitCode.OK if found is None else found.code


def _converted(settings: Settings) -> ExitCode:
    result = convert_reference(settings)
    say(result.text().rstrip("\n"))
    return result.code
