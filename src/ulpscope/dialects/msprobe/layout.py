"""Finds the files of a dump: a whole dump_path, one step or one rank of it, or a dump.json itself.

dump_path/step0/rank0/dump.json        or proc4711 where there is one process
ptdbg_dump_v4.0/step0/rank0/dump.pkl   what ptdbg_ascend, its forerunner, wrote; older ones without step0
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from ulpscope.dialects.msprobe.json_files import Header, bad_file, read_header, read_object, step_number
from ulpscope.dialects.msprobe.ptdbg import SUFFIX, is_ptdbg, ptdbg_header
from ulpscope.dialects.msprobe.reading import MsprobeRank
from ulpscope.dialects.registry import Dialect
from ulpscope.dialects.tables import foreign_rank
from ulpscope.records.enums import Level, Save
from ulpscope.records.remarks import remark
from ulpscope.trace.frames import FrameRank
from ulpscope.trace.reader import Trace

DUMP_FILES = ("dump.json", "debug.json")
_RANK = re.compile(r"rank(\d{0,9})|proc(\d{1,19})")
_FRAMEWORKS = {"pytorch": "torch"}


@dataclass(slots=True)
class Survey:
    """Which process wrote what in which step."""

    files: dict[str, dict[int, tuple[Path, ...]]] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)

    def add(self, step: int, directory: Path) -> None:
        name, files = directory.resolve().name, _dump_files(directory)
        if files:
            self.files.setdefault(name, {})[step] = files
        else:
            told = remark("step", step=step, remark=remark("no_dump_json", directory=directory))
            self.missing.setdefault(name, []).append(told)


def is_dump(path: Path) -> bool:
    """Whether msprobe wrote this, as far as names of files and the top of a file tell."""
    if path.is_file():
        return is_ptdbg(path) or (path.suffix == ".json" and read_header(path) is not None)
    return path.is_dir() and os.access(path, os.R_OK | os.X_OK) and bool(_survey(path).files)


def open_dump(path: Path) -> Trace:
    """A dump as a trace; its steps are read when they are first asked for."""
    survey = _survey_file(path) if path.is_file() else _survey(path)
    names = sorted(survey.files, key=_rank_order)
    ranks = []
    for order, name in enumerate(names):
        files = survey.files[name]
        header = _header(files[min(files)][0])
        match = _RANK.fullmatch(name)
        number = int(match[1]) if match and match[1] else order
        info = foreign_rank(
            tool="msprobe",
            rank=number,
            world_size=max(len(names), number + 1),
            level=Level.MODULE if header.level == "L0" else Level.API,
            save=Save.TENSORS if header.task == "tensor" else Save.STATS,
            framework=_FRAMEWORKS.get(header.framework, header.framework),
            more={"task": header.task},
        )
        source = MsprobeRank(files, header, missing=survey.missing.get(name, []))
        ranks.append(FrameRank(path, name=name, info=info, steps=sorted(files), source=source))
    lost = [told for name, remarks in survey.missing.items() if name not in survey.files for told in remarks]
    return Trace(path, ranks, missing_ranks=lost)


MSPROBE = Dialect(
    what="a dump of msprobe",
    next_step="ulpscope show {path}, or ulpscope compare {path} TARGET",
    recognises=is_dump,
    open=open_dump,
)


def _survey(path: Path) -> Survey:
    survey, whole = Survey(), path.resolve()
    names = _folder_names(path)
    if any(name in DUMP_FILES or name.endswith(SUFFIX) for name in names):
        if _dump_files(path):
            survey.add(step_number(whole.parent) or 0, path)
            return survey
    elif is_ptdbg(told := whole.parent / f"{whole.name}{SUFFIX}"):
        # The folder of its arrays.
        return _survey_file(told)
    steps = {step: path / name for name in names if (step := step_number(path / name)) is not None}
    for step, directory in sorted(steps.items()) or [(step_number(whole) or 0, path)]:
        if directory.is_dir():
            for name in _folder_names(directory):
                if _RANK.fullmatch(name) and (directory / name).is_dir():
                    survey.add(step, directory / name)
    return survey


def _survey_file(path: Path) -> Survey:
    directory = path.resolve().parent
    return Survey({directory.name: {step_number(directory.parent) or 0: (path,)}})


def _dump_files(directory: Path) -> tuple[Path, ...]:
    """dump.json, debug.json or both; without them a .pkl of ptdbg, whatever it is called."""
    found = tuple(directory / file for file in DUMP_FILES if (directory / file).is_file())
    if found or not directory.is_dir():
        return found
    older = (directory / name for name in _folder_names(directory) if name.endswith(SUFFIX))
    return tuple(path for path in older if is_ptdbg(path))[:1]


def _rank_order(name: str) -> tuple[int, str]:
    match = _RANK.fullmatch(name)
    return (int(match[1] or match[2] or 0) if match else 0), name


def _header(path: Path) -> Header:
    found = ptdbg_header(path) if is_ptdbg(path) else read_header(path)
    if found is not None:
        return found
    read_object(path)
    raise bad_file(path, "has neither a field task nor a field level")


def _folder_names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        raise bad_file(directory, f"cannot be listed: {error.strerror}") from error
