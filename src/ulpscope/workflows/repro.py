"""`ulpscope repro`: one call of a trace as a script of its own, and as a test."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from ulpscope.dialects.opening import open_run
from ulpscope.dialects.tables import ASCEND, is_network
from ulpscope.judge.soundness.reproduction import expected_error, script_limits
from ulpscope.records.calls import Call
from ulpscope.records.checks import CaseId, DataSource, OpReproduction, Variant
from ulpscope.records.enums import ExitCode, Kind, Phase
from ulpscope.records.errors import UlpscopeError
from ulpscope.replay.frameworks import Framework, needed_framework
from ulpscope.replay.planning import can_be_longer, has_data, why_left
from ulpscope.replay.recorded import CannotReplayError, RecordedCall, read_calls
from ulpscope.report.repro_script import repro_text, script_text, test_text
from ulpscope.report.repro_script_tf import op_script_text
from ulpscope.trace.query import FoundCall, find_call
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.workflows.answers import TellsItself
from ulpscope.workflows.results import occupied

if TYPE_CHECKING:
    from ulpscope.replay.tensorflow.reproduction import Reproduced as ReproducedOp
    from ulpscope.replay.torch.reproduction import Reproduced

SCRIPT, TEST, DATA = "repro.py", "test_repro.py", "data.safetensors"
FILES = (SCRIPT, TEST, DATA)
_ELSEWHERE = "choose another directory with -o"


@dataclass(frozen=True, slots=True)
class ReproOptions:
    """Which data a script is made with, and where it is to run."""

    source: DataSource | None = None
    """None: saved data where there is some."""
    variant: Variant = Variant.RECORDED
    seed: int = 0
    device: str | None = None
    """None: the device that the call was recorded on."""
    overwrite: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class ReproResult(TellsItself):
    """What was written."""

    out: Path
    call: str
    source: DataSource
    variant: Variant
    device: str
    lines: int
    data_bytes: int

    @property
    def code(self) -> ExitCode:
        return ExitCode.OK

    def text(self) -> str:
        return repro_text(
            out=str(self.out),
            call=self.call,
            data=self.source.value,
            variant=self.variant.value,
            lines=self.lines,
            data_bytes=self.data_bytes,
            command=f"python {shlex.quote(str(self.out / SCRIPT))} {shlex.quote(self.device)}",
        )

    def json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "command": "repro",
            "call": self.call,
            "script": str(self.out / SCRIPT),
            "test": str(self.out / TEST),
            "data": str(self.out / DATA),
            "source": self.source.value,
            "variant": self.variant.value,
            "device": self.device,
        }


def repro(
    path: str | Path,
    call: str | int,
    out: Path,
    options: ReproOptions,
    *,
    step: int | None = None,
    rank: int | None = None,
    phase: Phase | None = None,
) -> ReproResult:
    """Write a script, a test and their data for one call; a backward leads to its forward."""
    check_files(out, overwrite=options.overwrite)
    trace = open_run(path)

    def usage(path: str, name: str) -> str:
        return f"ulpscope repro {path} {name} -o {shlex.quote(str(out))}"

    found = _forward(find_call(trace, call, step=step, rank=rank, phase=phase, usage=usage), trace)
    if is_network(found.rank_trace.info):
        name, shown = found.call.module or found.call.name, shlex.quote(str(trace.path))
        checked = f"compute it by its definition: ulpscope check {shown} --graph GRAPH --only {shlex.quote(name)}"
        dumped = found.rank_trace.info.capture.get("tool") == ASCEND
        raise UlpscopeError(
            f"{name} is an operator of a network ({found.call.op}), of which {shown} holds tensors and no function",
            expected="a call of torch or TensorFlow, which a script can make again",
            next_step=checked if dumped else f"look at it: ulpscope show {shown} {name}",
        )
    recorded = read_calls(found.rank_trace, [found.call.id])[found.call.id]
    case = _case(found, recorded, options)
    reproduced = _reproduced(case, recorded, found.rank_trace, trace, options)
    return _write(out, case, recorded, reproduced, found.rank_trace, options)


def _write(
    out: Path,
    case: CaseId,
    recorded: RecordedCall,
    reproduced: "Reproduced | ReproducedOp",
    rank: RankTrace,
    options: ReproOptions,
) -> ReproResult:
    values = [*recorded.inputs.values(), *recorded.outputs.values()]
    device = options.device or next((value.device for value in values if value.device != "cpu"), "cpu")
    shown = reproduced.reproduction(_title(recorded.call, rank), device=device)
    limits = script_limits(reproduced.evidence)
    script = op_script_text(shown, limits) if isinstance(shown, OpReproduction) else script_text(shown, limits)
    try:
        out.mkdir(parents=True, exist_ok=True)
        reproduced.write_data(out / DATA, {each.place: expected_error(each) for each in reproduced.evidence})
        (out / SCRIPT).write_text(script, encoding="utf-8")
        (out / TEST).write_text(test_text(shown), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise UlpscopeError(
            f"{out} cannot be written: {error}",
            expected="a directory that you may create and write",
            next_step=_ELSEWHERE,
        ) from error
    return ReproResult(
        out=out,
        call=recorded.call.name,
        source=case.source,
        variant=case.variant,
        device=device,
        lines=len(script.splitlines()),
        data_bytes=(out / DATA).stat().st_size,
    )


def check_files(out: Path, *, overwrite: bool) -> None:
    """Refuse a directory whose contents must stay: only an earlier script may go, and only if that was asked for."""
    if out.exists() and not out.is_dir():
        raise occupied(out, "is not a directory", next_step=_ELSEWHERE)
    present = sorted(entry.name for entry in out.iterdir()) if out.is_dir() else []
    others = [name for name in present if name not in (*FILES, "__pycache__", ".pytest_cache")]
    if others:
        raise occupied(out, f"holds other files ({others[0]})", next_step=_ELSEWHERE)
    if present and not overwrite:
        raise occupied(out, "already holds a script; add --overwrite to replace it", next_step=_ELSEWHERE)


def _forward(found: FoundCall, trace: Trace) -> FoundCall:
    call = found.call
    if call.kind is Kind.BACKWARD and call.forward is not None:
        return FoundCall(found.rank_trace, found.rank_trace.call(call.forward))
    if call.kind is not Kind.API:
        raise UlpscopeError(
            f"{call.name} is no API call ({call.kind.value})",
            expected="a call of one operation, or its backward",
            next_step=f"see those of its module: ulpscope show {shlex.quote(str(trace.path))} --kind api",
        )
    return found


def _case(found: FoundCall, recorded: RecordedCall, options: ReproOptions) -> CaseId:
    saved = has_data(recorded)
    source = options.source or (DataSource.REAL if saved and options.variant is Variant.RECORDED else DataSource.RANDOM)
    call = recorded.call
    if source is DataSource.REAL and not saved:
        raise UlpscopeError(
            f"the data of {call.name} was not saved",
            expected="a trace with data",
            next_step="--data random; or capture again with: ulpscope run --save tensors",
        )
    if options.variant is Variant.LONG and not can_be_longer(recorded):
        raise UlpscopeError(
            f"--variant long with {call.name}",
            expected="a sum, a softmax or a matrix product along its last axis",
            next_step="leave out --variant",
        )
    return CaseId(found.rank_trace.name, call.id, call.name, call.op, options.variant, source)


def _reproduced(
    case: CaseId, recorded: RecordedCall, rank: RankTrace, trace: Trace, options: ReproOptions
) -> "Reproduced | ReproducedOp":
    reason = why_left(recorded)
    if reason is not None:
        raise _cannot(case, trace, reason)
    framework = needed_framework(trace)
    try:
        if framework is Framework.TENSORFLOW:
            from ulpscope.replay.tensorflow.reproduction import reproduce as reproduce_op

            return reproduce_op(case, recorded, rank, seed=options.seed)
        from ulpscope.replay.torch.reproduction import reproduce

        return reproduce(case, recorded, rank, seed=options.seed)
    except CannotReplayError as error:
        raise _cannot(case, trace, str(error)) from error
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise _cannot(case, trace, f"{type(error).__name__}: {first}") from error


def _cannot(case: CaseId, trace: Trace, reason: str) -> UlpscopeError:
    return UlpscopeError(
        f"{case.name} cannot be executed again: {reason}",
        expected="a call whose function, arguments and data are known",
        next_step=f"look at it: ulpscope show {shlex.quote(str(trace.path))} {case.call}",
    )


def _title(call: Call, rank: RankTrace) -> str:
    where = [rank.name, f"step {call.step}"]
    stack = () if call.stack is None else rank.stack(call.stack)
    if stack:
        where.append(f"{Path(stack[0].file).name}:{stack[0].line}")
    return f"{call.name} ({', '.join(where)})"
