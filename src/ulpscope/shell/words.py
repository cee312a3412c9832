"""The words of the shell: commands and their options, which those of precision_tool know."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
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
