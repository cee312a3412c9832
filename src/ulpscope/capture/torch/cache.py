"""What is compiled here for this machine, and kept for later runs."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


class NotCompiledError(Exception):
    """Why something that is compiled here is not there."""


def identity_of(*parts: bytes) -> str:
    """A digest of everything that a compiled thing depends on."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


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
