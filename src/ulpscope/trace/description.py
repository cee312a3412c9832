"""Looks over a rank's directory: which steps and parts are there, what rank.json and step.json say, what is missing.

An unreadable file is named with the field that is wrong.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ulpscope.records.errors import TraceError
from ulpscope.records.remarks import Counted, remark
from ulpscope.records.runs import Coverage, IntRanges, RankInfo, Root, StepInfo, Stepping
from ulpscope.trace.earlier_steps import REACH_FIELDS, Reach
from ulpscope.trace.files import damaged, read_json
from ulpscope.trace.schema import (
    ANOMALIES_FILE,
    BLOCK,
    CLAIM_FILE,
    RANK_FILE,
    SCHEMA_MAJOR,
    SCHEMA_MINOR,
    STEP_FILE,
    STEPS_FILE,
    Table,
    part_name,
    step_name,
)

COUNTS_END = 2**63
"""What a column of a table holds: every number of these files counts or numbers something."""


def read_rank_info(path: Path) -> RankInfo:
    """What rank.json says about the process, if this version of ulpscope can read its trace."""
    # Missing in traces of versions that did not count them.
    content = {"stepping": {}, "roots": []} | _read_object(path)
    _check_version(path, content)
    held = _fields(path, RankInfo, content)
    # What a capture had counted when it began to write says nothing about a run that it did not see the end of.
    held["coverage"] = Coverage() if held["closed"] is None else _coverage(path, held["coverage"])
    counts = asdict(Stepping()) | held["stepping"]
    held["stepping"] = Stepping(**_fields(path, Stepping, counts, within="stepping."))
    held["roots"] = tuple(_root(path, entry) for entry in held["roots"])
    texts = {name: tuple(map(str, held[name])) for name in ("devices", "errors")}
    return RankInfo(**held | texts)


def read_summary_id(path: Path) -> str:
    """Which constants made this rank's sketches and digests; those of different ids cannot be compared."""
    return str(_field(path, _read_object(path), "summary", (str,)))


def read_step(path: Path, step: int) -> tuple[StepInfo, Reach | None]:
    """What step.json says about a finished step, and what it points to in earlier ones."""
    content = _read_object(path)
    if content.get("step") != step:
        raise damaged(f"{path} field step holds {_short(content.get('step'))}, not {step} as its directory says")
    return _whole_step(path, content)


def read_steps(path: Path) -> list[tuple[StepInfo, Reach | None]]:
    """What steps.json says about the steps of a block."""
    told = [_whole_step(path, entry) for entry in _field(path, _read_object(path), "steps", (list,))]
    numbers = [info.step for info, _ in told]
    if numbers != sorted(set(numbers)):
        raise damaged(f"{path} field steps does not hold each step once, in their order")
    return told


def _whole_step(path: Path, content: Any) -> tuple[StepInfo, Reach | None]:
    if not isinstance(content, dict):
        raise damaged(f"{path} field steps holds {_short(content)}, not an object")
    info = StepInfo(**_fields(path, StepInfo, content))
    if any(name not in content for name in REACH_FIELDS.values()):  # written by version 1.0
        return info, None
    return info, Reach(**{rows: _ranges(path, content, name) for rows, name in REACH_FIELDS.items()})


