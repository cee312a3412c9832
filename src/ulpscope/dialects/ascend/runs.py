"""Which dump files belong together: one file, or the directories of one run."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ulpscope.dialects.ascend.names import parse_name
from ulpscope.dialects.ascend.tree import MAPPING_FILE, STATS_SUFFIX, DumpEntry, DumpFolder, find_folders, list_dumps
from ulpscope.records.errors import TraceError
from ulpscope.records.remarks import remark

Place: TypeAlias = DumpFolder | DumpEntry


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


def entries_of(place: Place) -> list[DumpEntry]:
    """The dump files of a directory, or the one file that is meant."""
    return [place] if isinstance(place, DumpEntry) else list_dumps(place.path)


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
