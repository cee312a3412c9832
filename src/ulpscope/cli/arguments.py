"""What all commands' parsers share: docstring as help, errors with a next step, --debug anywhere."""

import argparse
from typing import NoReturn

from ulpscope.cli.help_text import HelpFormatter
from ulpscope.records.errors import UlpscopeError

Subparsers = argparse._SubParsersAction


class Parser(argparse.ArgumentParser):
    """An argument parser that knows no abbreviations and reports bad usage as ulpscope reports everything."""

    def __init__(self, **settings: object) -> None:
        settings.setdefault("formatter_class", HelpFormatter)
        super().__init__(allow_abbrev=False, **settings)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise UlpscopeError(
            message, expected=" ".join(self.format_usage().split()[1:]), next_step=f"see {self.prog} --help"
        )


def add_command(subparsers: "Subparsers[Parser]", name: str, *, doc: str, usage: str | None = None) -> Parser:
    """A sub-command whose help is `doc`, the docstring of the module that implements it."""
    summary = doc.strip().splitlines()[0]
    parser = subparsers.add_parser(name, help=summary.rstrip("."), description=doc.strip(), usage=usage)
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def count(text: str) -> int:
    """The type of an option that takes a number from 0 up."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return int(text)
