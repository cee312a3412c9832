"""Finds the files of a dump: a whole dump_path, one step or one rank of it, or a dump.json itself.

dump_path/step0/rank0/dump.json        or proc4711 where there is one process
ptdbg_dump_v4.0/step0/rank0/dump.pkl   what ptdbg_ascend, its forerunner, wrote; older ones without step0
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from ulpscope.dialects.msprobe.json_files import Header, bad_file, read_header, read_object
from ulpscope.dialects.msprobe.ptdbg import SUFFIX, is_ptdbg, ptdbg_header
from ulpscope.dialects.msprobe.reading import DumpFolder, MsprobeRank
from ulpscope.dialects.registry import Dialect
from ulpscope.dialects.tables import foreign_rank
from ulpscope.records.enums import Level, Save
from ulpscope.records.remarks import remark
from ulpscope.records.runs import RankInfo
from ulpscope.trace.frames import FrameRank
from ulpscope.trace.reader import Trace

DUMP_FILES = ("dump.json", "debug.json")
_STEP = re.compile(r"step(\d{1,9})")
_RANK = re.compile(r"rank(\d{0,9})|proc(\d{1,19})")
_FRAMEWORKS = {"pytorch": "torch"}


@dataclass(slots=True)
class Survey:
    """Which process wrote what in which step."""

    folders: dict[str, dict[int, DumpFolder]] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)

    def add(self, step: int, directory: Path, *, named: str | None = None) -> None:
        name = named or directory.resolve().name
        files = _dump_files(directory)
        if files:
            self.folders.setdefault(name, {})[step] = DumpFolder(directory, files)
        else:
            told = remark("step", step=step, remark=remark("no_dump_json", directory=directory))
            self.missing.setdefault(name, []).append(told)


def is_dump(path: Path) -> bool:
    """Whether msprobe wrote this, as far as names of files and the top of a file tell."""
    if path.is_file():
        return is_ptdbg(path) or (path.suffix == ".json" and read_header(path) is not None)
    return path.is_dir() and os.access(path, os.R_OK | os.X_OK) and bool(_survey(path).folders)


def open_dump(path: Path) -> Trace:
    """A dump as a trace; its steps are read when they are first asked for."""
    survey = _survey_file(path) if path.is_file() else _survey(path)
    names = sorted(survey.folders, key=_rank_order)
    lost = [
        sentence for name, sentences in survey.missing.items() if name not in survey.folders for sentence in sentences
    ]
    ranks = [
        _rank(path, name, number=_rank_number(name, order), survey=survey, world_size=len(names))
        for order, name in enumerate(names)
    ]
    return Trace(path, ranks, missing_ranks=lost)


MSPROBE = Dialect(
    what="a dump of msprobe",
    next_step="ulpscope show {path}, or ulpscope compare {path} TARGET",
    recognises=is_dump,
    open=open_dump,
)


def _survey(path: Path) -> Survey:
    survey = Survey()
    names = _folder_names(path)
    if any(file in names for file in DUMP_FILES) or any(map(_may_be_ptdbg, names)):
        if _dump_files(path):
            survey.add(_step_number(path.resolve().parent.name), path)
            return survey
    elif is_ptdbg(told := path.resolve().parent / f"{path.resolve().name}{SUFFIX}"):
        # The folder of its arrays.
        return _survey_file(told)
    steps = {int(match[1]): path / name for name in names if (match := _STEP.fullmatch(name))}
    if not steps:
        steps = {_step_number(path.resolve().name): path}
    for step, directory in sorted(steps.items()):
        if directory.is_dir():
            for name in _folder_names(directory):
                if _RANK.fullmatch(name) and (directory / name).is_dir():
                    survey.add(step, directory / name)
    return survey


def _dump_files(directory: Path) -> tuple[Path, ...]:
    """dump.json, debug.json or both; without them a .pkl of ptdbg, whatever it is called."""
    found = tuple(directory / file for file in DUMP_FILES if (directory / file).is_file())
    if found or not directory.is_dir():
        return found
    older = [directory / name for name in _folder_names(directory) if _may_be_ptdbg(name)]
    return tuple(path for path in older if path.is_file() and is_ptdbg(path))[:1]


def _may_be_ptdbg(name: str) -> bool:
    return name.endswith(SUFFIX)


def _survey_file(path: Path) -> Survey:
    directory = path.resolve().parent
    folder = DumpFolder(path.parent, (path,))
    return Survey({directory.name: {_step_number(directory.parent.name): folder}})


def _step_number(name: str) -> int:
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else 0


def _rank_order(name: str) -> tuple[int, str]:
    match = _RANK.fullmatch(name)
    return (int(match[1] or match[2] or 0) if match else 0), name


def _rank_number(name: str, order: int) -> int:
    match = _RANK.fullmatch(name)
    return int(match[1]) if match and match[1] else order


def _rank(path: Path, name: str, *, number: int, survey: Survey, world_size: int) -> FrameRank:
    folders = survey.folders[name]
    header = _header(folders[min(folders)].files[0])
    source = MsprobeRank(folders, header, missing=survey.missing.get(name, []))
    info = _info(header, rank=number, world_size=max(world_size, number + 1))
    return FrameRank(path, name=name, info=info, steps=sorted(folders), source=source)


def _header(path: Path) -> Header:
    found = ptdbg_header(path) if is_ptdbg(path) else read_header(path)
    if found is not None:
        return found
    read_object(path)
    raise bad_file(path, "has neither a field task nor a field level")


def _info(header: Header, *, rank: int, world_size: int) -> RankInfo:
    level = Level.MODULE if header.level == "L0" else Level.API
    save = Save.TENSORS if header.task == "tensor" else Save.STATS
    framework = _FRAMEWORKS.get(header.framework, header.framework)
    return foreign_rank(
        tool="msprobe",
        rank=rank,
        world_size=world_size,
        level=level,
        save=save,
        framework=framework,
        more={"task": header.task},
    )


def _folder_names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        raise bad_file(directory, f"cannot be listed: {error.strerror}") from error
