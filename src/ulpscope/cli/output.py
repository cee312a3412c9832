"""How answers reach stdout, and results their directories."""

import argparse
import gc
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ulpscope.workflows.results import with_page

if TYPE_CHECKING:
    from ulpscope.records.enums import ExitCode
    from ulpscope.report.words.language import Language

PIPE_WIDTH = 120
PIECE = 1024
"""Characters at once. An unbuffered stdout (PYTHONUNBUFFERED) drops the rest of a write that the reader ended half way;
up to 4096 bytes (PIPE_BUF of Linux) are written whole or not at all."""


class Answer(Protocol):
    """A result that tells itself."""

    def text(self, *, width: int, color: bool, language: "Language") -> str: ...

    def json(self, language: "Language") -> dict[str, Any]: ...


class Result(Answer, Protocol):
    """An answer that can be written into a directory, with its page or without one."""

    @property
    def code(self) -> "ExitCode": ...

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
    tell(result, language, as_json=args.json, page=page)
    return int(result.code)


def write_answer(text: str) -> None:
    """Write to stdout; names may be in any script, and a terminal that cannot write them must still get the rest."""
    encoding = sys.stdout.encoding or "utf-8"
    told = text.encode(encoding, "backslashreplace").decode(encoding)
    for start in range(0, len(told), PIECE):
        sys.stdout.write(told[start : start + PIECE])


def tell(answer: Answer, language: "Language", *, as_json: bool, page: Path | None = None) -> None:
    """Write a result as one JSON object, or as text as wide as the terminal; both name its page, if it has one."""
    if as_json:
        content = answer.json(language)
        write_answer(json.dumps(content if page is None else with_page(content), allow_nan=False) + "\n")
        return
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((80, 24)).columns if terminal else PIPE_WIDTH
    write_answer(answer.text(width=width, color=terminal, language=language))
    if page is not None:
        write_answer(f"  {_page_line(page, language)}\n")


def _page_line(page: Path, language: "Language") -> str:
    from ulpscope.report.words.language import phrases, shown_name

    path = str(page)
    return phrases(language).say("page", path=shown_name(path, longest=len(path)))
