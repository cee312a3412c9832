"""Finds the files of the first API accuracy checker, and opens them as a trace.

DIR/forward_info_4711.json    with backward_info_4711.json and stack_info_4711.json; 4711 is a process or a rank
DIR/step1/...                 the same, where a version wrote a directory an iteration
my_forward.json               a copy under another name, beside my_backward.json; only if the file itself is named
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ulpscope.dialects.api_checker.reading import ApiCheckerRank, InfoFiles, bad_file
from ulpscope.dialects.registry import Dialect, is_trace
from ulpscope.dialects.tables import foreign_rank
from ulpscope.records.enums import Save
from ulpscope.records.runs import RankInfo
from ulpscope.trace.files import open_file
from ulpscope.trace.frames import FrameRank
from ulpscope.trace.reader import Trace, open_trace

TRACE_FOLDER = "trace"
"""Beside the files that our own capture wrote."""

_FORWARD = re.compile(r"forward_info(?:_(?:rank)?(\d{1,19}))?\.json")
_ENTRY = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"[A-Za-z]+[.*][^"]+"\s*:\s*\{\s*"(?:args|kwargs)"\s*:')
"""How such a file begins: a call with its arguments."""
_STEP = re.compile(r"step(\d{1,9})")
_HEAD = 1 << 12
_DATA_FOLDERS = ("forward_real_data", "backward_real_data")


@dataclass(frozen=True, slots=True)
class _Place:
    """A forward_info file: of which step, of which process."""

    step: int
    number: int
    file: Path


def is_api_checker(path: Path) -> bool:
    """Whether this is a forward_info file, or a directory that holds some."""
    return bool(_places(path))


def open_api_checker(path: Path) -> Trace:
    """The files as a trace; they are read when they are first asked for."""
    places = _places(path)
    numbers = sorted({place.number for place in places})
    are_ranks = numbers == list(range(len(numbers)))
    ranks = []
    for order, number in enumerate(numbers):
        steps = {place.step: _info_files(place.file) for place in places if place.number == number}
        info = _info(steps.values(), rank=order, world_size=len(numbers), pid=None if are_ranks else number)
        name = f"{'rank' if are_ranks else 'proc'}{number}"
        ranks.append(FrameRank(path, name=name, info=info, steps=sorted(steps), source=ApiCheckerRank(steps)))
    return Trace(path, ranks, missing_ranks=[])


def _open(path: Path) -> Trace:
    """A capture that wrote these files left a trace beside them, which says more."""
    return open_trace(path / TRACE_FOLDER) if is_trace(path / TRACE_FOLDER) else open_api_checker(path)


API_CHECKER = Dialect(
    what="what the API accuracy checker recorded",
    next_step="ulpscope check {path}",
    recognises=is_api_checker,
    open=_open,
)


def _places(path: Path) -> list[_Place]:
    if path.is_file():
        match = _FORWARD.fullmatch(path.name)
        if match is None and not _is_copy(path):
            return []
        return [_Place(_step(path.resolve().parent), int(match[1] or 0) if match else 0, path)]
    if not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
        return []
    folders = [path, *(path / name for name in _names(path) if _STEP.fullmatch(name) and (path / name).is_dir())]
    return [
        _Place(_step(folder.resolve()), int(match[1] or 0), folder / name)
        for folder in folders
        for name in _names(folder)
        if (match := _FORWARD.fullmatch(name))
    ]


def _is_copy(path: Path) -> bool:
    """Whether a file of another name holds calls and their arguments: run_ut took any name."""
    if "forward" not in path.name or path.suffix != ".json":
        return False
    try:
        with open_file(path) as file:
            return _ENTRY.match(file.read(_HEAD)) is not None
    except OSError:
        return False


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise bad_file(folder, f"cannot be listed: {error.strerror}") from error


def _step(folder: Path) -> int:
    match = _STEP.fullmatch(folder.name)
    return int(match[1]) if match else 0


def backward_of(forward: Path) -> Path:
    """The file of gradients that belongs to a forward_info file."""
    return _sibling(forward, "backward")


def _info_files(forward: Path) -> InfoFiles:
    return InfoFiles(forward, backward_of(forward), _sibling(forward, "stack"))


def _sibling(forward: Path, kind: str) -> Path:
    before, _, behind = forward.name.rpartition("forward")
    return forward.with_name(f"{before}{kind}{behind}")


def _info(steps: Iterable[InfoFiles], *, rank: int, world_size: int, pid: int | None) -> RankInfo:
    folders = {files.forward.parent for files in steps}
    has_data = any(name.startswith(_DATA_FOLDERS) for folder in folders for name in _names(folder))
    save = Save.TENSORS if has_data else Save.STATS
    tool, framework = "api_accuracy_checker", "torch"
    return foreign_rank(tool=tool, framework=framework, rank=rank, world_size=world_size, save=save, pid=pid)
