"""The log that an Ascend device writes on its host: ERROR lines that were added while a script ran.

~/ascend/log/debug/plog/plog-2891_20261118101112.log:
[ERROR] GE(2891,python3):2026-11-18-10:11:12.000.001 [graph_manager.cc:1301]2891 Run: ErrorNo: 1343266819
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from ulpscope.records.tf_runs import LogErrors, LogLine

PROCESS_LOG_VARIABLE = "ASCEND_PROCESS_LOG_PATH"
QUOTED = 20
"""Lines; one cause is followed by the same complaint of every layer above it."""
_MARK = b"[ERROR]"


def log_folders(environ: Mapping[str, str], log_path: str) -> list[Path]:
    """Where the device logs: where its own variable says, and where the settings say."""
    named = [environ.get(PROCESS_LOG_VARIABLE, ""), log_path]
    return [Path(name).expanduser() for name in dict.fromkeys(named) if name]


class LogWatch:
    """Remembers how long each file was, to read what comes after."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._before = dict(_files(folders))

    def errors(self) -> LogErrors:
        found = self._found()
        first = tuple(islice(found, QUOTED))
        return LogErrors(tuple(map(str, self._folders)), first, len(first) + sum(1 for _ in found))

    def _found(self) -> Iterator[LogLine]:
        for path, size in sorted(_files(self._folders)):
            begin = self._before.get(path, 0)
            if size == begin:
                continue
            try:
                with open(path, "rb") as file:
                    # A file that is shorter now was begun anew.
                    file.seek(begin if size > begin else 0)
                    for line in file:
                        if line.lstrip().startswith(_MARK):
                            yield LogLine(path.name, line.decode(errors="replace").strip())
            except OSError:
                # The log's owner takes old files away.
                continue


def _files(folders: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    for folder in folders:
        for directory, _, names in os.walk(folder):
            for name in names:
                path = Path(directory, name)
                if ".log" in name and path.is_file():
                    yield path, path.stat().st_size
