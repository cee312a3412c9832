"""What is compiled here for this machine, and kept for later runs."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

COMPILE_SECONDS = 300
"""After which a compiler is given up."""


class NotCompiledError(Exception):
    """Why something that is compiled here is not there."""


class NoCompilerError(NotCompiledError):
    """Nothing here can compile it."""


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


def compile_library(library: Path, arguments: Sequence[str], text: str = "") -> None:
    """Have the system's C++ compiler make a library; `text` is what it reads. OSError where it cannot be written."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NoCompilerError("no C++ compiler was found (g++, clang++ or $CXX)")
    with made_whole(library) as made:
        _run([compiler, "-o", str(made), *arguments], text)


def _run(command: list[str], text: str) -> None:
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
            check=False,
            env=_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCompiledError(f"{command[0]}: {error}") from error
    if done.returncode:
        complaint = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
        raise NotCompiledError(f"{command[0]} failed: {complaint}")


def _environment() -> dict[str, str]:
    """Without what `run` puts into children to capture them."""
    environment = dict(os.environ)
    with contextlib.suppress(KeyError):
        del environment["PYTHONPATH"]
    return environment