def _ranges(path: Path, content: dict[str, Any], name: str) -> IntRanges:
    pairs = _field(path, content, name, (list,))
    for pair in pairs:
        if not isinstance(pair, list) or [type(end) for end in pair] != [int, int] or not 0 <= pair[0] <= pair[1]:
            raise damaged(f"{path} field {name} holds {_short(pair)}, not a first and a last id")
    return IntRanges(tuple((low, high) for low, high in pairs))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except OSError as error:
        raise damaged(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise damaged(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise damaged(f"{path} does not hold a JSON object")
    return content


def _check_version(path: Path, content: dict[str, Any]) -> None:
    schema = str(_field(path, content, "schema", (str,)))
    if schema.split(".")[0] != str(SCHEMA_MAJOR):
        raise TraceError(
            f"{path}: field schema says {schema!r}",
            expected=f"version {SCHEMA_MAJOR}.x; this ulpscope writes {SCHEMA_MAJOR}.{SCHEMA_MINOR}",
            next_step=f"read it with ulpscope {content.get('ulpscope', 'unknown')}, which wrote it, or capture again",
        )


def _coverage(path: Path, content: dict[str, Any]) -> Coverage:
    found = _fields(path, Coverage, asdict(Coverage()) | content)
    for name, counts in found.items():
        for reason in counts if isinstance(counts, dict) else ():
            _field(path, counts, reason, (int,), within=f"coverage.{name}.")
    return Coverage(**found)


def _root(path: Path, entry: Any) -> Root:
    if not isinstance(entry, dict):
        raise damaged(f"{path} field roots holds {_short(entry)}, not an object")
    return Root(**_fields(path, Root, entry, within="roots."))


def _fields(path: Path, kind: type, content: dict[str, Any], *, within: str = "") -> dict[str, Any]:
    """What JSON has for each field of a record; records and lists inside of it are looked at by who asks."""
    return {name: _field(path, content, name, types, within=within) for name, types in _json_types(kind).items()}


@cache
def _json_types(kind: type) -> dict[str, tuple[type, ...]]:
    types: dict[str, tuple[type, ...]] = {}
    for name, told in get_type_hints(kind).items():
        held = get_origin(told) or told
        known = {tuple: (list,), float: (int, float), UnionType: get_args(told)}
        types[name] = known.get(held, (dict if is_dataclass(held) else held,))
    return types


def _field(path: Path, content: dict[str, Any], name: str, types: tuple[type, ...], *, within: str = "") -> Any:
    if name not in content:
        raise damaged(f"{path} has no field {within}{name}")
    found = content[name]
    if not isinstance(found, types) or (isinstance(found, bool) and bool not in types):
        wanted = " or ".join(kind.__name__ for kind in types)
        raise damaged(f"{path} field {within}{name} holds {_short(found)}, not {wanted}")
    if isinstance(found, int) and not 0 <= found < COUNTS_END:
        raise damaged(f"{path} field {within}{name} holds {_short(found)}, not a count")
    return found


def _short(found: object) -> str:
    text = repr(found)
    return text if len(text) <= 60 else f"{text[:57]}..."


# As step_name and part_name write them: another spelling of a number, or one beyond all counting, is none of ours.
_STEP = re.compile(r"step(0|[1-9]\d{0,17})")
_PART_NUMBER = r"(\d{3}|[1-9]\d{3,8})"
_PART = re.compile(rf"(calls|values|tensors)-{_PART_NUMBER}\.parquet")
_STACKS = re.compile(rf"stacks-{_PART_NUMBER}\.parquet")
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
    folder: str
    """Where they lie: a directory of its own, or a block."""
    parts: dict[str, tuple[int, ...]]
    """Part numbers by table."""
    missing: tuple[str, ...] = ()

    def files(self, directory: Path, table: Table) -> list[Path]:
        return [directory / self.folder / part_name(table, part) for part in self.parts[table]]


@dataclass(frozen=True, slots=True)
class RankParts:
    """Everything readable of one rank."""

    directory: Path
    steps: dict[int, StepParts]
    stacks: tuple[int, ...]
    missing: tuple[str, ...]

    def files(self, table: Table, steps: Iterable[int]) -> list[Path]:
        """Each once; those of blocks also have rows of other steps."""
        if table == "stacks":
            return [self.directory / part_name(table, part) for part in self.stacks]
        return list(dict.fromkeys(file for step in steps for file in self.steps[step].files(self.directory, table)))

    def is_in_block(self, step: int) -> bool:
        return BLOCK.fullmatch(self.steps[step].folder) is not None


def survey_rank(directory: Path) -> RankParts:
    """List what a rank's directory holds, without opening any table."""
    names = _names(directory)
    blocks = [_survey_block(directory / name) for name in names if BLOCK.fullmatch(name)]
    together = _together(directory, [step for block in blocks for step in block.steps])
    numbers = sorted(int(match[1]) for name in names if (match := _STEP.fullmatch(name)))
    single = [_survey_step(directory / step_name(number), number) for number in numbers if number not in together]
    surveyed = sorted([*together.values(), *single], key=lambda step: step.step)
    stacks = sorted(int(match[1]) for name in names if (match := _STACKS.fullmatch(name)))
    tables = {*map(step_name, numbers), *(part_name("stacks", part) for part in stacks)}
    known = {RANK_FILE, CLAIM_FILE, ANOMALIES_FILE, *tables, *(block.name for block in blocks)}
    missing = [sentence for step in surveyed for sentence in step.missing]
    missing += [sentence for block in blocks for sentence in block.missing]
    files = (part_name("stacks", part) for part in range(max(stacks, default=-1) + 1))
    absent = (file for file in files if file not in known)
    missing += [remark("stacks_missing", file=file) for file in islice(absent, GAPS_TOLD)]
    missing += [_stray(name) for name in names if name not in known]
    return RankParts(
        directory=directory,
        steps={step.step: step for step in surveyed if step.info or step.parts["calls"]},
        stacks=tuple(stacks),
        missing=tuple(missing),
    )


@dataclass(frozen=True, slots=True)
class _Block:
    name: str
    steps: tuple[StepParts, ...]
    missing: tuple[str, ...]


def _survey_block(folder: Path) -> _Block:
    names = _names(folder)
    tables = {str(table): part_name(table, 0) for table in _STEP_TABLES}
    missing = [_stray(f"{folder.name}/{name}") for name in names if name not in {STEPS_FILE, *tables.values()}]
    absent = [name for name in (*tables.values(), STEPS_FILE) if name not in names]
    if absent:
        missing.append(remark("block_incomplete", block=folder.name, files=" and ".join(absent)))
        return _Block(folder.name, (), tuple(missing))
    parts: dict[str, tuple[int, ...]] = dict.fromkeys(tables, (0,))
    steps = (StepParts(info.step, info, reach, folder.name, parts) for info, reach in read_steps(folder / STEPS_FILE))
    return _Block(folder.name, tuple(steps), tuple(missing))


def _together(directory: Path, steps: list[StepParts]) -> dict[int, StepParts]:
    """Steps of blocks, by their number."""
    found: dict[int, StepParts] = {}
    for step in steps:
        other = found.setdefault(step.step, step)
        if other is not step:
            raise damaged(f"{directory / step.folder / STEPS_FILE} has step {step.step}, which {other.folder} has, too")
    return found


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
    return StepParts(step, info, reach, folder.name, parts, tuple(missing))


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


def _stray(name: str) -> str:
    is_aside = Path(name).name.startswith(".")
    return remark("half_written", file=name) if is_aside else remark("not_of_a_trace", file=name)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise TraceError(
            f"{folder} cannot be listed: {error.strerror}",
            expected="a readable directory of a trace",
            next_step="check its permissions, or copy the trace again",
        ) from error
