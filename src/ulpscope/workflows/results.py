"""Result directories: summary.json and the tables behind it.

Makes sure that a trace can be written where the user wants it, and that nothing else is lost there.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ulpscope.capture.events import is_alive
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.runs import TWINS

SUMMARY = "summary.json"
REPORT = "report.html"


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
            _remove(entry)
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


def write_new(out: Path, text: str, *, overwrite: bool, option: str = "--out") -> None:
    """Write a file that is not there yet, or replace it if that was asked for."""
    if out.exists() and not overwrite:
        raise UlpscopeError(
            f"{out} is there already",
            expected="a file that does not exist yet",
            next_step=f"choose another file for {option}, or add --overwrite",
        )
    with writing(out, next_step=f"choose another file for {option}"):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")


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


_TRIAL_BYTES = 64 * 1024

_OURS = ".ulpscope-"
"""What the files begin with that a capture has here for a while: its mark, and what it tries to write with."""
_MARK = f"{_OURS}run-"
"""What a file begins with that a running capture has locked."""
_TAKEN = -1


def prepare_destination(out: Path, *, overwrite: bool, rank: int | None = None) -> None:
    """Make `out` a writable directory without a trace, or say why that cannot be.

    A process that is one rank of several (`rank`) looks at that rank's part only: the others write beside it.
    """
    everything = rank_directories(out)
    for left in [found for found in everything if _is_empty_and_left(found)]:
        _remove(left)
        everything.remove(left)
    own = f"rank{rank}"
    ranks = [found for found in everything if rank is None or found.name == own or found.name.startswith(f"{own}-")]
    if ranks and not overwrite:
        raise UlpscopeError(
            f"{out} already holds a trace ({_first_names(directory.name for directory in ranks)})",
            expected="a directory that does not exist yet or is empty",
            next_step=f"choose another directory, or replace this trace: -o {shlex.quote(str(out))} --overwrite "
            "(overwrite=True in Python)",
        )
    try:
        if rank is None:
            _refuse_other_files(out, ranks)
        for directory in ranks:
            _remove(directory)
        if ranks and rank is None:
            shutil.rmtree(out / TWINS, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=out, prefix=_OURS) as file:
            file.write(b"\0" * _TRIAL_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise UlpscopeError(
            f"cannot write to {out}: {error.strerror or error}",
            expected="a directory on a disk with free space" if full else "a directory that you may create and write",
            next_step="free some space, or choose another disk with -o" if full else "choose another directory with -o",
        ) from error


@contextlib.contextmanager
def held_destination(out: Path, *, shared: bool) -> Iterator[None]:
    """Keep other captures of this host out of `out`, before there is anything in it.

    No directory is left empty that was not. `shared` are those of which each brings some of a job's ranks. Other hosts
    have a mark of their own: whose ranks are the same is found out when they are written.
    """
    given_empty = out.is_dir() and all(name.startswith(_OURS) for name in os.listdir(out))
    with contextlib.suppress(OSError):  # whoever prepares it says why it cannot be made
        out.mkdir(parents=True, exist_ok=True)
    mark = out / f"{_MARK}{platform.node()}"
    file = _locked(mark, shared=shared)
    if file is _TAKEN:
        raise UlpscopeError(
            f"another capture is writing into {out}",
            expected="a directory for each run",
            next_step="choose another directory with -o, or wait until that run has ended",
        )
    try:
        yield
    finally:
        if file is not None:
            _unlock(mark, file)
        if not given_empty:
            with contextlib.suppress(OSError):
                out.rmdir()  # nothing was captured, or a trace was to be replaced and nothing came in its place


def _locked(mark: Path, *, shared: bool) -> int | None:
    """A descriptor that holds the lock on `mark`; _TAKEN, or None where nothing can be locked."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        try:
            file = os.open(mark, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            if os.path.lexists(mark) and os.path.samestat(os.fstat(file), os.stat(mark)):
                return file
        except BlockingIOError:
            os.close(file)
            return _TAKEN
        except OSError:
            os.close(file)
            return None
        os.close(file)  # who held it has taken it away in between


def _unlock(mark: Path, file: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mark.unlink()  # nobody shares it any more
    os.close(file)


def rank_directories(out: Path) -> list[Path]:
    """The parts of a trace in `out`; none if it holds no trace."""
    return sorted(file.parent for file in out.glob("rank*/rank.json"))


def _is_empty_and_left(rank: Path) -> bool:
    """Whether a process of this host took the directory and died before it wrote anything."""
    from ulpscope.trace.writer import read_claim  # the table library behind it is slow to load

    if rank.is_symlink() or set(os.listdir(rank)) != {"rank.json", "claim.json"}:
        return False
    claim = read_claim(rank)
    return claim.get("host") == platform.node() and isinstance(claim.get("pid"), int) and not is_alive(claim["pid"])


def _refuse_other_files(out: Path, ranks: Sequence[Path]) -> None:
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise _occupied(out, f"{out} is not a directory")
    names = {name for name in os.listdir(out) if not name.startswith(_OURS)}
    others = sorted(names - {rank.name for rank in ranks} - ({TWINS} if ranks else set()))
    if others:
        raise _occupied(out, f"{out} holds files that are no trace ({_first_names(others)})")


def _occupied(out: Path, seen: str) -> UlpscopeError:
    return UlpscopeError(
        seen,
        expected="a directory that does not exist yet or is empty; --overwrite replaces traces only",
        next_step=f"choose another directory, e.g. -o {shlex.quote(str(out.with_name(out.name + '-trace')))}",
    )


def _first_names(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join([*listed[:4], "..."] if len(listed) > 4 else listed)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
