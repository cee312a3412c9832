"""Writes one rank's part of a trace so that it stays readable if the process dies at any moment.

Every file is written aside under a name that starts with a dot, then renamed. Of a part, the calls file comes last:
where it exists, everything its calls point to exists too. Of a step, step.json comes last.
"""

import contextlib
import errno
import io
import itertools
import json
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
from polars.exceptions import PolarsError
from safetensors import SafetensorError

from ulpscope._version import __version__
from ulpscope.numerics.summaries.constants import SUMMARY_ID
from ulpscope.records.errors import TraceError
from ulpscope.records.runs import RankInfo, StepInfo
from ulpscope.trace.earlier_steps import ReachCollector
from ulpscope.trace.schema import (
    CLAIM_FILE,
    RANK_FILE,
    SCHEMA_MAJOR,
    SCHEMA_MINOR,
    STEP_FILE,
    STEPS_FILE,
    Table,
    block_name,
    columns_in,
    part_name,
    step_name,
)

# Sketches are noise to a compressor: higher levels of zstd take ten times as long and save under 1 %.
ZSTD_LEVEL = 3

# Looking up one row decodes its row group: of one group a file, that takes 0.2 s.
GROUP_ROWS = 4096

Json: TypeAlias = Mapping[str, Any]


def claim_rank_directory(out: Path, rank: int, *, run: str = "") -> Path:
    """Make the rank's directory; a second process of the same rank and run gets `rankN-p2`, a third `rankN-p3`.

    It appears together with its claim, so that of two runs which want it at the same time one is refused.
    """
    aside = out / f".rank{rank}-{platform.node()}-{os.getpid()}"
    claim = {"run": run, "host": platform.node(), "pid": os.getpid()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
        (aside / CLAIM_FILE).write_text(json.dumps(claim), encoding="utf-8")
        return _put_in_place(aside, out, rank, run=run)
    except FileExistsError:
        raise _unwritable(out, NotADirectoryError(errno.ENOTDIR, "it is not a directory")) from None
    except OSError as error:
        raise _unwritable(out / f"rank{rank}", error) from error
    finally:
        if aside.is_dir():
            drop_rank_directory(aside)


def _put_in_place(aside: Path, out: Path, rank: int, *, run: str) -> Path:
    for process in itertools.count(1):
        directory = out / (f"rank{rank}" if process == 1 else f"rank{rank}-p{process}")
        try:
            os.rename(aside, directory)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
        else:
            return directory
        claim = read_claim(directory)
        if claim.get("run") != run:
            raise _taken(directory, claim)
    raise AssertionError("there is a number beyond every other")


def read_claim(directory: Path) -> dict[str, Any]:
    """Which run a rank's directory belongs to: `run`, and the `host` and `pid` of its process; empty if nobody says."""
    try:
        claim = json.loads((directory / CLAIM_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return claim if isinstance(claim, dict) else {}


def drop_rank_directory(directory: Path) -> None:
    """Give a claim back: nothing was written."""
    for name in (CLAIM_FILE, RANK_FILE):
        _discard(directory / name)
    with contextlib.suppress(OSError):
        directory.rmdir()


def write_aside(path: Path, write: Callable[[Path], object]) -> int:
    """Let `write` fill a file beside `path`, then put it in place; gives its size."""
    aside = path.with_name(f".{path.name}")
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(exist_ok=True)
        write(aside)
        size = aside.stat().st_size
        os.replace(aside, path)
    except (OSError, PolarsError, SafetensorError) as error:
        _discard(aside)
        raise _unwritable(path, error) from error
    return size


class RankWriter:
    """The tables and descriptions of one process of a run."""

    def __init__(self, directory: Path, info: RankInfo | None) -> None:
        """Without `info` somebody else tells what is known about the run."""
        self.directory = directory
        self._parts: dict[int, int] = {}
        self._stack_parts = 0
        self._reach = ReachCollector(0)
        if info is not None:
            self.update(info)

    def update(self, info: RankInfo) -> None:
        """State anew what is known about the run so far."""
        description = {
            "schema": f"{SCHEMA_MAJOR}.{SCHEMA_MINOR}",
            "summary": SUMMARY_ID,
            "ulpscope": __version__,
            **asdict(info),
        }
        if info.closed is None:  # what is counted so far would be read as the count of a run that was killed
            description |= {"coverage": {}, "stepping": {}, "roots": []}
        _write_json(self.directory / RANK_FILE, description)

    def close(self, info: RankInfo) -> None:
        """State how the run ended; `info.closed` tells a reader that nothing is missing."""
        self.update(info)

    def write_part(
        self,
        step: int,
        *,
        calls: pl.DataFrame,
        values: pl.DataFrame,
        tensors: pl.DataFrame,
        stacks: pl.DataFrame,
    ) -> int:
        """Write what happened since the last part of this step; gives the bytes written.

        Columns that are left out are written as nulls. Data that values point to must lie on disk already.
        """
        folder, part = self.directory / step_name(step), self._parts.get(step, 0)
        self._reach_of(step).add(calls=calls, values=values, tensors=tensors)
        size = self.write_stacks(stacks)
        size += _write_table(folder, "values", part, values)
        size += _write_table(folder, "tensors", part, tensors)
        size += _write_table(folder, "calls", part, calls)
        self._parts[step] = part + 1
        return size

    def write_stacks(self, stacks: pl.DataFrame) -> int:
        """Write those that were first met; gives the bytes written."""
        if stacks.is_empty():
            return 0
        self._stack_parts += 1
        return _write_table(self.directory, "stacks", self._stack_parts - 1, stacks)

    def write_block(self, number: int, tables: Mapping[str, pl.DataFrame], steps: Sequence[Json]) -> int:
        """Write whole steps that share a directory, or write it anew with more of them; gives its size."""
        folder = self.directory / block_name(number)
        names: tuple[Table, ...] = ("values", "tensors", "calls")
        size = sum(_write_table(folder, name, 0, tables[name]) for name in names)
        return size + _write_json(folder / STEPS_FILE, {"steps": steps})

    def drop_step(self, step: int) -> None:
        """Remove the tables of a step that is in a block by now."""
        folder = self.directory / step_name(step)
        names: tuple[Table, ...] = ("calls", "values", "tensors")
        for part in range(self._parts.pop(step, 0)):
            for name in names:
                _discard(folder / part_name(name, part))
        with contextlib.suppress(OSError):  # saved data stays
            folder.rmdir()

    def finish_step(self, info: StepInfo) -> None:
        """Mark a step as whole."""
        reach = self._reach_of(info.step).reach()
        _write_json(self.directory / step_name(info.step) / STEP_FILE, asdict(info) | reach.to_json())

    def move(self, new_directory: Path) -> None:
        """Go on in another directory: a process may learn its rank after it has begun to write.

        `new_directory` may be one that `claim_rank_directory` has just made.
        """
        try:
            (new_directory / CLAIM_FILE).unlink(missing_ok=True)  # this one's own comes with it
            os.rename(self.directory, new_directory)
        except OSError as error:
            raise _unwritable(new_directory, error) from error
        self.directory = new_directory

    def _reach_of(self, step: int) -> ReachCollector:
        """That of the step which is written; a step that is finished twice goes on with its own."""
        if self._reach.step != step:
            self._reach = ReachCollector(step)
        return self._reach


def _write_table(folder: Path, table: Table, part: int, frame: pl.DataFrame) -> int:
    columns = columns_in(folder, table)
    if [*frame.schema.items()] != [*columns.items()]:
        whole = [
            pl.col(name).cast(dtype) if name in frame.columns else pl.lit(None).cast(dtype).alias(name)
            for name, dtype in columns.items()
        ]
        frame = frame.select(whole).head(frame.height)

    # Into memory first: of a file that cannot be written, polars says "transport error" instead of why.
    content = io.BytesIO()
    frame.write_parquet(content, compression="zstd", compression_level=ZSTD_LEVEL, row_group_size=GROUP_ROWS)
    return write_aside(folder / part_name(table, part), lambda aside: aside.write_bytes(content.getbuffer()))


def _write_json(path: Path, content: Json) -> int:
    text = json.dumps(content, indent=1, default=str)
    return write_aside(path, lambda aside: aside.write_text(text, encoding="utf-8"))


def _discard(aside: Path) -> None:
    with contextlib.suppress(OSError):
        aside.unlink(missing_ok=True)


def _taken(directory: Path, claim: Mapping[str, Any]) -> TraceError:
    who = f"process {claim['pid']} on {claim['host']}" if {"pid", "host"} <= claim.keys() else "an earlier run"
    return TraceError(
        f"{directory} belongs to another run ({who})",
        expected="a directory for each run; processes of one job may share it, as long as their ranks differ",
        next_step="choose another directory with -o; ranks without a launcher need RANK and WORLD_SIZE, or a process "
        "group before the capture begins",
    )


# By what the system says: what was expected, and what to do.
_ADVICE = {
    errno.ENOSPC: (
        "free space and free inodes on that disk",
        "see df -h and df -i; free some, or choose another disk with -o",
    ),
    errno.EDQUOT: ("room within your quota", "see quota -s; free some of it, or choose another disk with -o"),
    errno.EFBIG: ("files as large as a part of a step", "raise the limit (ulimit -f unlimited), or save less"),
    errno.EROFS: ("a file system that can be written", "mount it for writing, or choose another directory with -o"),
    errno.ENOENT: ("the trace to stay where it is while the run writes", "do not move or remove it; capture again"),
}
_OTHER_ADVICE = ("a directory that can be written", "check its permissions, or choose another directory with -o")


def _unwritable(path: Path, error: Exception) -> TraceError:
    # safetensors is written in Rust, whose errors end in `(os error 28)`.
    told = re.search(r"\(os error (\d+)\)", str(error))
    number = int(told[1]) if told else None
    if isinstance(error, OSError):
        number = error.errno
    reason = str(error) if number is None else os.strerror(number)
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    expected, next_step = _ADVICE.get(number or 0, _OTHER_ADVICE)
    return TraceError(f"cannot write {path}: {reason}", expected=expected, next_step=next_step)
