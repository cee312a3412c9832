"""What all commands share: parsers whose help is a docstring that fits the terminal, the way from parsed arguments to
the options of a workflow, and how answers reach stdout, and results their directories.
"""

import argparse
import gc
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.records.enums import ExitCode
    from ulpscope.report.words.language import Language

Subparsers = argparse._SubParsersAction
Options = TypeVar("Options")


class Parser(argparse.ArgumentParser):
    """An argument parser that knows no abbreviations and reports bad usage as ulpscope reports everything."""

    def __init__(self, **settings: object) -> None:
        settings.setdefault("formatter_class", HelpFormatter)
        super().__init__(allow_abbrev=False, **settings)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise UlpscopeError(
            message, expected=" ".join(self.format_usage().split()[1:]), next_step=f"see {self.prog} --help"
        )


def add_command(subparsers: "Subparsers[Parser]", name: str, *, doc: str | None, usage: str | None = None) -> Parser:
    """A sub-command whose help is `doc`, the docstring of the module that implements it."""
    text = (doc or "").strip()
    parser = subparsers.add_parser(name, help=text.splitlines()[0].rstrip("."), description=text, usage=usage)
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.set_defaults(parser=parser)
    return parser


def add_out(group: "argparse._ActionsContainer", files: str) -> None:
    """Options of a command that writes its result into a directory."""
    group.add_argument("--out", "-o", metavar="DIR", type=Path, help=f"write {files}, ... there")
    group.add_argument("--overwrite", action="store_true", help="replace an earlier result in DIR")


def add_telling(group: "argparse._ActionsContainer") -> None:
    """Options of a command whose answer has sentences."""
    group.add_argument("--json", action="store_true", help="one JSON object on stdout")
    group.add_argument("--language", choices=("en", "zh"), default="en", help="of sentences (default: en)")


def count(text: str) -> int:
    """The type of an option that takes a number from 0 up."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return int(text)


def number(is_right: Callable[[float], bool], described: str) -> Callable[[str], float]:
    """The type of an option that takes such a number."""

    def parse(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = float("nan")
        if not is_right(found):
            raise argparse.ArgumentTypeError(f"{text!r} is not {described}")
        return found

    return parse


def given(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Those of these options that the user gave, as he writes them."""
    usual = args.parser.get_default
    return [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) != usual(name)]


def refuse(
    args: argparse.Namespace, names: Iterable[str], beside: str, *, expected: str, next_step: str = "leave out {}"
) -> None:
    """Say so if one of these options was given, which has no effect `beside` something else."""
    for option in given(args, names):
        raise UlpscopeError(f"{option} {beside}", expected=expected, next_step=next_step.format(option))


def refuse_all(args: argparse.Namespace, names: Iterable[str], beside: str, *, expected: str) -> None:
    """The same; names all that were given."""
    if options := given(args, names):
        seen = f"{' and '.join(options)} with {beside}"
        raise UlpscopeError(seen, expected=expected, next_step=f"see ulpscope {args.subcommand} --help")


def parsed(kind: type[Options], args: argparse.Namespace, /, **others: object) -> Options:
    """What a workflow takes: of each field the argument of its name, as the field's type wants it; or `others`."""
    from ulpscope.workflows.run.python_capture import options_of

    names = [field.name for field in fields(kind) if field.name in args]  # type: ignore[arg-type]
    return options_of(kind, named="--{}", **{**{name: getattr(args, name) for name in names}, **others})


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
    return "\n\n".join(
        _examples(part, width) if is_example else _wrapped(" ".join(part), width, "", "") for is_example, part in blocks
    )


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


PIPE_WIDTH = 120
PIECE = 1024
"""Characters at once. An unbuffered stdout (PYTHONUNBUFFERED) drops the rest of a write that the reader ended half way;
up to 4096 bytes (PIPE_BUF of Linux) are written whole or not at all."""


class Answer(Protocol):
    """A result that tells itself; in the language that is asked for, if its command knows several."""

    @property
    def code(self) -> "ExitCode": ...

    @property
    def text(self) -> Callable[..., str]: ...

    @property
    def json(self) -> Callable[..., dict[str, Any]]: ...


class Result(Answer, Protocol):
    """An answer that can be written into a directory, with its page or without one."""

    @property
    def write(self) -> Callable[..., Path | None]: ...


def deliver(args: argparse.Namespace, make: "Callable[[Language], Result]", **settings: bool) -> int:
    """Make a result, write it where --out says, tell it, and give its exit code.

    A directory whose contents must stay is refused before anything is computed.
    """
    from ulpscope.report.words.language import Language
    from ulpscope.workflows.results import check_result, prepare_result

    language, page = Language(args.language), None
    if args.out is not None:
        check_result(args.out, overwrite=args.overwrite)
    result = make(language)
    # The process ends soon: looking for cycles among what it holds would only delay that.
    gc.freeze()
    if args.out is not None:
        prepare_result(args.out, overwrite=args.overwrite)
        page = result.write(args.out, language=language, **settings)
    code = tell(args, result, page=page)
    if args.out is not None and page is None:
        tell_place(args, "written", args.out)
    return code


def write_answer(text: str) -> None:
    """Write to stdout; names may be in any script, and a terminal that cannot write them must still get the rest."""
    encoding = sys.stdout.encoding or "utf-8"
    told = text.encode(encoding, "backslashreplace").decode(encoding)
    for start in range(0, len(told), PIECE):
        sys.stdout.write(told[start : start + PIECE])


def write_json(content: object) -> None:
    """Write one JSON object to stdout."""
    write_answer(json.dumps(content, allow_nan=False) + "\n")


def tell(args: argparse.Namespace, answer: Answer, *, page: Path | None = None, pipe_width: int = PIPE_WIDTH) -> int:
    """Write an answer as one JSON object, or as text as wide as the terminal, and give its exit code; both name its
    page, if it has one."""
    from ulpscope.report.words.language import Language
    from ulpscope.workflows.results import with_page

    spoken = {"language": Language(args.language)} if "language" in args else {}
    if args.json:
        content = answer.json(**spoken)
        write_json(content if page is None else with_page(content))
        return int(answer.code)
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((80, 24)).columns if terminal else pipe_width
    write_answer(answer.text(width=width, color=terminal, **spoken))
    if page is not None:
        tell_place(args, "page", page)
    return int(answer.code)


def tell_place(args: argparse.Namespace, key: str, path: Path) -> None:
    """Below an answer that is text: where it is to be found."""
    from ulpscope.report.words.language import Language, phrases, shown_name

    if not args.json:
        shown = shown_name(str(path), longest=len(str(path)))
        write_answer(f"  {phrases(Language(args.language)).say(key, path=shown)}\n")
