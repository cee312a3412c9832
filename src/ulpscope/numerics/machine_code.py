"""What is compiled here for this machine, and kept for later runs."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

COMPILE_SECONDS = 300
"""After which a compiler is given up."""
RETRY_SECONDS = 24 * 3600
"""After which what somebody began to compile, and was not made, is tried again."""


class NotCompiledError(Exception):
    """Why something that is compiled here is not there."""


class NoCompilerError(NotCompiledError):
    """Nothing here can compile it."""


def by_numba(*, kept: bool, exact: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Has numba compile a function at its first call. `kept`: on disk, for later runs; not for parts of kernels, as the
    constants they hold could go stale unseen. `exact`: every operation as it is written; else sums may be reordered,
    and only nan and inf keep their meaning."""
    import numba

    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    options["fastmath"] = False if exact else {"reassoc", "nsz", "contract"}

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(function, cache=kept, **options)  # type: ignore[no-any-return]
        except RuntimeError:  # no directory to keep it in: compile anew in each process
            return numba.njit(function, **options)  # type: ignore[no-any-return]

    return compiled


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
    compiler = _compiler()
    if compiler is None:
        raise NoCompilerError("no C++ compiler was found (g++, clang++ or $CXX)")
    with made_whole(library) as made:
        command = [compiler, "-o", str(made), *arguments]
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
            raise NotCompiledError(f"{compiler}: {error}") from error
        if done.returncode:
            complaint = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
            raise NotCompiledError(f"{compiler} failed: {complaint}")


def compile_beside(library: Path, arguments: Sequence[str]) -> bool:
    """Have it made by a process that takes only idle time and may outlive this one; whether that was begun.

    It is not begun twice: not by another rank, and not for a day if it fails.
    """
    if _compiler() is None or not sys.executable or not _claim(_begun(library)):
        return False
    command = [sys.executable, "-I", __file__, str(library), *arguments]
    try:
        # Without our pipes: whoever reads them to the end would wait for it.
        with open(os.devnull, "r+") as nothing:
            done = subprocess.run(
                command,
                check=False,
                env=_environment(),
                start_new_session=True,
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
            )
    except OSError:
        return False
    return done.returncode == 0


def _compiler() -> str | None:
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


def _begun(library: Path) -> Path:
    return library.with_name(f"{library.name}.begun")


def _claim(mark: Path) -> bool:
    """Whether nobody has made this mark before, or long ago."""
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if time.time() - mark.stat().st_mtime > RETRY_SECONDS:
                mark.unlink()
        mark.touch(exist_ok=False)
    except OSError:
        return False
    return True


def _compile_alone(library: Path, arguments: Sequence[str]) -> None:
    """In a process of its own, whose parent need not wait."""
    if os.fork():
        os._exit(0)
    os.nice(19)
    compile_library(library, arguments)
    _begun(library).unlink()


def _environment() -> dict[str, str]:
    """Without what `run` puts into children to capture them."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


if __name__ == "__main__":  # see compile_beside
    _compile_alone(Path(sys.argv[1]), sys.argv[2:])
