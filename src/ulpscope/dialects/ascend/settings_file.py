"""JSON that a user writes for an Ascend device or its compiler: read before those ignore what is wrong with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.files import read_json


def read_settings(path: Path, refused: Callable[[Path, str], UlpscopeError]) -> Any:
    """What the file holds; `refused` makes the error that says what is wrong with it."""
    try:
        return read_json(path)
    except OSError as error:
        raise refused(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise refused(path, f"is no JSON: {str(error)[:100]}") from error
