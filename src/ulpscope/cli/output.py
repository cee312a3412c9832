"""How answers reach stdout."""

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ulpscope.report.language import Language

PIPE_WIDTH = 120


class Answer(Protocol):
    """A result that tells itself."""

    def text(self, *, width: int, color: bool, language: "Language") -> str: ...

    def json(self, language: "Language") -> dict[str, Any]: ...


def write_answer(text: str) -> None:
    """Write to stdout; names may be in any script, and a terminal that cannot write them must still get the rest."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def tell(answer: Answer, language: "Language", *, as_json: bool) -> None:
    """Write a result as one JSON object, or as text as wide as the terminal."""
    if as_json:
        write_answer(json.dumps(answer.json(language), allow_nan=False) + "\n")
        return
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((80, 24)).columns if terminal else PIPE_WIDTH
    write_answer(answer.text(width=width, color=terminal, language=language))
