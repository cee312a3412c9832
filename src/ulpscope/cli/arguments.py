"""What all commands' parsers share: docstring as help that fits the terminal, errors with a next step, --debug."""

import argparse
import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NoReturn

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


INDENT = "  "
"""Before an example."""
BELOW = " " * 6
"""Before what an example is said to do, where it does not fit beside it."""
WIDEST = 120
"""Columns: longer lines are hard to read."""
ALTERNATIVE = "   or   "
"""Between the ways a command is used."""

Example = tuple[str, str]
"""A command, and what it does."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Breaks prose, examples and usage at the width of the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fill(text, min(width, WIDEST))

    def _format_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None,
    ) -> str:
        if usage is None:
            return super()._format_usage(usage, actions, groups, prefix)
        leads = [prefix or "usage: ", *["   or: "] * usage.count(ALTERNATIVE)]
        lines = zip(leads, usage.split(ALTERNATIVE), strict=True)
        return "".join(f"{_wrapped(use, self._width, lead, ' ' * 9)}\n" for lead, use in lines) + "\n"


def fill(text: str, width: int) -> str:
    """Paragraphs broken at this width; examples, which are set in, as columns or one below the other."""
    blocks = []
    for is_blank, lines in groupby(text.splitlines(), key=lambda line: not line.strip()):
        if is_blank:
            continue
        for is_example, part in groupby(lines, key=lambda line: line.startswith(INDENT)):
            blocks.append((is_example, list(part)))
    return "\n\n".join(_examples(part, width) if is_example else _paragraph(part, width) for is_example, part in blocks)


def _paragraph(lines: Iterable[str], width: int) -> str:
    return _wrapped(" ".join(lines), width, "", "")


def _examples(lines: Iterable[str], width: int) -> str:
    examples = list(_parsed(lines))
    column = max((len(command) for command, said in examples if said), default=0) + len(INDENT)
    beside = [f"{INDENT}{command:{column}}{said}".rstrip() for command, said in examples]
    if max(map(len, beside)) <= width:
        return "\n".join(beside)
    return "\n".join(line for example in examples for line in _below(example, width))


def _parsed(lines: Iterable[str]) -> Iterator[Example]:
    """Commands with what they do; it may stand in the next line."""
    waiting = None
    for line in lines:
        parts = re.split(r"\s{2,}", line.strip(), maxsplit=1)
        if waiting is not None:
            is_said = line.startswith(BELOW)
            yield waiting, line.strip() if is_said else ""
            waiting = None
            if is_said:
                continue
        if len(parts) == 2:
            yield parts[0], parts[1]
        else:
            waiting = parts[0]
    if waiting is not None:
        yield waiting, ""


def _below(example: Example, width: int) -> Iterator[str]:
    command, said = example
    # Two columns for the backslash that lets a shell go on in the next line.
    yield " \\\n".join(_wrapped(command, width - 2, INDENT, BELOW).splitlines())
    if said:
        yield _wrapped(said, width, BELOW, BELOW)


def _wrapped(text: str, width: int, first: str, later: str) -> str:
    words = " ".join(text.split())
    return textwrap.fill(
        words, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
