"""What the shell's commands work with: the data, the tensors in it, and the terminal."""

import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from rich.console import Console, RenderableType

from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.records.graphs import GraphModel
from ulpscope.report.tables import plain
from ulpscope.shell.data import ShellData
from ulpscope.workflows.tensor_lookup import DumpTensors, Lookup, TraceTensors

PIPE_WIDTH = 120


class Answer(Protocol):
    """How a workflow's result tells itself."""

    def __call__(self, *, width: int, color: bool) -> str: ...


def show(content: RenderableType) -> None:
    """Print on a terminal as wide as it is now."""
    Console(file=sys.stdout, width=_width(), highlight=False, markup=False, emoji=False).print(content)


def show_text(answer: Answer) -> None:
    """Print what a workflow's result says."""
    sys.stdout.write(answer(width=_width(), color=sys.stdout.isatty()))


def say(text: str, *, style: str = "") -> None:
    """Print a line; nothing in it steers the terminal."""
    show(plain(text, style=style))


def _width() -> int:
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else PIPE_WIDTH


@dataclass
class Context:
    """One session of the shell."""

    data: ShellData
    _models: dict[Path, tuple[int, GraphModel]] = field(default_factory=dict)

    @cached_property
    def dumped(self) -> DumpTensors:
        """Tensors of dumps and of the reference."""
        references = () if self.data.reference is None else (self.data.reference,)
        return DumpTensors(dumps=self.data.dumps, references=references)

    @cached_property
    def called(self) -> TraceTensors:
        """Tensors of the calls of the trace."""
        return TraceTensors(self.data.root)

    @property
    def tensors(self) -> Lookup:
        """Where `pt` and `cp` look."""
        of_trace = self.data.trace is not None and not self.data.dumps and self.data.reference is None
        return self.called if of_trace else self.dumped

    def models(self) -> Iterator[GraphModel]:
        """The graphs, each kept until its file changes."""
        for path in self.data.graphs:
            time = path.stat().st_mtime_ns
            known = self._models.get(path)
            if known is None or known[0] != time:
                known = self._models[path] = time, open_graph(path)
            yield known[1]


def listed(names: Iterable[object]) -> str:
    """`['a', 'b']`, as users of precision_tool know lists."""
    return str(list(names))
