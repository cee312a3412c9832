"""How captured processes talk to `ulpscope run`: each appends JSON lines to a file of its own in one directory.

    {"event": "progress", "pid": 4711, "rank": 0, "step": 3, "calls": 5120, "bytes": 900123, "seconds_per_step": 0.41}

Events: python(interpreter), started(interpreter, rank, world_size), progress(rank, step, calls, bytes,
seconds_per_step), message(text), failed(text), finished(rank, steps, calls, recorded),
no_ulpscope(interpreter, reason), left_alone(reason).

Beside it lies the call that a process is in, where `ulpscope run` finds it after whatever death: a file that is mapped
into memory and written into at every call outlives the process, and costs less than a microsecond. host/last_call.h
writes the same.

    (3\\nforward\\ntorch.nn.functional.linear.7\\nmodel.layers.0\\n\\0
"""

import contextlib
import fcntl
import json
import mmap
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ulpscope.records.runs import LastCall

EVENTS_VARIABLE = "ULPSCOPE_EVENTS"

LAST_CALL = ".last_call"
BYTES = 1024
_RUNNING, _DONE = ord("("), ord(")")
AT_WORK = ".at_work"
"""Ending of the file that whoever works for a captured process has locked."""

Event = dict[str, Any]


def event_file(directory: Path, pid: int) -> Path:
    """Where process `pid` writes; capture/inject/sitecustomize.py uses the same name."""
    return directory / f"{pid}.jsonl"


def run_of(rendezvous: Path) -> str:
    return f"{platform.node()}/{rendezvous.name}"


class LastCallFile:
    """Written by the captured process, through the map alone."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where there is no such place."""
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.write(file, bytes(BYTES))  # a hole in a file on a full disk would end the run by SIGBUS
            self.memory = mmap.mmap(file, BYTES)
        finally:
            os.close(file)

    def opened(self, step: int, phase: str, name: str, module: str | None) -> None:
        text = f"({step}\n{phase}\n{name}\n{module or ''}\n\0".encode(errors="replace")
        self.memory[: len(text)] = text if len(text) <= BYTES else text[:BYTES]

    def closed(self) -> None:
        self.memory[0] = _DONE


class EventLog:
    """Appends events; never raises, because losing one must not end the user's run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run(self) -> str:
        """What all processes below one `ulpscope run` have in common, and no others."""
        return run_of(self.path.parent)

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event; a full disk or a vanished directory loses it."""
        line = json.dumps({"event": event, "pid": os.getpid(), **fields}, default=str) + "\n"
        with contextlib.suppress(OSError):
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, line.encode())
            finally:
                os.close(file)

    def last_call_file(self) -> LastCallFile | None:
        """Where the call that this process is in is noted, if there is such a place."""
        with contextlib.suppress(OSError):
            return LastCallFile(self.path.with_suffix(LAST_CALL))
        return None

    @contextlib.contextmanager
    def held_for_child(self) -> Iterator[tuple[int, ...]]:
        """A descriptor for a process that this one starts: as long as that lives, it is known to be at work."""
        try:
            file = os.open(self.path.with_suffix(AT_WORK), os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError:
            yield ()
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield (file,)
        finally:
            os.close(file)


class EventReader:
    """Follows all event files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}

    def read_new(self) -> list[Event]:
        """Events that were written since the last call, in order within each process."""
        return [event for path in sorted(self._directory.glob("*.jsonl")) for event in self._read_file(path)]

    def last_call(self, pid: int) -> LastCall | None:
        """The last thing that a process did, as far as it was observed."""
        return read_last_call(event_file(self._directory, pid).with_suffix(LAST_CALL))

    def left_at_work(self) -> bool:
        """Whether a process still works for one that has ended: it writes what it was sent last."""
        return any(_is_locked(path) for path in self._directory.glob(f"*{AT_WORK}") if not is_alive(int(path.stem)))

    def _read_file(self, path: Path) -> list[Event]:
        start = self._read.get(path, 0)
        if path.stat().st_size == start:
            return []
        with path.open("rb") as file:
            file.seek(start)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._read[path] = start + len(complete)
        return [event for line in complete.splitlines() if (event := _parse(line)) is not None]


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def is_alive(pid: int) -> bool:
    """Whether this host has a process of that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def read_last_call(path: Path) -> LastCall | None:
    """What the file says; None if there is none, or if the process died while it wrote."""
    content = b""
    with contextlib.suppress(OSError):
        content = path.read_bytes()
    state, lines = content[:1], content[1:].partition(b"\0")[0].decode(errors="replace").split("\n")
    if state not in (b"(", b")") or len(lines) < 4 or not lines[0].isdigit():
        return None
    step, phase, name, module, *_ = lines
    return LastCall(step=int(step), phase=phase, name=name, module=module, running=state[0] == _RUNNING)
