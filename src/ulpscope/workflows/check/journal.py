"""cases.jsonl: results of a check as they arrive, so that one that was interrupted goes on where it ended.

The first line tells what the results depend on; a check that asks for something else does not go on with them. A line
that was cut off by a kill is dropped.
"""

import json
import shlex
import shutil
from pathlib import Path
from typing import IO

from ulpscope.records.check_runs import CheckedCase, CheckOptions
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.files import LARGEST_DESCRIPTION, LARGEST_DUMP, open_file, parse_json, read_bytes
from ulpscope.trace.reader import Trace
from ulpscope.workflows.check.messages import Message, checked_from_json, checked_json
from ulpscope.workflows.results import SUMMARY, check_result, prepare_result

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
