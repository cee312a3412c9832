"""Finds dump files: those of one directory, and the directories below a dump's root.

dump_path/20260101000000/0/ge_default_11/1/0/Relu.fc1_Relu.21.0.1767225600021123      time/device/model/model id/step
dump_path/20260101000000/0/Relu.fc1_Relu.21.0.1767225600021123                        single operators: time/device
"""

import csv
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ulpscope.dialects.ascend.names import DumpName, parse_name
from ulpscope.dialects.ascend.problems import bad_dump

MAPPING_FILE = "mapping.csv"
STATS_SUFFIX = ".csv"
DEEPEST = 8
"""precision_data/npu/debug_0/dump/time/device/model/model id/step is the deepest tree that tools make."""

LOOK = 1000
"""Directories that are looked into before a tree is taken for something else; dumps are in one of the first."""

_HASHED = re.compile(r"\d{1,30}", re.ASCII)
_TIME = re.compile(r"\d{14}", re.ASCII)
_COUNT = re.compile(r"\d{1,9}", re.ASCII)
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


def read_mapping(path: Path) -> dict[str, str]:
    """Real names by the names that stand for them; a row that is none of that is passed over."""
    try:
        if path.stat().st_size > _MAPPING_LIMIT:
            raise bad_dump(path, f"has {path.stat().st_size} bytes, too many for a list of names")
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return {row[0].strip(): row[1].strip() for row in csv.reader(file) if len(row) == 2}
    except (OSError, csv.Error) as error:
        raise bad_dump(path, f"cannot be read ({error})") from error


def find_folders(root: Path) -> Iterator[DumpFolder]:
    """The directories below `root` (or itself) that hold dump files; links are not followed."""
    return (_placed(folder) for folder in _directories(root) if _holds_dumps(folder))


def has_dumps(root: Path) -> bool:
    """Whether there are dump files below `root`, as far as a short look tells."""
    return any(_holds_dumps(folder) for folder in islice(_directories(root), LOOK))


def _directories(root: Path) -> Iterator[Path]:
    top = len(root.parts)
    for directory, names, _ in os.walk(root):
        path = Path(directory)
        names.sort()
        if len(path.parts) - top >= DEEPEST:
            names.clear()
        yield path


def newest(folders: list[DumpFolder]) -> tuple[list[DumpFolder], list[str]]:
    """The folders of the last run below one directory, and the times of the earlier ones."""
    times = sorted({folder.time for folder in folders if folder.time is not None})
    kept = [folder for folder in folders if folder.time in (None, times[-1] if times else None)]
    return kept, times[:-1]


def _holds_dumps(folder: Path) -> bool:
    names = _file_names(folder)
    if any(parse_name(name.removesuffix(STATS_SUFFIX)) is not None for name in names):
        return True
    return MAPPING_FILE in names and bool(list_dumps(folder))


def _placed(path: Path) -> DumpFolder:
    whole = path.resolve()
    above = [whole, *whole.parents]
    names = [folder.name for folder in above]
    if len(names) > 4 and all(_COUNT.fullmatch(names[place]) for place in (0, 1, 3)):
        step, model_id, device = (int(names[place]) for place in (0, 1, 3))
        return DumpFolder(path, above[4], device=device, model=names[2], model_id=model_id, step=step)
    if len(names) > 1 and _COUNT.fullmatch(names[0]) and _TIME.fullmatch(names[1]):
        return DumpFolder(path, above[1], device=int(names[0]))
    return DumpFolder(path, whole)


def _file_names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for entry in found if entry.is_file())
    except OSError as error:
        raise bad_dump(folder, f"cannot be listed ({error.strerror})") from error
