"""The words of the shell: commands and their options, which those of precision_tool know.

How the shell tells: answers on stdout, what went wrong on stderr.
"""

import argparse
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from rich.console import Console, RenderableType

from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.tables import plain
from ulpscope.shell.data import Context
from ulpscope.workflows.show.command import LOW_LISTED

Values = argparse.Namespace
Run = Callable[[Context, Values], ExitCode]


class Words(argparse.ArgumentParser):
    """The parser of one command: knows no abbreviations, and reports what is wrong as ulpscope reports everything."""

    def __init__(self, name: str, description: str) -> None:
        self.options: dict[str, bool] = {}
        super().__init__(prog=name, description=description, allow_abbrev=False, add_help=False)
        self.add_argument("-h", "--help", action="store_true", help="tell this")

    def add_argument(self, *flags: str, **settings: Any) -> argparse.Action:
        action = super().add_argument(*flags, **settings)
        self.options |= dict.fromkeys(action.option_strings, action.nargs != 0)
        return action

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().split()[1:])
        raise UlpscopeError(message, expected=usage, next_step=f"help {self.prog}")


@dataclass(frozen=True, slots=True)
class Command:
    """One word of the shell."""

    words: Words
    run: Run

    @property
    def name(self) -> str:
        return self.words.prog

    def parse(self, words: list[str]) -> Values | None:
        """The values of a line; none if it asks for help."""
        if "-h" in words or "--help" in words:
            return None
        return self.words.parse_args(words)


def add_limit(words: Words, what: str) -> None:
    """`-l N`."""
    told = f"{what} (default: {LOW_LISTED}; 0: all)"
    words.add_argument("-l", "--limit", metavar="N", type=count, default=LOW_LISTED, help=told)


def add_parse_output(words: Words) -> None:
    """`-out` and `-asc`, which users of msprobe's parse write."""
    words.add_argument("-out", "--output_path", metavar="DIR", type=Path, help="new directory (default: below temp)")
    words.add_argument("-asc", "--msaccucmp_path", metavar="FILE", help="not needed here")


def count(text: str) -> int:
    """A number from 0 up."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return int(text)


def tolerance(text: str) -> float:
    """A finite number from 0 up."""
    number = similarity(text)
    if number < 0.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number from 0 up")
    return number


def similarity(text: str) -> float:
    """A finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return number


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
