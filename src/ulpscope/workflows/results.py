"""Result directories: summary.json and the tables behind it."""

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ulpscope.records.errors import UlpscopeError

SUMMARY = "summary.json"


def prepare_result(out: Path, *, overwrite: bool) -> None:
    """Make `out` an empty directory; only an earlier result is replaced, and only if that was asked for."""
    if out.exists() and not out.is_dir():
        raise _occupied(out, "is not a directory")
    if out.is_dir() and any(out.iterdir()):
        if not (out / SUMMARY).is_file():
            raise _occupied(out, "holds files that are no result of ulpscope")
        if not overwrite:
            raise _occupied(out, f"already holds a result; add --overwrite to replace it ({shlex.quote(str(out))})")
        shutil.rmtree(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _occupied(out, f"cannot be made: {error.strerror}") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, allow_nan=False, indent=1) + "\n", encoding="utf-8")


def _occupied(out: Path, problem: str) -> UlpscopeError:
    return UlpscopeError(
        f"{out} {problem}",
        expected="a directory that does not exist yet or is empty",
        next_step="choose another directory for --out",
    )
