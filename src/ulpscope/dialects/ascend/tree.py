"""Finds dump files: those of one directory, and the directories below a dump's root.

dump_path/20260101000000/0/ge_default_11/1/0/Relu.fc1_Relu.21.0.1767225600021123      time/device/model/model id/step
dump_path/20260101000000/0/Relu.fc1_Relu.21.0.1767225600021123                        single operators: time/device

A device leaves out what its run does not have: the model's name, its id, or the step. The name of a file tells:

Relu.fc1_Relu.21.1767225600021123                       type, operator, task, time in microseconds
Relu.fc1_Relu.21.0.1767225600021123                     with a stream after the task
Relu.fc1_Relu.21.0.1767225600021123.4.7.1.0             and, of an FFTS+ task, its type, context, thread and device

A name of 255 and more characters is replaced by digits; mapping.csv beside the file has the real one. What
belongs together is one file, or the directories of one run.
"""

import csv
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path

from ulpscope.dialects.ascend.dump_file.records import bad_dump
from ulpscope.records.errors import TraceError
from ulpscope.records.remarks import Counted, remark
from ulpscope.trace.files import open_text


class TaskType(int, Enum):
    """Which unit a task ran on."""

    AICORE = 0
    AICPU = 1
    DEBUG = 2
    HCCL = 3
    FFTSPLUS = 4


@dataclass(frozen=True, slots=True)
class DumpName:
    """A dump file's name, taken apart."""

    op_type: str
    op_name: str
    """As in the name: '/', '.', '\\' and blanks are '_'."""
    task: int
    stream: int | None
    timestamp: int
    """Microseconds."""
    task_type: TaskType | None = None
    context: int | None = None
    thread: int | None = None
    device: int | None = None

    @property
    def is_overflow_record(self) -> bool:
        """Whether the file is an overflow record, not the dump of an operator."""
        return self.op_type.lower() == "opdebug"

    @property
    def operator(self) -> str:
        """The name without what stands for a part of the operator or of the graph."""
        return without_parts(self.op_name)

    @property
    def slice(self) -> int | None:
        """Which part of the operator this is, if it was cut by hand; threads cut it otherwise."""
        found = _SLICE.search(self.op_name)
        return None if found is None else int(found[1])


# A part of a name may be long, but no number of these files has more than 20 digits (64 bits). The vendor's documents
# put the stream of an FFTS+ name before the task; what writes the files (OpDumpTask::DumpPath of CANN) puts it after.
_NAME = re.compile(
    r"(?P<op_type>[^./\\\s]+)\.(?P<op_name>[^./\\\s]+)\.(?P<task>\d{1,20})(?:\.(?P<stream>\d{1,20}))?"
    r"\.(?P<timestamp>\d{13,20})"
    r"(?:\.(?P<task_type>[0-4])\.(?P<context>\d{1,20})\.(?P<thread>\d{1,20})\.(?P<device>\d{1,20}))?",
    re.ASCII,
)
_SLICE = re.compile(r"_lxslice(\d{1,9})\Z", re.ASCII)
_SUBGRAPH = re.compile(r"\A.*sgt_graph_\d+[_/]", re.ASCII)


def parse_name(name: str) -> DumpName | None:
    """A file's name, taken apart; none if it is not the name of a dump file."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    numbers = {key: _number(found[key]) for key in ("stream", "context", "thread", "device")}
    return DumpName(
        op_type=found["op_type"],
        op_name=found["op_name"],
        task=int(found["task"]),
        timestamp=int(found["timestamp"]),
        task_type=None if found["task_type"] is None else TaskType(int(found["task_type"])),
        **numbers,
    )


def without_parts(name: str) -> str:
    """An operator's name without what ends in `sgt_graph_N_` before it, and without `_lxsliceN` after it."""
    return _SLICE.sub("", _SUBGRAPH.sub("", name))


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


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
    named = ((file, parse_name(real.removesuffix(STATS_SUFFIX))) for file, real in _real_names(folder).items())
    entries = [DumpEntry(folder / file, name) for file, name in named if name is not None]
    return sorted(entries, key=lambda entry: (entry.name.timestamp, entry.name.task, entry.path.name))


def unnamed_dumps(folder: Path) -> list[str]:
    """Files that are called by digits alone, and of which no mapping.csv says what they are."""
    return [file for file, real in _real_names(folder).items() if _HASHED.fullmatch(file) and file == real]


def _real_names(folder: Path) -> dict[str, str]:
    """The files of a directory, each with the name that it stands for."""
    names = _file_names(folder)
    real = read_mapping(folder / MAPPING_FILE) if MAPPING_FILE in names else {}
    return {file: real.get(file, file) for file in names}


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


@dataclass(frozen=True, slots=True)
class Run:
    """The directories of one run."""

    place: Path
    """Its dump path."""
    folders: tuple[DumpFolder, ...]
    older: tuple[str, ...]
    """Times of runs before it in the same place."""

    @property
    def left_out(self) -> list[str]:
        """What is told of the others."""
        if not self.older:
            return []
        return [remark("dumps_older", older=", ".join(self.older), newest=self.folders[0].time)]


def entry_of(path: Path) -> DumpEntry | None:
    """A dump file by its name, or by mapping.csv beside it; none if it is no dump file."""
    name = parse_name(path.name.removesuffix(STATS_SUFFIX))
    if name is not None:
        return DumpEntry(path, name)
    if path.name.isdigit() and (path.parent / MAPPING_FILE).is_file():
        return next((entry for entry in list_dumps(path.parent) if entry.path.name == path.name), None)
    return None


def newest_runs(path: Path) -> list[Run]:
    """Of each dump path below a directory, or the one that it is or lies in, the newest run."""
    places: dict[Path, list[DumpFolder]] = {}
    for folder in find_folders(path):
        places.setdefault(folder.root if folder.time is None else folder.root.parent, []).append(folder)
    return [_newest(place, places[place]) for place in sorted(places)]


def one_run(path: Path) -> Run:
    """The newest run of a dump path; UlpscopeError if there are several dump paths below a directory."""
    found = newest_runs(path)
    if len(found) > 1:
        raise TraceError(
            f"{path} holds dumps of {len(found)} places: {', '.join(str(run.place) for run in found)}",
            expected="one dump path, with the dump of one run or several of them",
            next_step=f"name one of them: {shlex.quote(str(found[0].place))}",
        )
    return found[0] if found else Run(path, (), ())


def _newest(place: Path, folders: list[DumpFolder]) -> Run:
    times = sorted({folder.time for folder in folders if folder.time is not None})
    kept = (None, times[-1] if times else None)
    return Run(place, tuple(folder for folder in folders if folder.time in kept), tuple(times[:-1]))
