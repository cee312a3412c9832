"""Runs the user's command as a child that keeps our terminal, and hands on the signals that only we receive."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from ulpscope.records.errors import UlpscopeError

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ChildExit:
    """How the user's command ended."""

    code: int
    """As a shell reports it: 128 + n after signal n."""
    interrupted: bool


class Child:
    """The user's command while it runs."""

    def __init__(self, *, on_tick: Callable[[], None], on_stop: Callable[[], None]) -> None:
        self._on_tick = on_tick
        self._on_stop = on_stop
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._interrupted = False

    def run(self, command: Sequence[str], *, environment: Mapping[str, str], stdout: int | None) -> ChildExit:
        """Start the command and wait for its end, calling `on_tick` a few times a second."""
        with self._signals():
            self._process = self._start(command, environment=environment, stdout=stdout)
            for number in self._early:
                self._process.send_signal(number)
            code = self._wait(self._process)
        return ChildExit(code=code if code >= 0 else 128 - code, interrupted=self._interrupted)

    def _start(
        self, command: Sequence[str], *, environment: Mapping[str, str], stdout: int | None
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(command, env=environment, stdout=stdout)
        except OSError as error:
            raise UlpscopeError(
                f"{command[0]} cannot be started: {error.strerror}",
                expected="a program, or a script whose first line names its interpreter",
                next_step="name the interpreter: ulpscope run -o TRACE -- bash script.sh",
            ) from error

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                return process.wait(timeout=POLL_SECONDS)
            except subprocess.TimeoutExpired:
                self._on_tick()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        handlers = {
            signal.SIGINT: self._interrupt,
            signal.SIGTERM: self._forward,
            signal.SIGHUP: self._forward,
            signal.SIGTSTP: self._stop,
        }
        # A signal that our caller ignores (nohup, a background job) stays ignored.
        heard = [number for number in handlers if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, handlers[number]) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True
        # The terminal sends Ctrl-C to the child as well; torchrun takes a second one for an order to give up at once.
        if self._process is None or not _own_the_terminal():
            self._forward(number, frame)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._on_stop()
        os.kill(os.getpid(), signal.SIGSTOP)


def _own_the_terminal() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
