"""`ulpscope convert`: traces in the layout of another tool."""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ulpscope.dialects.msprobe.writing import write_msprobe
from ulpscope.dialects.recognising import wrong_kind
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
