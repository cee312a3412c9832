"""One worker process, seen from its parent: lines of JSON to it and from it, and its last words."""

import json
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from ulpscope.records.checks import CaseId

LAST_LINES = 3
LONGEST_LAST_WORDS = 400
_TAIL_BYTES = 4096
_PIECE = 65_536


class WorkerProcess:
    """A process that answers JSON lines with JSON lines."""

    def __init__(self, command: Sequence[str], *, device: str, environment: Mapping[str, str]) -> None:
        self.device = device
        self.environment = dict(environment)
        self.greeted = False
        self.orders: deque[CaseId] = deque()
        """What it was given and has not answered; it is at the first of them."""
        self.deadline = float("inf")
        self.last_words = ""
        """Once it has ended: the end of what it wrote to stderr since it began its last case, on one line."""
        self._buffer = b""
        self._stderr = tempfile.TemporaryFile(prefix="ulpscope-")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=self.environment
        )

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def idle(self) -> bool:
        return self.greeted and not self.orders

    def send(self, message: object) -> None:
        """Write one line; that nobody reads it any more is noticed at the other pipe."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self) -> list[dict[str, Any]] | None:
        """The whole lines that have come; none once the process has closed its end."""
        piece = self.stdout.read1(_PIECE)  # type: ignore[attr-defined]
        if not piece:
            return None
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        return [json.loads(line) for line in lines]

    def wait(self) -> int:
        """How it ended: an exit code, or -n after signal n."""
        return self._process.wait()

    def kill(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self.close()

    def close(self) -> None:
        """Close what led to a process that has ended."""
        self.last_words = self._read_last_words()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def _read_last_words(self) -> str:
        begin = max(0, os.fstat(self._stderr.fileno()).st_size - _TAIL_BYTES)
        # Not read(): the process writes where this file's position is.
        tail = os.pread(self._stderr.fileno(), _TAIL_BYTES, begin).decode(errors="replace")
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        return " | ".join(lines[-LAST_LINES:])[-LONGEST_LAST_WORDS:]
