"""cases.jsonl: results of a check as they arrive, so that one that was interrupted goes on where it ended.

The first line tells what the results depend on; a check that asks for something else does not go on with them. A line
that was cut off by a kill is dropped.

Cases and their results as JSON: between processes, and in cases.jsonl.

Everything that a report is made of went through here, so that a resumed check cannot tell other numbers than a single
one. Floats that JSON has no number for are written as text: "nan", "inf", "-inf".
"""

import json
import math
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ulpscope.records.check_runs import CheckedCase, CheckOptions, CheckStandard
from ulpscope.records.checks import CaseId, CaseResult, DataSource, Direction, OutputResult, Variant, Verdict
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.files import LARGEST_DESCRIPTION, LARGEST_DUMP, open_file, parse_json, read_bytes
from ulpscope.trace.reader import Trace
from ulpscope.workflows.results import SUMMARY, check_result, prepare_result

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The first line that a worker reads."""

    trace: str
    device: str
    seed: int
    standard: CheckStandard
    references: tuple[Path, ...] = ()
    failing: Path | None = None
    """Where the tensors of failing cases go."""
    figures: bool = False
    """Whether every metric is wanted, also those that no verdict needs."""

    def json(self) -> Message:
        return {
            "trace": self.trace,
            "device": self.device,
            "seed": self.seed,
            "standard": self.standard.value,
            "references": [str(path) for path in self.references],
            "failing": None if self.failing is None else str(self.failing),
            "figures": self.figures,
        }

    @classmethod
    def from_json(cls, message: Message) -> "WorkerSettings":
        return cls(
            trace=str(message["trace"]),
            device=str(message["device"]),
            seed=int(message["seed"]),
            standard=CheckStandard(message["standard"]),
            references=tuple(Path(path) for path in message["references"]),
            failing=None if message["failing"] is None else Path(message["failing"]),
            figures=bool(message["figures"]),
        )


def case_json(case: CaseId) -> Message:
    """What a worker needs to find and execute a case."""
    return {
        "process": case.process,
        "call": case.call,
        "name": case.name,
        "op": case.op,
        "variant": case.variant.value,
        "source": case.source.value,
    }


def case_from_json(message: Message) -> CaseId:
    """The case that `case_json` wrote."""
    return CaseId(
        process=str(message["process"]),
        call=int(message["call"]),
        name=str(message["name"]),
        op=str(message["op"]),
        variant=Variant(message["variant"]),
        source=DataSource(message["source"]),
    )


def checked_json(checked: CheckedCase) -> Message:
    """A result with everything that reports are made of."""
    result = checked.result
    return {
        "case": case_json(result.case),
        "device": checked.device,
        "forward": None if result.forward is None else result.forward.value,
        "backward": None if result.backward is None else result.backward.value,
        "message": result.message,
        "outputs": [_output_json(output) for output in result.outputs],
        "seconds": round(result.seconds, 6),
    }


def checked_from_json(message: Message) -> CheckedCase:
    """The result that `checked_json` wrote."""
    result = CaseResult(
        case=case_from_json(message["case"]),
        forward=_verdict(message["forward"]),
        backward=_verdict(message["backward"]),
        message=str(message["message"]),
        outputs=tuple(_output_from_json(output) for output in message["outputs"]),
        seconds=float(message["seconds"]),
    )
    return CheckedCase(result, str(message["device"]))


def _output_json(output: OutputResult) -> Message:
    return {
        "place": output.place,
        "direction": output.direction.value,
        "verdict": output.verdict.value,
        "statistic": output.statistic,
        "message": output.message,
        "dtype": output.dtype,
        "shape": list(output.shape),
        "worst": None if output.worst is None else [int(index) for index in output.worst],
        "worst_computed": _number(output.worst_computed),
        "worst_exact": _number(output.worst_exact),
        "metrics": {name: _number(figure) for name, figure in output.metrics},
    }


def _output_from_json(message: Message) -> OutputResult:
    return OutputResult(
        place=str(message["place"]),
        direction=Direction(message["direction"]),
        verdict=Verdict(message["verdict"]),
        statistic=str(message["statistic"]),
        message=str(message["message"]),
        dtype=message["dtype"],
        shape=tuple(message["shape"]),
        worst=None if message["worst"] is None else tuple(message["worst"]),
        worst_computed=_float(message["worst_computed"]),
        worst_exact=_float(message["worst_exact"]),
        metrics=tuple((name, float(figure)) for name, figure in message["metrics"].items()),
    )


def _verdict(text: str | None) -> Verdict | None:
    return None if text is None else Verdict(text)


def _number(figure: float | None) -> float | str | None:
    if figure is None:
        return None
    return float(figure) if math.isfinite(figure) else str(float(figure))


def _float(figure: float | str | None) -> float | None:
    return None if figure is None else float(figure)


CASES = "cases.jsonl"
FAILING = "failing"
SCHEMA = 1


class Journal:
    """A result directory while a check is running."""

    def __init__(self, out: Path, *, heading: Message, done: dict[str, CheckedCase]) -> None:
        self.out = out
        self.done = done
        """By the text of their cases: what an earlier check has found."""
        self._path = out / CASES
        aside = out / f"{CASES}.new"
        try:
            self._file: IO[str] = open(aside, "w", encoding="utf-8")  # noqa: SIM115 - closed by close()
            self._write(heading)
            for checked in done.values():
                self._write(checked_json(checked))
            self._file.flush()
            # Only now: a kill in between must not lose the earlier results.
            aside.replace(self._path)
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def add(self, checked: CheckedCase) -> None:
        """Keep a result, also if this process is killed right after."""
        try:
            self._write(checked_json(checked))
            self._file.flush()
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def close(self) -> None:
        self._file.close()

    def _write(self, message: Message) -> None:
        self._file.write(json.dumps(message, allow_nan=False) + "\n")


def begin_journal(out: Path, trace: Trace, options: CheckOptions, *, overwrite: bool) -> Journal:
    """A directory without an earlier result; that one goes only if it was asked for."""
    if overwrite and is_unfinished(out):
        (out / CASES).unlink()
        (out / f"{CASES}.new").unlink(missing_ok=True)
        shutil.rmtree(out / FAILING, ignore_errors=True)
    prepare_result(out, overwrite=overwrite)
    return Journal(out, heading=heading_of(trace, options), done={})


def resume_journal(out: Path, trace: Trace, options: CheckOptions) -> Journal:
    """Go on with the result in `out`; begin one if there is none."""
    if not (out / CASES).is_file():
        return begin_journal(out, trace, options, overwrite=False)
    heading, wanted = _read_heading(out / CASES), heading_of(trace, options)
    for key, told in wanted.items():
        if heading.get(key) != told:
            raise UlpscopeError(
                f"{out / CASES} was begun with {key} {_short(heading.get(key))}, not {_short(told)}",
                expected="the trace and the options that the earlier check had",
                next_step=f"choose another directory for --out, or begin anew: --out {shlex.quote(str(out))} "
                "--overwrite instead of --resume",
            )
    return Journal(out, heading=heading, done=read_results(out / CASES))


def check_destination(out: Path, *, overwrite: bool, resume: bool) -> None:
    """Refuse at once, before anything is computed, a directory whose contents must stay."""
    if resume and (out / CASES).is_file():
        _read_heading(out / CASES)
    elif is_unfinished(out):
        if not overwrite:
            raise UlpscopeError(
                f"{out} already holds a check that was not finished",
                expected="a directory that does not exist yet or is empty",
                next_step=f"go on with it: --out {shlex.quote(str(out))} --resume; or replace it: --overwrite",
            )
    else:
        check_result(out, overwrite=overwrite)


def is_unfinished(out: Path) -> bool:
    """Whether a check was killed before it could write its summary."""
    if (out / SUMMARY).exists() or not (out / CASES).is_file():
        return False
    others = {entry.name for entry in out.iterdir()} - {CASES, f"{CASES}.new", FAILING}
    try:
        _read_heading(out / CASES)
    except UlpscopeError:
        return False
    return not others


def heading_of(trace: Trace, options: CheckOptions) -> Message:
    """What results depend on, beside the case."""
    return {
        "schema": SCHEMA,
        "command": "check",
        # Dumps of other tools do not say when they were made.
        "trace": [[rank.name, rank.info.started, str(rank.directory.resolve())] for rank in trace.ranks],
        "devices": list(options.devices),
        "seed": options.seed,
        "standard": options.standard.value,
        "references": [str(path.resolve()) for path in options.references],
    }


def _read_heading(path: Path) -> Message:
    try:
        with open_file(path) as file:
            heading = parse_json(file.readline(LARGEST_DESCRIPTION))
        if isinstance(heading, dict) and heading.get("command") == "check":
            return heading
        problem = "its first line is not that of a check"
    except OSError as error:
        problem = error.strerror or str(error)
    except ValueError as error:
        problem = str(error)
    raise UlpscopeError(
        f"{path} cannot be read: {problem}",
        expected=f"the {CASES} that an earlier `ulpscope check --out` wrote",
        next_step="choose another directory for --out",
    )


def read_results(path: Path) -> dict[str, CheckedCase]:
    """What a check has written, by the text of the case."""
    _read_heading(path)
    done: dict[str, CheckedCase] = {}
    lines = read_bytes(path, limit=LARGEST_DUMP).splitlines()[1:]
    for number, line in enumerate(lines, start=2):
        try:
            checked = checked_from_json(parse_json(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines) + 1:
                break
            raise UlpscopeError(
                f"{path}, line {number}, cannot be read: {error}",
                expected="the lines that an earlier check wrote",
                next_step="choose another directory for --out, or begin anew with --overwrite",
            ) from error
        done[checked.result.case.text] = checked
    return done


def _short(told: object) -> str:
    text = json.dumps(told)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _unwritable(path: Path, error: OSError) -> UlpscopeError:
    return UlpscopeError(
        f"{path} cannot be written: {error.strerror or error}",
        expected="a directory with room that may be written",
        next_step="choose another directory for --out; what was written so far goes on with --resume",
    )
