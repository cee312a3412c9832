"""Finds dump files: those of one directory, and the directories below a dump's root.

dump_path/20260101000000/0/ge_default_11/1/0/Relu.fc1_Relu.21.0.1767225600021123      time/device/model/model id/step
dump_path/20260101000000/0/Relu.fc1_Relu.21.0.1767225600021123                        single operators: time/device

A device leaves out what its run does not have: the model's name, its id, or the step.
"""

import csv
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ulpscope.dialects.ascend.dump_file.codes import bad_dump
from ulpscope.dialects.ascend.names import DumpName, parse_name
from ulpscope.records.errors import TraceError
from ulpscope.records.remarks import Counted, remark
from ulpscope.trace.files import open_text

MAPPING_FILE = "mapping.csv"
STATS_SUFFIX = ".csv"
LOOK = 1000
"""Directories that are looked into before a tree is taken for something else; dumps are in one of the first."""

_HASHED = re.compile(r"\d{1,30}", re.ASCII)
_TIME = re.compile(r"\d{14}", re.ASCII)
_COUNT = re.compile(r"\d{1,9}", re.ASCII)
_BELOW_TIME = re.compile(r"(?P<root>.*?/\d{14})/(?P<device>\d{1,9})(?P<rest>(?:/[^/]+){0,3})", re.ASCII | re.DOTALL)
_WHOLE_PLACE = re.compile(r"(?P<root>.*)/(?P<device>\d{1,9})(?P<rest>/[^/]+/\d{1,9}/\d{1,9})", re.ASCII | re.DOTALL)
"""A run that was moved out of the directory that its time names."""
_WITH_MODEL = 3
_MAPPING_LIMIT = 64 * 2**20


@dataclass(frozen=True, slots=True)
class DumpEntry:
    """One dump file, or the stats of one operator."""

    path: Path
    name: DumpName

    @property
    def is_stats(self) -> bool:
        return self.path.suffix == STATS_SUFFIX


@dataclass(frozen=True, slots=True)
class DumpFolder:
    """A directory of dump files, and what its place in the tree says."""

    path: Path
    root: Path
    """The directory above the devices: named by the time of the run, if there is one."""
    device: int = 0
    model: str | None = None
    model_id: int | None = None
    step: int = 0

    @property
    def time(self) -> str | None:
        return self.root.name if _TIME.fullmatch(self.root.name) else None


def list_dumps(folder: Path) -> list[DumpEntry]:
    """The dump files of a directory in the order in which they were written."""
    names = _file_names(folder)
    real = read_mapping(folder / MAPPING_FILE) if MAPPING_FILE in names else {}
    entries = []
    for file in names:
        named = parse_name(real.get(file, file).removesuffix(STATS_SUFFIX))
        if named is not None:
            entries.append(DumpEntry(folder / file, named))
    return sorted(entries, key=lambda entry: (entry.name.timestamp, entry.name.task, entry.path.name))


def unnamed_dumps(folder: Path) -> list[str]:
    """Files that are called by digits alone, and of which no mapping.csv says what they are."""
    names = _file_names(folder)
    real = read_mapping(folder / MAPPING_FILE) if MAPPING_FILE in names else {}
    return [file for file in names if _HASHED.fullmatch(file) and file not in real]


def told_unnamed(folder: Path) -> list[str]:
    """The same as a remark; none if all have names."""
    found = unnamed_dumps(folder)
    if not found:
        return []
    count = Counted(len(found), "file")
    return [remark("dumps_unnamed", files=count, mapping=folder / MAPPING_FILE, example=found[0])]


def read_mapping(path: Path) -> dict[str, str]:
    """Real names by the names that stand for them; a row that is none of that is passed over."""
    try:
        with open_text(path, limit=_MAPPING_LIMIT, errors="replace", newline="") as file:
            return {row[0].strip(): row[1].strip() for row in csv.reader(file) if len(row) == 2}
    except (OSError, csv.Error) as error:
        raise bad_dump(path, f"cannot be read ({error})") from error


def find_folders(root: Path) -> Iterator[DumpFolder]:
    """The directories below `root` (or itself) that hold dump files, each once; links are followed."""
    return (_placed(folder) for folder in _directories(root) if _holds_dumps(folder))


def has_dumps(root: Path) -> bool:
    """Whether there are dump files below `root`, as far as a short look tells."""
    try:
        return any(_holds_dumps(folder) for folder in islice(_directories(root), LOOK))
    except TraceError:
        return False


def _directories(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        return
    seen: set[str] = set()
    for directory, names, _ in os.walk(root, onerror=_unlisted, followlinks=True):
        real = os.path.realpath(directory)
        if real in seen:
            names.clear()
            continue
        seen.add(real)
        names.sort()
        yield Path(directory)


def _holds_dumps(folder: Path) -> bool:
    names = _file_names(folder)
    if any(parse_name(name.removesuffix(STATS_SUFFIX)) is not None for name in names):
        return True
    return MAPPING_FILE in names and bool(list_dumps(folder))


def _placed(path: Path) -> DumpFolder:
    # Not resolved: where a tool links a run into its own tree, it is the link that is called by the time.
    whole = Path(os.path.abspath(path))
    found = _BELOW_TIME.fullmatch(whole.as_posix()) or _WHOLE_PLACE.fullmatch(whole.as_posix())
    told = None if found is None else _model_and_step(found["rest"].split("/")[1:])
    if found is None or told is None:
        return DumpFolder(path, whole)
    model, model_id, step = told
    return DumpFolder(path, Path(found["root"]), int(found["device"]), model, model_id, step)


def _model_and_step(parts: list[str]) -> tuple[str | None, int | None, int] | None:
    """Model, model id and step, of which a device leaves out what there is not; none if these are other directories."""
    named = len(parts) == _WITH_MODEL or (bool(parts) and _COUNT.fullmatch(parts[0]) is None)
    model, numbers = (parts[0], parts[1:]) if named else (None, parts)
    if not all(map(_COUNT.fullmatch, numbers)) or (named and not numbers):
        return None
    if len(numbers) == 2:
        return model, int(numbers[0]), int(numbers[1])
    only = int(numbers[0]) if numbers else 0
    return (model, only, 0) if named else (None, None, only)


def _file_names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for entry in found if entry.is_file())
    except OSError as error:
        raise bad_dump(folder, f"cannot be listed ({error.strerror})") from error


def _unlisted(error: OSError) -> None:
    raise bad_dump(Path(error.filename), f"cannot be listed ({error.strerror})") from error
