"""`ulpscope run --twins`: the run again, with the roundings of another run's precision: healthy error, measured."""

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ulpscope.capture.processes import rank_and_world_size
from ulpscope.capture.settings import settings_from_json
from ulpscope.dialects.opening import open_run
from ulpscope.numerics.dtypes import FLOATING
from ulpscope.records.enums import ExitCode, Save
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.runs import TWINS, CaptureSettings, Noise, RunOutcome
from ulpscope.trace.reader import open_trace
from ulpscope.trace.twins import TwinPrecision, precision_of, write_precision
from ulpscope.workflows.results import held_destination, prepare_destination, rank_directories
from ulpscope.workflows.run.command import TWIN_VARIABLE, capture_command, run_command, tell

USUAL_LOSS_SCALE = 16
"""Binary exponent that torch's GradScaler begins with."""
SHORT_WORDS = {"bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class AskedTwins:
    """Twins as the user asks for them."""

    count: int
    like: Path | None = None
    """A trace whose roundings they shall have."""
    precision: str | None = None


def run_with_twins(
    command: Sequence[str], settings: CaptureSettings, asked: AskedTwins, *, overwrite: bool, as_json: bool
) -> int:
    """Capture the command where TRACE is not there yet, then its twins; gives the exit code of the capture."""
    _refuse(asked)
    precision = _precision(asked)
    code: int = ExitCode.OK.value
    if overwrite or not rank_directories(settings.out):
        outcome = run_command(command, settings, overwrite=overwrite, as_json=as_json)
        code = outcome.exit_code
        if outcome.nothing_captured:
            return code
    captured = open_trace(settings.out).ranks[0].info.capture
    settings = replace(settings_from_json(json.dumps(captured)), out=settings.out, save=Save.STATS)
    folder = settings.out / TWINS
    shutil.rmtree(folder, ignore_errors=True)
    table = write_precision(folder, precision).absolute()
    tell(
        f"ulpscope: twins to run: {asked.count}; the command's own files are written again ({TWIN_VARIABLE}=1, 2, ...)"
    )
    noises = [
        Noise(number, precision.coarsest if asked.like is None else None, table) for number in range(1, asked.count + 1)
    ]
    ended = [_run(command, replace(settings, out=folder / str(noise.seed), noise=noise)) for noise in noises]
    return code or next((outcome.exit_code for outcome in ended if outcome.exit_code), code)


def _run(command: Sequence[str], settings: CaptureSettings) -> RunOutcome:
    """One twin; what it prints goes into a file beside its trace."""
    log = settings.out.with_suffix(".log")
    with held_destination(settings.out, shared=False), open(log, "wb") as output:
        prepare_destination(settings.out, overwrite=False)
        outcome = capture_command(command, settings, stdout=output.fileno(), stderr=output.fileno())
    calls = sum(process.calls for process in outcome.captured)
    told = f"{calls:,} calls" if calls else "nothing was captured"
    ended = f", exit code {outcome.script_exit}" if outcome.script_exit else ""
    tell(f"ulpscope: twin {settings.out.name}: {told}{ended}; its output is in {log}")
    return outcome


def _refuse(asked: AskedTwins) -> None:
    if asked.count < 1:
        raise UlpscopeError(f"--twins {asked.count}", expected="a number from 1 up", next_step="write --twins 2")
    if asked.like is not None and asked.precision is not None:
        raise UlpscopeError(
            "--like and --precision together",
            expected="one that says how twins round",
            next_step="leave --precision out: the trace of --like tells it call by call",
        )
    if rank_and_world_size(os.environ)[1] > 1:
        raise UlpscopeError(
            "--twins in one process of several",
            expected="ulpscope run around the launcher, which starts all ranks again",
            next_step="ulpscope run --twins 2 -o TRACE -- torchrun ... train.py",
        )


def _precision(asked: AskedTwins) -> TwinPrecision:
    if asked.like is not None:
        return precision_of(open_run(asked.like))
    word = SHORT_WORDS.get(asked.precision or "", asked.precision)
    if word is not None and word not in FLOATING:
        raise UlpscopeError(
            f"--precision {shlex.quote(str(asked.precision))}",
            expected="a type of real numbers: bf16, fp16, float32",
            next_step="write --precision bf16",
        )
    return TwinPrecision(word, {}, USUAL_LOSS_SCALE if word == "float16" else 0)
