"""Reads msprobe's JSON files; what is not one, or holds something else than it should, is named by file and field."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulpscope.records.errors import TraceError
from ulpscope.trace.files import LARGEST_DUMP, open_file, read_json
from ulpscope.trace.objects import collector_paused

HEADER_BYTES = 65_536
_HEADER_FIELD = re.compile(r'"(task|level|framework)"\s*:\s*"([^"\\]{0,40})"')
_CONFIG_FIELD = re.compile(r'"dump_path"\s*:')
"""What a config.json has, which says task and level, too."""
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
