"""cases.jsonl: results of a check as they arrive, so that one that was interrupted goes on where it ended.

The first line tells what the results depend on; a check that asks for something else does not go on with them. A line
that was cut off by a kill is dropped.

Everything that a report is made of goes through the same JSON, between processes and in the file, so that a resumed
check cannot tell other numbers than a single one. Floats that JSON has no number for are text: "nan", "inf", "-inf".
"""

import json
import shlex
import shutil
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar, get_args, get_origin, get_type_hints

from ulpscope.records.check_runs import CheckedCase, CheckOptions, CheckStandard
from ulpscope.records.checks import CaseResult
from ulpscope.records.errors import UlpscopeError
from ulpscope.replay.frameworks import Framework
from ulpscope.report.record_json import to_json
from ulpscope.trace.files import LARGEST_DESCRIPTION, LARGEST_DUMP, open_file, parse_json, read_bytes
from ulpscope.trace.reader import Trace
from ulpscope.workflows.results import SUMMARY, check_result, prepare_result

Message = dict[str, Any]
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The first line that a worker reads."""

    trace: str
    device: str
    seed: int
    standard: CheckStandard
    framework: Framework = Framework.TORCH
    references: tuple[Path, ...] = ()
    failing: Path | None = None
    """Where the tensors of failing cases go."""
    figures: bool = False
    """Whether every metric is wanted, also those that no verdict needs."""


def checked_json(checked: CheckedCase) -> Message:
    """A result with everything that reports are made of."""
    result = record_json(checked.result)
    metrics = ({name: to_json(float(figure)) for name, figure in output.metrics} for output in checked.result.outputs)
    outputs = [output | {"metrics": figures} for output, figures in zip(result["outputs"], metrics, strict=True)]
    told = {"case": result["case"], "device": checked.device} | result | {"outputs": outputs}
    return told | {"seconds": round(checked.result.seconds, 6)}


def checked_from_json(message: Message) -> CheckedCase:
    """The result that `checked_json` wrote."""
    outputs = [output | {"metrics": list(output["metrics"].items())} for output in message["outputs"]]
    return CheckedCase(record_from_json(CaseResult, message | {"outputs": outputs}), str(message["device"]))


def record_json(record: Any) -> Message:
    """A record by its fields."""
    message: Message = to_json(record)
    return message


def json_line(message: Any) -> str:
    """A message between processes, or a line of the file; numbers may still be numpy's."""
    return json.dumps(message, allow_nan=False, default=lambda number: to_json(number.item())) + "\n"


def record_from_json(kind: type[Record], message: Message) -> Record:
    """The record that `record_json` wrote; errors as of any wrong value where it wrote none."""
    described: Any = kind
    return kind(**{name: _typed(hint, message[name]) for name, hint in _hints(described).items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _typed(hint: Any, value: Any) -> Any:
    """A value of a field's type; none only where the field may be none."""
    inner = get_args(hint)
    if type(None) in inner:
        return None if value is None else _typed(inner[0], value)
    if get_origin(hint) is tuple:
        of = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(_typed(each, item) for each, item in zip(of, value, strict=True))
    if isinstance(hint, type) and is_dataclass(hint):
        return record_from_json(hint, value)
    return hint(value)


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
        self._file.write(json_line(message))


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
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
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
