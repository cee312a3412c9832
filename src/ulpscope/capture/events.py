"""How captured processes talk to `ulpscope run`: each appends JSON lines to a file of its own in one directory.

    {"event": "progress", "pid": 4711, "rank": 0, "step": 3, "calls": 5120, "bytes": 900123, "seconds_per_step": 0.41}

Events: python(interpreter), started(interpreter, rank, world_size), progress(rank, step, calls, bytes,
seconds_per_step), message(text), failed(text), finished(rank, steps, calls, recorded),
no_ulpscope(interpreter, reason), left_alone(reason).
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

EVENTS_VARIABLE = "ULPSCOPE_EVENTS"

Event = dict[str, Any]


def event_file(directory: Path, pid: int) -> Path:
    """Where process `pid` writes; capture/inject/sitecustomize.py uses the same name."""
    return directory / f"{pid}.jsonl"


class EventLog:
    """Appends events; never raises, because losing one must not end the user's run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event; a full disk or a vanished directory loses it."""
        line = json.dumps({"event": event, "pid": os.getpid(), **fields}, default=str) + "\n"
        with contextlib.suppress(OSError):
            self._append(line.encode())

    def _append(self, line: bytes) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
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
