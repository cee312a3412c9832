"""Looks over a rank's directory: which steps and parts are there, and what is missing."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ulpscope.records.errors import TraceError
from ulpscope.records.remarks import Counted, remark
from ulpscope.records.runs import StepInfo
from ulpscope.trace.description import read_step
from ulpscope.trace.earlier_steps import Reach
from ulpscope.trace.schema import CLAIM_FILE, RANK_FILE, STEP_FILE, Table, part_name, step_name

# As step_name and part_name write them: another spelling of a number, or one beyond all counting, is none of ours.
_STEP = re.compile(r"step(0|[1-9]\d{0,17})")
_NUMBER = r"(\d{3}|[1-9]\d{3,8})"
_PART = re.compile(rf"(calls|values|tensors)-{_NUMBER}\.parquet")
_STACKS = re.compile(rf"stacks-{_NUMBER}\.parquet")
_DATA = re.compile(r"data-\d+\.safetensors")
GAPS_TOLD = 100
"""A number that was changed must not make us count to it."""
_STEP_TABLES: tuple[Table, ...] = ("calls", "values", "tensors")


@dataclass(frozen=True, slots=True)
class StepParts:
    """The readable parts of one step: those whose calls file is there."""

    step: int
    info: StepInfo | None
    """None while step.json is not there: the step is unfinished."""
    reach: Reach | None
    """What it points to in earlier steps, where step.json says so."""
    parts: dict[str, tuple[int, ...]]
    """Part numbers by table."""
    missing: tuple[str, ...]

    def files(self, directory: Path, table: Table) -> list[Path]:
        return [directory / step_name(self.step) / part_name(table, part) for part in self.parts[table]]


@dataclass(frozen=True, slots=True)
class RankParts:
    """Everything readable of one rank."""

    directory: Path
    steps: dict[int, StepParts]
    stacks: tuple[int, ...]
    missing: tuple[str, ...]

    def files(self, table: Table, steps: Iterable[int]) -> list[Path]:
        if table == "stacks":
            return [self.directory / part_name(table, part) for part in self.stacks]
        return [file for step in steps for file in self.steps[step].files(self.directory, table)]


def survey_rank(directory: Path) -> RankParts:
    """List what a rank's directory holds, without opening any table."""
    names = _names(directory)
    numbers = sorted(int(match[1]) for name in names if (match := _STEP.fullmatch(name)))
    surveyed = [_survey_step(directory / step_name(number), number) for number in numbers]
    stacks = sorted(int(match[1]) for name in names if (match := _STACKS.fullmatch(name)))
    known = {RANK_FILE, CLAIM_FILE, *map(step_name, numbers), *(part_name("stacks", part) for part in stacks)}
    missing = [sentence for step in surveyed for sentence in step.missing]
    missing += [remark("stacks_missing", file=part_name("stacks", part)) for part in _gaps(stacks)]
    missing += [_stray(name) for name in names if name not in known]
    return RankParts(
        directory=directory,
        steps={step.step: step for step in surveyed if step.info or step.parts["calls"]},
        stacks=tuple(stacks),
        missing=tuple(missing),
    )


def _survey_step(folder: Path, step: int) -> StepParts:
    names = _names(folder)
    found: dict[Table, set[int]] = {table: set() for table in _STEP_TABLES}
    stray = []
    for name in names:
        if match := _PART.fullmatch(name):
            found[match[1]].add(int(match[2]))  # type: ignore[index]
        elif name != STEP_FILE and not _DATA.fullmatch(name):
            stray.append(_stray(f"{folder.name}/{name}"))
    info, reach = read_step(folder / STEP_FILE, step) if STEP_FILE in names else (None, None)
    committed = found["calls"]
    missing = [*_unfinished(step, info, len(committed)), *_incomplete(step, found), *stray]
    parts = {str(table): tuple(sorted(found[table] & committed)) for table in _STEP_TABLES}
    return StepParts(step=step, info=info, reach=reach, parts=parts, missing=tuple(missing))


def _unfinished(step: int, info: StepInfo | None, parts: int) -> list[str]:
    if info is None:
        return [remark("step_unfinished", step=step, parts=Counted(parts, "part"))]
    if info.parts > parts:
        return [remark("step_parts", step=step, found=parts, parts=Counted(info.parts, "part"))]
    return []


def _incomplete(step: int, found: dict[Table, set[int]]) -> list[str]:
    sentences = []
    for part in sorted(set().union(*found.values())):
        absent = [table for table in _STEP_TABLES if part not in found[table]]
        if "calls" in absent:
            sentences.append(remark("part_unread", part=f"{part:03d}", step=step))
        elif absent:
            sentences.append(remark("part_incomplete", part=f"{part:03d}", step=step, tables=" and ".join(absent)))
    return sentences


def _gaps(numbers: list[int]) -> list[int]:
    known = set(numbers)
    absent = (number for number in range(max(numbers, default=-1) + 1) if number not in known)
    return list(islice(absent, GAPS_TOLD))


def _stray(name: str) -> str:
    if Path(name).name.startswith("."):
        return remark("half_written", file=name)
    return remark("not_of_a_trace", file=name)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise TraceError(
            f"{folder} cannot be listed: {error.strerror}",
            expected="a readable directory of a trace",
            next_step="check its permissions, or copy the trace again",
        ) from error
