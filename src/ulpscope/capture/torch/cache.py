"""What is compiled here for this machine, and kept for later runs."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ulpscope"


@contextlib.contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """A file to write, which is there under its name only when it is whole; whoever makes it as well makes the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        yield made
        made.replace(path)
