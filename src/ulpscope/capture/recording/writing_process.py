"""Tables are made and written by a process of their own: in this one, every line of Python would hold the run up."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from ulpscope.capture.events import EventLog
from ulpscope.capture.recording.columns import Buffer, Columns, receive, send
from ulpscope.capture.recording.tables import StepWriter
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.trace.writer import RankWriter

_START = "import sys; sys.path[:] = {path!r}; from ulpscope.capture.recording.writing_process import serve; serve()"
STOP_SECONDS = 600.0


class WritingProcess:
    """The process that writes; everything here waits for its answer without holding the run's Python up."""

    def __init__(self, events: EventLog | None) -> None:
        code = _START.format(path=sys.path)
        # -I: neither the user's variables nor our own, by which children are captured, concern this one. A session of
        # its own: it goes on writing when the run is interrupted, and what it was sent whole when the run has died.
        with contextlib.nullcontext(()) if events is None else events.held_for_child() as held:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                pass_fds=held,
                env=os.environ | {"POLARS_MAX_THREADS": "1"},  # its parts are small, and the cores are the run's
            )
        self._told_words = 0

    def write(self, directory: Path, described: dict[str, Any], buffers: list[Buffer], words: list[str]) -> int:
        """Have a part written into a rank's directory; gives its size."""
        told, self._told_words = self._told_words, len(words)
        fresh = words[told : self._told_words]
        size: int = self._ask(described | {"directory": str(directory), "words": fresh}, buffers)["bytes"]
        return size

    def close(self) -> None:
        """Wait until everything is on disk."""
        with contextlib.suppress(OSError):
            # Not by closing the pipe alone: processes that the run has forked hold it, too.
            send({"end": True}, [], self._stdin)
            self._stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _ask(self, described: dict[str, Any], buffers: list[Buffer]) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            send(described, buffers, self._stdin)
            line = self._process.stdout.readline()
        except OSError as error:
            raise _gone(str(error)) from error
        if not line:
            raise _gone(f"exit code {self._process.wait(STOP_SECONDS)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TraceError(answer["error"], expected=answer["expected"], next_step=answer["next"])
        return answer


def _gone(why: str) -> TraceError:
    return TraceError(
        f"the process that writes the trace has ended ({why})",
        expected="it to live as long as the run",
        next_step="see whether memory is short, or set ULPSCOPE_HOST=python to write without it",
    )


def serve() -> None:
    """Write parts as they come in, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = sys.stdout
    sys.stdout = sys.stderr
    scribe = _Scribe()
    while (message := receive(sys.stdin.buffer)) is not None and "end" not in message[0]:
        try:
            answer: dict[str, Any] = scribe.take(*message)
        except UlpscopeError as error:
            answer = {"error": error.seen, "expected": error.expected, "next": error.next_step}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "expected": "a part that can be written", "next": ""}
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:  # the run has died; what it sent is written
            os.dup2(os.open(os.devnull, os.O_WRONLY), answers.fileno())  # or Python would complain about it at its end
            return


class _Scribe:
    def __init__(self) -> None:
        self._tables = RankWriter(Path(), None)
        self._steps = StepWriter(self._tables)
        self._words: list[str] = []

    def take(self, described: dict[str, Any], buffers: list[Buffer]) -> dict[str, int]:
        self._tables.directory = Path(described["directory"])  # it may have been moved
        self._words += described["words"]
        columns = Columns(described, buffers, self._words)
        return {"bytes": self._steps.write(columns.step, columns.tables(), finished_after=columns.finished_after)}
