"""Dumps of ptdbg_ascend, msprobe's forerunner, as msprobe would have written them.

    ["Functional_conv2d_0_forward_input.0", 1, [], "torch.float32", [4, 3, 8, 8], [2.1, -1.9, 0.01, 27.7]]
    ["Functional_conv2d_0_forward_stack_info", [["/home/user/model.py", 54, "forward", "x = self.conv(x)"]]]

A .pkl holds no pickle but a JSON list a line, in the order of execution; arrays lie beside it, one a line, in a folder
that has its name without the ending.
"""

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulpscope.dialects.msprobe.forms import STATS
from ulpscope.dialects.msprobe.json_files import Header, bad_file, shortened
from ulpscope.records.errors import TraceError
from ulpscope.trace.files import open_file

SUFFIX = ".pkl"

_NAME = re.compile(
    r"(?P<api>[^_]+_.+?)_(?P<number>\d{1,9})_(?P<direction>forward|backward)_(?P<side>input|output|stack_info)"
    r"(?:[._](?P<place>.+))?",
    re.DOTALL,
)
_SCALAR = re.compile(r"<class '(?:\w+\.)*(\w+)'>")
_LONGEST_LINE = 1 << 24
"""Bytes; a line is a tensor's summary or a stack."""
_MOST_ARGUMENTS = 10_000
_LINE_PARTS = 5


@dataclass(frozen=True, slots=True)
class PtdbgDump:
    """What a .pkl tells: the entries of a dump.json, the frames of each, and lines of entries that were told before."""

    data: dict[str, Any]
    stacks: dict[str, list[str]]
    repeated: int


def is_ptdbg(path: Path) -> bool:
    """Whether a file's first line is one of ptdbg's."""
    if not path.is_file():
        return False
    try:
        with open_file(path) as file:
            begins = file.read(1)
            first = json.loads(begins + file.readline(_LONGEST_LINE)) if begins == b"[" else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, list) and bool(first) and isinstance(first[0], str) and bool(_NAME.fullmatch(first[0]))


def data_folder(path: Path) -> Path:
    return path.with_suffix("")


def ptdbg_header(path: Path) -> Header:
    task = "tensor" if data_folder(path).is_dir() else "statistics"
    return Header(task=task, level="L1", framework="pytorch")


def read_ptdbg(path: Path) -> PtdbgDump:
    """The whole of a .pkl; TraceError names the line that is none of ptdbg's."""
    folder = data_folder(path)
    arrays = frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()
    calls: dict[str, dict[str, dict[str, Any]]] = {}
    stacks: dict[str, list[str]] = {}
    repeated = 0
    for number, line in _lines(path):
        try:
            name = _NAME.fullmatch(line[0])
            if name is None:
                raise ValueError(f"begins with {shortened(line[0])}")
            entry = _entry(name)
            if name["side"] == "stack_info":
                stacks.setdefault(entry, [_frame(*frame) for frame in line[1]])
                continue
            places = calls.setdefault(entry, {}).setdefault(name["side"], {})
            repeated += (name["place"] or "") in places
            places.setdefault(name["place"] or "", _told(line, arrays))
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise _bad_line(path, number, error) from error
    try:
        data = {entry: _content(entry, sides) for entry, sides in calls.items()}
    except ValueError as error:
        raise bad_file(path, str(error)) from error
    return PtdbgDump(data, stacks, repeated)


def _lines(path: Path) -> Iterator[tuple[int, list[Any]]]:
    try:
        with open_file(path) as file:
            number = 0
            while line := file.readline(_LONGEST_LINE):
                number += 1
                if line.strip():
                    yield number, json.loads(line)
    except OSError as error:
        raise bad_file(path, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _bad_line(path, number, error) from error


def _entry(name: re.Match[str]) -> str:
    """`Tensor___add___0` forward as Tensor.__add__.0.forward; a module by its path and class."""
    kind, _, rest = name["api"].partition("_")
    if kind == "Module":
        path, _, module_class = rest.rpartition("_")
        return f"Module.{path}.{module_class}.{name['direction']}.{name['number']}"
    return f"{kind}.{rest}.{name['number']}.{name['direction']}"


def _frame(path: str, line: int, function: str, code: Any = "") -> str:
    return f"File {path}, line {line}, in {function}, \n {code}"


def _told(line: list[Any], arrays: frozenset[str]) -> dict[str, Any]:
    """A tensor, or a number or text that was an argument."""
    if len(line) < _LINE_PARTS:
        raise ValueError(f"has {len(line)} parts, not {_LINE_PARTS} or 6")
    dtype, shape, summary = line[-3:]
    scalar = _SCALAR.fullmatch(dtype)
    if scalar is not None:
        return {"type": scalar[1], "value": summary[0] if isinstance(summary, list) and summary else summary}
    checksum, file = line[2], f"{line[0]}.npy"
    known = dict(zip(STATS, summary, strict=False))
    norm = known.get("Norm")
    if isinstance(norm, float) and math.isnan(norm) and "loat" not in dtype:
        known["Norm"] = None
    return {
        "type": "torch.Tensor",
        "dtype": dtype,
        "shape": shape,
        **dict.fromkeys(STATS),
        **known,
        **({"md5": checksum} if isinstance(checksum, str) and checksum else {}),
        **({"data_name": file} if file in arrays else {}),
    }


def _content(entry: str, sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    given, named = _arranged(entry, sides.get("input", {}))
    returned, _ = _arranged(entry, sides.get("output", {}))
    if ".backward" in entry:
        return {"input": given, "output": returned}
    return {"input_args": given, "input_kwargs": named, "output": returned}


def _arranged(entry: str, places: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments in order, null where none was dumped, and those that have a name; `1.0` is the first of a list."""
    listed: list[Any] = []
    named: dict[str, Any] = {}
    for place, told in places.items():
        numbers = [int(part) if part.isdecimal() and len(part) < 10 else -1 for part in (place or "0").split(".")]
        if min(numbers) < 0:
            named[place] = told
            continue
        if max(numbers) >= _MOST_ARGUMENTS:
            raise ValueError(f"has an argument {place} of {entry}")
        _put(listed, numbers, told)
    return listed, named


def _put(listed: list[Any], numbers: list[int], told: Any) -> None:
    listed += [None] * (numbers[0] + 1 - len(listed))
    if len(numbers) == 1:
        listed[numbers[0]] = told
        return
    if not isinstance(listed[numbers[0]], list):
        listed[numbers[0]] = []
    _put(listed[numbers[0]], numbers[1:], told)


def _bad_line(path: Path, number: int, error: Exception) -> TraceError:
    return bad_file(path, f"is no dump of ptdbg from line {number:,} on: {error}")
