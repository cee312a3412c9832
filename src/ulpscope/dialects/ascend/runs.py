"""Which dump files belong together: one file, or the directories of one run."""

from dataclasses import dataclass
from pathlib import Path

from ulpscope.dialects.ascend.names import parse_name
from ulpscope.dialects.ascend.tree import (
    MAPPING_FILE,
    STATS_SUFFIX,
    DumpEntry,
    DumpFolder,
    find_folders,
    list_dumps,
    newest,
)
from ulpscope.records.errors import TraceError


@dataclass(frozen=True, slots=True)
class Run:
    """The directories of one run."""

    folders: tuple[DumpFolder, ...]
    older: tuple[str, ...]
    """Times of runs before it in the same place."""


def entry_of(path: Path) -> DumpEntry | None:
    """A dump file by its name, or by mapping.csv beside it; none if it is no dump file."""
    name = parse_name(path.name.removesuffix(STATS_SUFFIX))
    if name is not None:
        return DumpEntry(path, name)
    if path.name.isdigit() and (path.parent / MAPPING_FILE).is_file():
        return next((entry for entry in list_dumps(path.parent) if entry.path.name == path.name), None)
    return None


def one_run(path: Path) -> Run:
    """The newest run below a directory; UlpscopeError if dumps of several lie side by side."""
    folders, older = newest(list(find_folders(path)))
    roots = sorted({folder.root for folder in folders})
    if len(roots) > 1:
        raise TraceError(
            f"{path} holds dumps of {len(roots)} runs: {', '.join(map(str, roots))}",
            expected="the dump of one run",
            next_step=f"name one of them: ulpscope show {roots[0]}",
        )
    return Run(tuple(folders), tuple(older))
