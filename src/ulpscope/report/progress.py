"""Progress on a terminal: a bar on stderr, once the work has taken longer than a second, and the status line of a run.

The status line stands below a script's own output: the bottom row is kept out of the terminal's scroll region, so that
whatever the script prints scrolls above it.
"""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TextIO

from ulpscope.records.runs import Progress
from ulpscope.report.words.language import bytes_text, count_text, seconds_text

PATIENCE = 1.0
"""Seconds before anything is drawn."""


class Advance(Protocol):
    """Moves a bar on; a text replaces the one beside it."""

    def __call__(self, number: int, /, *, text: str | None = None) -> None: ...


@contextmanager
def progress(
    text: str, *, total: int | None = None, stream: TextIO | None = None, patience: float = PATIENCE
) -> Iterator[Advance]:
    """`with progress("comparing tensors", total=n) as advance: advance(1)`; the bar is gone at the end."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield _unseen
        return
    bar = _LateBar(stream, text, total)
    timer = threading.Timer(patience, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield bar.advance
    finally:
        timer.cancel()
        bar.stop()


class _LateBar:
    """A bar that a timer starts, if the work has not stopped it before."""

    def __init__(self, stream: TextIO, text: str, total: int | None) -> None:
        # Loading rich takes longer than most of what has a bar, and only a terminal shows one.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        console = Console(file=stream, markup=False, emoji=False, highlight=False)
        # Whatever the work itself prints stays where it is printed.
        self._drawn = Bar(
            *columns,
            TimeRemainingColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._drawn.add_task(text, total=total)
        self._lock = threading.Lock()
        self._over = False

    def start(self) -> None:
        with self._lock:
            if not self._over:
                self._drawn.start()

    def advance(self, number: int, /, *, text: str | None = None) -> None:
        self._drawn.update(self._task, advance=number, description=text)

    def stop(self) -> None:
        with self._lock:
            self._over = True
            self._drawn.stop()


def _unseen(number: int, /, *, text: str | None = None) -> None:
    """Moves nothing on."""


_SAVE, _RESTORE = "\0337", "\0338"
_CLEAR_LINE = "\033[2K"
_WHOLE_SCREEN = "\033[r"
_UP = "\033[1A"
_SMALLEST_SCREEN = 4


def status_text(ranks: Sequence[Progress]) -> str:
    """Step, calls, bytes and seconds a step; of several ranks the slowest step and the sums."""
    slowest = min(ranks, key=lambda progress: progress.step)
    parts = [f"step {slowest.step}", count_text(sum(progress.calls for progress in ranks), "call")]
    parts.append(bytes_text(sum(progress.bytes for progress in ranks)))
    seconds = [progress.seconds_per_step for progress in ranks if progress.seconds_per_step is not None]
    if seconds:
        parts.append(f"{seconds_text(max(seconds))} a step")
    if len(ranks) > 1:
        parts.insert(0, f"{len(ranks)} ranks")
        parts[1] += f" (rank {slowest.rank} is slowest)"
    return "ulpscope: " + " · ".join(parts)


class StatusLine:
    """Draws on a terminal in whose foreground we are, and nowhere else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._rows = 0
        self._shown = ""

    def draw(self, text: str) -> None:
        """Show `text` in the bottom row; also follows a changed size of the terminal."""
        if not self._terminal or not self._in_foreground():
            return
        columns, rows = os.get_terminal_size(self._stream.fileno())
        if rows < _SMALLEST_SCREEN:
            self.close()
            return
        if rows != self._rows:
            self._reserve(rows)
        fitting = text[: columns - 1]
        if fitting != self._shown:
            self._write(f"{_SAVE}{_row(rows)}{_CLEAR_LINE}{fitting}{_RESTORE}")
            self._shown = fitting

    def close(self) -> None:
        """Give the whole screen back to the script; the next `draw` reserves the row anew."""
        if self._rows:
            self._write(f"{_SAVE}{_WHOLE_SCREEN}{_row(self._rows)}{_CLEAR_LINE}{_RESTORE}")
            self._rows, self._shown = 0, ""

    def _reserve(self, rows: int) -> None:
        self.close()
        # The line feed moves a cursor that stands in the bottom row out of the way, as setting a region does not.
        self._write(f"\n{_SAVE}\033[1;{rows - 1}r{_RESTORE}{_UP}")
        self._rows = rows

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        except OSError:
            return False

    def _write(self, text: str) -> None:
        # One write, so that the script's output cannot land inside the sequence.
        try:
            os.write(self._stream.fileno(), text.encode())
        except OSError:
            self._terminal = False


def _row(number: int) -> str:
    return f"\033[{number};1H"
