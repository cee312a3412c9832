"""How the shell tells: answers on stdout, what went wrong on stderr."""

import shutil
import sys
from typing import Protocol

from rich.console import Console, RenderableType

from ulpscope.records.errors import UlpscopeError
from ulpscope.report.tables import plain

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


def say(text: str) -> None:
    """Print a line; nothing in it steers the terminal."""
    show(plain(text))


def complain(error: UlpscopeError) -> None:
    """What was seen, what was expected, what to do next."""
    warn(f"error: {error}")


def warn(text: str) -> None:
    """A line on stderr; nothing in it steers the terminal."""
    sys.stdout.flush()
    Console(file=sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True).print(plain(text, style="red"))


def _width() -> int:
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else PIPE_WIDTH
