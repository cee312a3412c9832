"""Reads msprobe's JSON files; what is not one, or holds something else than it should, is named by file and field.

A compare.json, which users of msprobe have, says which two dumps its compare command was to compare:
{"npu_path": "./npu/step0/rank0/dump.json", "bench_path": "./gpu/step0/rank0/dump.json", "stack_path": "..."}
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.trace.files import LARGEST_DUMP, open_file, read_json
from ulpscope.trace.objects import collector_paused

HEADER_BYTES = 65_536
_HEADER_FIELD = re.compile(r'"(task|level|framework)"\s*:\s*"([^"\\]{0,40})"')
_CONFIG_FIELD = re.compile(r'"dump_path"\s*:')
"""What a config.json has, which says task and level, too."""
_STEP = re.compile(r"step(\d{1,9})")
_DATA_BEGINS = re.compile(r'"data"\s*:\s*\{')


@dataclass(frozen=True, slots=True)
class Header:
    """What stands at the top of dump.json; texts that are not there are empty."""

    task: str = ""
    level: str = ""
    framework: str = ""


def read_header(path: Path) -> Header | None:
    """The top of a dump without reading the rest; none if this is not the top of a dump."""
    try:
        with open_file(path) as file:
            text = file.read(HEADER_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise bad_file(path, f"cannot be read: {error.strerror}") from error
    begins = _DATA_BEGINS.search(text)
    top = text[: begins.start()] if begins else text
    found = dict(_HEADER_FIELD.findall(top))
    is_dump = ("task" in found or "level" in found) and not _CONFIG_FIELD.search(top)
    return Header(**found) if is_dump else None


def read_object(path: Path) -> dict[str, Any]:
    """A file's JSON object; bare NaN and Infinity are numbers here, as msprobe writes them."""
    try:
        with collector_paused():
            content = read_json(path, limit=LARGEST_DUMP)
    except OSError as error:
        raise bad_file(path, f"cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise bad_file(path, f"is not JSON, or was not written to its end: {error}") from error
    except ValueError as error:
        raise bad_file(path, f"is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise bad_file(path, f"holds {shortened(content)}, not a JSON object")
    return content


def read_if_there(path: Path) -> dict[str, Any]:
    """A file that a dump may lack (extra_info off)."""
    return read_object(path) if path.is_file() else {}


def step_number(folder: Path) -> int | None:
    """Of which step a folder is, by its name."""
    match = _STEP.fullmatch(folder.name)
    return int(match[1]) if match else None


def shortened(found: object) -> str:
    # repr of a whole dump would take seconds, that of a deeply nested one fails.
    text = repr(found) if isinstance(found, str | int | float | None) else f"a {type(found).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def bad_file(path: Path, problem: str) -> TraceError:
    return TraceError(
        f"{path} {problem}",
        expected="the file as msprobe wrote it; it is complete after stop()",
        next_step="copy the dump again or dump again",
    )


def bad_field(path: Path, field: str, found: object, wanted: str) -> TraceError:
    return bad_file(path, f"field {field} holds {shortened(found)}, not {wanted}")


REFERENCE, TARGET = "bench_path", "npu_path"


def is_compare_config(path: Path) -> bool:
    """Whether a file is such a config, by its content."""
    if not path.is_file() or path.suffix != ".json" or path.stat().st_size >= 2**20:
        return False
    try:
        content = read_object(path)
    except UlpscopeError:
        return False
    return REFERENCE in content and TARGET in content


def read_compare_config(path: Path) -> Pair[Path]:
    """The dump that is trusted (bench_path) and the one under suspicion (npu_path); everything else has no use here."""
    content = read_object(path)
    return Pair(reference=_dump(path, content, REFERENCE), target=_dump(path, content, TARGET))


def _dump(config: Path, content: dict[str, Any], field: str) -> Path:
    """Relative to the config's directory or to the current one: msprobe's users write both."""
    stated = content.get(field)
    if not isinstance(stated, str) or not stated or "\0" in stated:
        seen = f"{config} has no field {field}" if field not in content else f"field {field} of {config} is {stated!r}"
        raise UlpscopeError(
            seen,
            expected='{"npu_path": "...", "bench_path": "..."}, each a dump.json or a directory of dumps',
            next_step=f"add {field}, or name the two dumps: ulpscope compare REFERENCE TARGET",
        )
    candidates = [config.parent / stated, Path(stated)]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise UlpscopeError(
        f"field {field} of {config} says {stated!r}: not at {candidates[0]} nor at {candidates[1].absolute()}",
        expected="a dump.json or a directory of dumps",
        next_step=f"correct {field}, or name the two dumps: ulpscope compare REFERENCE TARGET",
    )
