"""`ulpscope convert`: traces in the layout of another tool.

Converters of layouts that a user names are Python files, executed because the user asked for it:

convert_NC1HWC0_to_MYLAYOUT.py      def convert(shape_from, shape_to, array): ...

is what msaccucmp takes: the shapes as lists, the elements flat. A fourth argument, if there is one, gets the number of
groups of a convolution.
"""

import inspect
import os
import re
import runpy
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from ulpscope.dialects.msprobe.writing import write_msprobe
from ulpscope.dialects.recognising import wrong_kind
from ulpscope.numerics.dtypes import AnyArray
from ulpscope.numerics.layouts import Conversion, Converter
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.terminal.convert import Converted, NotConverted, convert_json, convert_text
from ulpscope.trace.reader import Trace, open_trace
from ulpscope.workflows.run.destination import prepare_destination

Told = Callable[[int, int], None]
"""Steps done, steps there are."""


class Layout(str, Enum):
    """What a trace can become."""

    MSPROBE = "msprobe"


@dataclass(frozen=True, slots=True)
class ConvertResult:
    """What became of each trace."""

    results: list[Converted | NotConverted]

    @property
    def code(self) -> ExitCode:
        converted = [result for result in self.results if isinstance(result, Converted)]
        if len(converted) < len(self.results) or any(result.written.failures for result in converted):
            return ExitCode.DIFFERENCE
        return ExitCode.OK if any(result.written.entries for result in converted) else ExitCode.NOTHING

    def text(self) -> str:
        return convert_text(self.results)

    def json(self) -> dict[str, Any]:
        return convert_json(self.results)


def convert(sources: Sequence[Path], *, to: Layout, out: Path, told: Told = lambda done, total: None) -> ConvertResult:
    """Write traces in another layout: one into `out` itself, several each into a directory of its own name below it."""
    assert to is Layout.MSPROBE
    opened = [_open(source, alone=len(sources) == 1) for source in sources]
    folders = [out] if len(sources) == 1 else [out / name for name in _names(sources)]
    prepare_out(out)
    total = sum(len(rank.steps) for trace in opened if isinstance(trace, Trace) for rank in trace.ranks)
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        told(done, total)

    return ConvertResult([_convert(trace, folder, count) for trace, folder in zip(opened, folders, strict=True)])


def _open(source: Path, *, alone: bool) -> Trace | NotConverted:
    try:
        return open_trace(source)
    except UlpscopeError as error:
        told = _other_tools(source) or error
        if alone:
            raise told from error
        return NotConverted(str(source), told.seen)


def _other_tools(source: Path) -> UlpscopeError | None:
    """Why what another tool wrote does not become msprobe's; none if no other tool wrote it."""
    return wrong_kind(source, "a trace of torch's calls: msprobe's layout has names for these alone")


def _convert(trace: Trace | NotConverted, folder: Path, told: Callable[[], None]) -> Converted | NotConverted:
    if isinstance(trace, NotConverted):
        return trace
    return Converted(str(trace.path), str(folder), write_msprobe(trace, folder, told=told), trace.missing)


def _names(sources: Sequence[Path]) -> list[str]:
    names = [source.resolve().name for source in sources]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UlpscopeError(
            f"several traces are called {', '.join(twice)}",
            expected="a name of its own for each, because each becomes a directory of that name",
            next_step="convert them one by one, each with its own -o",
        )
    return names


def prepare_out(out: Path) -> None:
    """Make `out` an empty directory, or say why it cannot be one."""
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise UlpscopeError(
            f"{out} is not empty" if out.is_dir() else f"{out} is not a directory",
            expected="a directory that does not exist yet or is empty",
            next_step=f"choose another directory, e.g. -o {shlex.quote(str(out.with_name(out.name + '-converted')))}",
        )
    prepare_destination(out, overwrite=False)


_NAME = re.compile(r"convert_(?P<source>\w+?)_to_(?P<target>\w+)\.py")
_GROUPS_PLACE = 3


def load_converters(files: Iterable[Path]) -> dict[tuple[str, str], Converter]:
    """The converters of some files, by source and target layout."""
    return {_layouts(file): _adapted(_function(file), file) for file in files}


def _layouts(file: Path) -> tuple[str, str]:
    found = _NAME.fullmatch(file.name)
    if found is None:
        raise _bad_converter(file, "its name does not say from which layout to which it converts")
    return found["source"], found["target"]


def _function(file: Path) -> Callable[..., Any]:
    try:
        content = runpy.run_path(str(file))
    except Exception as error:  # whatever the user's file raises is told as what it is
        raise _bad_converter(file, f"cannot be executed ({type(error).__name__}: {error})") from error
    function = content.get("convert")
    if not callable(function):
        raise _bad_converter(file, "has no function convert")
    return function  # type: ignore[no-any-return]


def _adapted(function: Callable[..., Any], file: Path) -> Converter:
    takes_groups = len(inspect.signature(function).parameters) > _GROUPS_PLACE

    def convert(array: AnyArray, wanted: Conversion) -> AnyArray:
        flat = np.ascontiguousarray(array).reshape(-1)
        groups = (wanted.groups,) if takes_groups else ()
        try:
            found = np.asarray(function(list(array.shape), list(wanted.shape or ()), flat, *groups))
        except Exception as error:  # see above
            raise _bad_converter(file, f"failed ({type(error).__name__}: {error})") from error
        if found.dtype != array.dtype:
            raise _bad_converter(file, f"was given {array.dtype} and gave {found.dtype}")
        return found

    return convert


def _bad_converter(file: Path, problem: str) -> UlpscopeError:
    return UlpscopeError(
        f"the converter {file} {problem}",
        expected="a file convert_A_to_B.py with a function convert(shape_from, shape_to, array) or (..., groups), "
        "which gives an array of the same elements",
        next_step="see docs/convert.md for an example",
    )
