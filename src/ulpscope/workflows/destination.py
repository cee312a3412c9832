"""Makes sure that a trace can be written where the user wants it, and that nothing else is lost there."""

import errno
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from ulpscope.records.errors import UlpscopeError

_TRIAL_BYTES = 64 * 1024


def prepare_destination(out: Path, *, overwrite: bool, rank: int | None = None) -> None:
    """Make `out` a writable directory without a trace, or say why that cannot be.

    A process that is one rank of several (`rank`) looks at that rank's part only: the others write beside it.
    """
    everything = rank_directories(out)
    ranks = everything if rank is None else [found for found in everything if _is_rank(found, rank)]
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
        out.mkdir(parents=True, exist_ok=True)
        _try_to_write(out)
    except OSError as error:
        raise _unwritable(out, error) from error


def rank_directories(out: Path) -> list[Path]:
    """The parts of a trace in `out`; none if it holds no trace."""
    return sorted(file.parent for file in out.glob("rank*/rank.json"))


def _is_rank(directory: Path, rank: int) -> bool:
    return directory.name == f"rank{rank}" or directory.name.startswith(f"rank{rank}-")


def _refuse_other_files(out: Path, ranks: Sequence[Path]) -> None:
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise _occupied(out, f"{out} is not a directory")
    others = sorted(set(os.listdir(out)) - {rank.name for rank in ranks})
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


def _remove(rank: Path) -> None:
    if rank.is_symlink():
        rank.unlink()
    else:
        shutil.rmtree(rank)


def _try_to_write(out: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=out, prefix=".ulpscope-") as file:
        file.write(b"\0" * _TRIAL_BYTES)
        file.flush()
        os.fsync(file.fileno())


def _unwritable(out: Path, error: OSError) -> UlpscopeError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return UlpscopeError(
        f"cannot write to {out}: {error.strerror or error}",
        expected="a directory on a disk with free space" if full else "a directory that you may create and write",
        next_step="free some space, or choose another disk with -o" if full else "choose another directory with -o",
    )
