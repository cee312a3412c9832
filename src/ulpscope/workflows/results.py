"""Result directories: summary.json and the tables behind it."""

import json
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ulpscope.records.errors import UlpscopeError

SUMMARY = "summary.json"
REPORT = "report.html"


class TellsItself:
    """A result that tells itself, also where it is only named: at a prompt and in a notebook."""

    __slots__ = ()

    def text(self) -> str:
        """The answer, as the command line gives it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.text().rstrip("\n")


def check_result(out: Path, *, overwrite: bool) -> None:
    """Refuse a directory whose contents must stay: only an earlier result may go, and only if that was asked for."""
    if out.exists() and not out.is_dir():
        raise occupied(out, "is not a directory")
    if out.is_dir() and any(out.iterdir()):
        if not (out / SUMMARY).is_file():
            raise occupied(out, "holds files that are no result of ulpscope")
        if not overwrite:
            raise occupied(out, f"already holds a result; add --overwrite to replace it ({shlex.quote(str(out))})")


def prepare_result(out: Path, *, overwrite: bool) -> None:
    """Make `out` an empty directory."""
    check_result(out, overwrite=overwrite)
    try:
        out.mkdir(parents=True, exist_ok=True)
        # The directory itself stays: it may be a link or a mount point.
        for entry in out.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    except OSError as error:
        raise occupied(out, f"cannot be made: {error.strerror}") from error


@contextmanager
def writing(out: Path, *, next_step: str = "choose another directory for --out") -> Iterator[None]:
    """Tell what cannot be written, and what to do then."""
    try:
        yield
    except OSError as error:
        raise UlpscopeError(
            f"{error.filename or out} cannot be written: {error.strerror or error}",
            expected="a directory with room that may be written",
            next_step=next_step,
        ) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, allow_nan=False, indent=1) + "\n", encoding="utf-8")


def with_page(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The object of a result that has a page: its name, for a directory may be moved."""
    return {**summary, "report": REPORT}


def occupied(out: Path, problem: str, *, next_step: str = "choose another directory for --out") -> UlpscopeError:
    """A directory that cannot be written to as it is."""
    return UlpscopeError(
        f"{out} {problem}", expected="a directory that does not exist yet or is empty", next_step=next_step
    )


def stamp() -> str:
    """The time, as msaccucmp and msprobe name their files."""
    return time.strftime("%Y%m%d%H%M%S")
