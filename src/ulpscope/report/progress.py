"""Progress on stderr: drawn on a terminal, and only once the work has taken longer than a second."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        console = Console(file=stream, markup=False, emoji=False, highlight=False)
        # Whatever the work itself prints stays where it is printed.
        self._drawn = Progress(
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
