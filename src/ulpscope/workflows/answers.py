"""Answers of commands: what was found, and the functions of report/ that tell it as text, as JSON and as files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ulpscope.records.enums import ExitCode
from ulpscope.report.words.language import Language
from ulpscope.workflows.results import SUMMARY, write_json, writing


class TellsItself:
    """A result that tells itself, also where it is only named: at a prompt and in a notebook."""

    __slots__ = ()

    def text(self) -> str:
        """The answer, as the command line gives it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.text().rstrip("\n")


@dataclass(frozen=True, slots=True, repr=False)
class Answer(TellsItself):
    """What was found, told in English."""

    found: Any
    code: ExitCode
    as_text: Callable[..., str] = field(compare=False)
    as_json: Callable[..., dict[str, Any]] = field(compare=False)

    def text(self, *, width: int = 80, color: bool = False) -> str:
        return self.as_text(self.found, width=width, color=color)

    def json(self) -> dict[str, Any]:
        return self.as_json(self.found)


@dataclass(frozen=True, slots=True, repr=False)
class SpokenAnswer(Answer):
    """What was found, told in a language, and written into a directory."""

    tables: Mapping[str, Callable[[Any, Path], None]] = field(default_factory=dict, compare=False)
    """What is written beside summary.json: files or folders, and what writes each of them."""
    has_page: bool = True

    def text(self, *, width: int = 100, color: bool = False, language: Language = Language.EN) -> str:
        return self.as_text(self.found, width=width, color=color, language=language)

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        return self.as_json(self.found, language)

    def write(
        self,
        out: str | Path,
        *,
        language: Language = Language.EN,
        next_step: str = "choose another directory for --out",
    ) -> Path | None:
        """Write summary.json, the tables and, if there is one, the page, which it gives."""
        # An answer that is only told need not wait for what makes pages.
        from ulpscope.workflows.report.command import write_result

        if self.has_page:
            return write_result(out, self, self._write_tables, language=language, next_step=next_step)
        with writing(Path(out), next_step=next_step):
            self._write_tables(Path(out))
            write_json(Path(out) / SUMMARY, self.json(language))
        return None

    def _write_tables(self, out: Path) -> None:
        for name, write in self.tables.items():
            write(self.found, out / name)
