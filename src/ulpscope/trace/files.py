"""The one door for files that somebody else wrote or may have changed: a trace's, a result's, another tool's.

Only regular files (or links to one) pass: a fifo waits for a writer for ever, a device has no end. A file that is
larger than its kind can be is refused before it is read. What is refused is an OSError that says so, as for a file
that is not there.
"""

import errno
import json
import os
import stat
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ulpscope.records.errors import TraceError

Bytes: TypeAlias = NDArray[np.uint8]

LARGEST_DESCRIPTION = 16 * 2**20
"""Bytes of a JSON file that describes: rank.json, step.json, an index, a configuration. Those of 1,000 steps and
112,000 tensors have under 1 MB; hostile JSON takes 24 times its size in memory, which is 400 MB here."""

LARGEST_DUMP = 4 * 2**30
"""Bytes of a JSON or text file that holds a whole dump or graph: a million tensors of msprobe's are 0.5 GB."""

JSON_MEMORY = 4, 2**30
"""What parsed JSON may take: so many times the file, and so many bytes besides."""
BYTES_A_CONTAINER = 72
"""An empty list or dict in Python, and the place where it is kept."""

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a fifo",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def check_file(path: Path | str, *, limit: int | None = None) -> int:
    """The size of a regular file; OSError if it is none, or has more bytes than `limit`."""
    return _checked(path, os.stat(path), limit)


def open_file(path: Path | str, *, limit: int | None = None) -> BinaryIO:
    """A regular file of at most `limit` bytes, to be read."""
    check_file(path, limit=limit)
    # Between the look and the opening it may have become a fifo, for which opening must not wait.
    descriptor = os.open(path, _FLAGS)
    try:
        _checked(path, os.fstat(descriptor), limit)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path | str, *, limit: int) -> bytes:
    """All bytes of a regular file."""
    with open_file(path, limit=limit) as file:
        # One more than it has: it may be growing.
        content = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
    if len(content) > limit:
        raise _too_large(path, len(content), limit)
    return content


def open_text(path: Path | str, *, limit: int, errors: str = "strict", newline: str | None = None) -> TextIO:
    """A regular file of UTF-8 text, with a byte order mark or without."""
    return TextIOWrapper(open_file(path, limit=limit), encoding="utf-8-sig", errors=errors, newline=newline)


def read_json(path: Path | str, *, limit: int = LARGEST_DESCRIPTION) -> Any:
    """The JSON that a file holds; ValueError says why it holds none."""
    return parse_json(read_bytes(path, limit=limit))


def parse_json(content: bytes) -> Any:
    """What JSON holds; ValueError says what else it is."""
    times, more = JSON_MEMORY
    if BYTES_A_CONTAINER * len(content) > times * len(content) + more:
        needed = BYTES_A_CONTAINER * (content.count(b"[") + content.count(b"{"))
        if needed > times * len(content) + more:
            raise ValueError(f"its {len(content):,} bytes are almost only brackets")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def map_bytes(path: Path | str, *, start: int = 0, length: int | None = None) -> Bytes:
    """Some bytes of a regular file, or all from `start` on: mapped, so that only what is looked at is read."""
    with open_file(path) as file:
        held = os.fstat(file.fileno()).st_size - start
        wanted = held if length is None else length
        if not 0 <= wanted <= held or start < 0:
            raise OSError(errno.EIO, f"{wanted:,} bytes from byte {start:,} on are more than it has", str(path))
        return np.empty(0, np.uint8) if wanted == 0 else np.memmap(file, np.uint8, "r", offset=start, shape=(wanted,))


def damaged(seen: str, *, expected: str = "the file as the capture wrote it") -> TraceError:
    """What is said of a trace that was changed, or copied by half."""
    return TraceError(seen, expected=expected, next_step="copy the trace again or capture again")


def _checked(path: Path | str, status: os.stat_result, limit: int | None) -> int:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        number = errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL
        raise OSError(number, f"it is {_KINDS.get(kind, 'something else')}, not a regular file", str(path))
    if limit is not None and status.st_size > limit:
        raise _too_large(path, status.st_size, limit)
    return status.st_size


def _too_large(path: Path | str, size: int, limit: int) -> OSError:
    return OSError(errno.EFBIG, f"it has {size:,} bytes, and a file of its kind at most {limit:,}", str(path))
