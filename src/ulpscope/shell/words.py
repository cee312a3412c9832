"""The words of the shell: commands and their options, which those of precision_tool know.

How the shell tells: answers on stdout, what went wrong on stderr.
"""

import argparse
import math
import shutil
import sys
from collections.abc import Callable
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
Option = tuple[tuple[str, ...], dict[str, Any]]


class Command(argparse.ArgumentParser):
    """One word of the shell: knows no abbreviations, and reports what is wrong as ulpscope reports everything."""

    def __init__(self, name: str, description: str, run: Run) -> None:
        self.options: dict[str, bool] = {}
        self.run = run
        super().__init__(prog=name, description=description, allow_abbrev=False, add_help=False)
        self.add_argument("-h", "--help", action="store_true", help="tell this")

    def add_argument(self, *flags: str, **settings: Any) -> argparse.Action:
        action = super().add_argument(*flags, **settings)
        self.options |= dict.fromkeys(action.option_strings, action.nargs != 0)
        return action

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().split()[1:])
        raise UlpscopeError(message, expected=usage, next_step=f"help {self.prog}")

    def parse(self, words: list[str]) -> Values | None:
        """The values of a line; none if it asks for help."""
        return None if "-h" in words or "--help" in words else self.parse_args(words)


COMMANDS: dict[str, Command] = {}
"""All of them, once the modules that have them are loaded."""


def command(name: str, description: str, *options: Option) -> Callable[[Run], Run]:
    """Makes a word of the shell of the function below."""

    def listed(run: Run) -> Run:
        made = COMMANDS[name] = Command(name, description, run)
        for flags, settings in options:
            made.add_argument(*flags, **settings)
        return run

    return listed


def option(*flags: str, **settings: Any) -> Option:
    """What argparse is told of an option, or of a word without one."""
    return flags, settings


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


PARSE_OUTPUT = (
    option("-out", "--output_path", metavar="DIR", type=Path, help="new directory (default: below temp)"),
    option("-asc", "--msaccucmp_path", metavar="FILE", help="not needed here"),
)
"""What users of msprobe's parse write."""


def limit(what: str) -> Option:
    """`-l N`."""
    told = f"{what} (default: {LOW_LISTED}; 0: all)"
    return option("-l", "--limit", metavar="N", type=count, default=LOW_LISTED, help=told)


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
