"""One status line at the bottom of a terminal, below a script's own output.

The bottom row is kept out of the terminal's scroll region, so that whatever the script prints scrolls above it.
"""

import os
from collections.abc import Sequence
from typing import TextIO

from ulpscope.records.runs import Progress
from ulpscope.report.words.language import bytes_text, count_text, seconds_text

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
