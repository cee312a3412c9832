"""Keeps worker processes busy with cases, and outlives whatever becomes of them.

A worker that dies or hangs costs the case it was at: that one is a CRASH or a TIMEOUT, what it had not begun is given
to another worker. Which device a case runs on depends on the case alone, so that results do not depend on how many
workers there are or on who is fastest. Lines of JSON go to it and come from it.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from ulpscope.records.check_runs import CheckedCase
from ulpscope.records.checks import CaseId, CaseResult, Verdict
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.remarks import remark
from ulpscope.replay.frameworks import Framework
from ulpscope.workflows.check.journal import Message, checked_from_json, record_json

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


WORKER = (sys.executable, "-m", "ulpscope.workflows.check.worker")

START_SECONDS = 300.0
"""How long a worker may take to greet: importing a framework from a slow file system takes minutes."""
STARTS_TRIED = 3
CASES_WORTH_A_WORKER = 4
"""A worker takes seconds to start, most cases take milliseconds."""
CASES_AT_ONCE = 8
"""Given to a worker together: their calls are read from the trace in one go."""

# One thread each: the workers themselves use the cores, and sums do not depend on how many threads share them.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS"), "1"
)
# Without this limit oneDNN may choose AMX for bfloat16 on machines whose kernel forbids it: SIGILL.
INSTRUCTION_LIMIT = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How workers are started, and how long they may take."""

    first_line: Mapping[str, Message]
    """By device: the settings that its workers read first."""
    jobs: int
    timeout: float
    framework: Framework = Framework.TORCH
    """What its workers have to import."""
    command: Sequence[str] = WORKER


def device_of(case: CaseId, devices: Sequence[str]) -> str:
    """The device that a case is executed on."""
    return devices[zlib.crc32(case.text.encode()) % len(devices)]


class Pool:
    """Executes cases in worker processes."""

    def __init__(self, cases: Iterable[CaseId], settings: PoolSettings) -> None:
        self.remarks: list[str] = []
        self._settings = settings
        self._environment = {**os.environ, **ONE_THREAD}
        self._limited = False
        self._greeted = False
        self._failed_starts = 0
        self._selector = selectors.DefaultSelector()
        self._workers: list[WorkerProcess] = []
        devices = list(settings.first_line)
        self._waiting: dict[str, deque[CaseId]] = {device: deque() for device in devices}
        for case in cases:
            self._waiting[device_of(case, devices)].append(case)

    def run(self) -> Generator[CheckedCase, None, None]:
        """Results as they come; workers are gone when this ends, however it ends."""
        try:
            self._employ()
            while self._workers:
                deadline = min(worker.deadline for worker in self._workers)
                for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
                    yield from self._hear(key.data)
                yield from self._give_up_on_late()
                self._employ()
        finally:
            for worker in self._workers:
                worker.kill()
            self._selector.close()

    def _employ(self) -> None:
        """Start the workers that are missing, give cases to those without, send home those that nothing waits for."""
        for place, (device, waiting) in enumerate(self._waiting.items()):
            staff = [worker for worker in self._workers if worker.device == device]
            worth = -(-len(waiting) // CASES_WORTH_A_WORKER)
            # Of all workers each device has its share; one at least.
            share, left = divmod(self._settings.jobs, len(self._waiting))
            vacancies = min(max(share + (place < left), 1) - len(staff), worth)
            staff += [self._start(device) for _ in range(vacancies)]
            for worker in staff:
                if worker.idle and waiting:
                    self._order(worker, waiting, staff=len(staff))
                elif not worker.orders and not waiting:
                    self._dismiss(worker)

    def _start(self, device: str) -> WorkerProcess:
        worker = WorkerProcess(self._settings.command, device=device, environment=self._environment)
        worker.send(self._settings.first_line[device])
        worker.deadline = time.monotonic() + START_SECONDS
        self._selector.register(worker.stdout, selectors.EVENT_READ, worker)
        self._workers.append(worker)
        return worker

    def _order(self, worker: WorkerProcess, waiting: deque[CaseId], *, staff: int) -> None:
        # Small orders towards the end, so that all workers end at about the same time.
        number = min(CASES_AT_ONCE, -(-len(waiting) // (2 * staff)))
        worker.orders = deque(waiting.popleft() for _ in range(number))
        worker.send([record_json(case) for case in worker.orders])
        worker.deadline = time.monotonic() + self._settings.timeout

    def _hear(self, worker: WorkerProcess) -> Iterator[CheckedCase]:
        if worker not in self._workers:
            return
        messages = worker.receive()
        if messages is None:
            yield from self._bury(worker)
            return
        for message in messages:
            if worker.greeted:
                worker.orders.popleft()
                worker.deadline = time.monotonic() + self._settings.timeout
                yield checked_from_json(message)
            else:
                self._greet(worker, message)

    def _greet(self, worker: WorkerProcess, message: Message) -> None:
        if "error" in message:
            seen, expected, next_step = message["error"]
            raise UlpscopeError(seen, expected=expected, next_step=next_step)
        worker.greeted = self._greeted = True
        self._failed_starts = 0
        worker.deadline = time.monotonic() + self._settings.timeout

    def _bury(self, worker: WorkerProcess) -> Iterator[CheckedCase]:
        """A worker's stdout is closed: it has ended."""
        code = worker.wait()
        self._forget(worker)
        worker.close()
        if not worker.greeted:
            self._judge_start(worker, code)
        elif worker.orders:
            yield self._lost(worker, Verdict.CRASH, _death(code, worker.last_words))

    def _give_up_on_late(self) -> Iterator[CheckedCase]:
        now = time.monotonic()
        late = [worker for worker in self._workers if worker.deadline <= now]
        # What has come in the meantime is no reason to kill anybody.
        answering = {id(key.data) for key, _ in self._selector.select(0)} if late else set()
        for worker in late:
            if id(worker) in answering:
                continue
            self._dismiss(worker)
            if not worker.greeted:
                raise self._no_start(f"a worker has not started within {START_SECONDS:g} seconds", worker.last_words)
            if worker.orders:
                told = f"not done within {self._settings.timeout:g} seconds (--timeout); the worker was killed"
                yield self._lost(worker, Verdict.TIMEOUT, told)

    def _lost(self, worker: WorkerProcess, verdict: Verdict, message: str) -> CheckedCase:
        case = worker.orders.popleft()
        self._waiting[worker.device].extendleft(reversed(worker.orders))
        return CheckedCase(CaseResult(case, forward=verdict, backward=None, message=message), worker.device)

    def _judge_start(self, worker: WorkerProcess, code: int) -> None:
        """A worker died before it greeted: try again where that may help, or say why nothing can be checked."""
        name, limit = INSTRUCTION_LIMIT
        if code == -signal.SIGILL and name not in worker.environment:
            if not self._limited:
                self._limited = True
                self._environment[name] = limit
                self.remarks.append(remark("sigill", setting=f"{name}={limit}"))
            return
        self._failed_starts += 1
        if not self._greeted or self._failed_starts >= STARTS_TRIED:
            raise self._no_start(f"a worker {_death(code, '')} before it was ready", worker.last_words)

    def _no_start(self, seen: str, last_words: str) -> UlpscopeError:
        package = self._settings.framework.value
        return UlpscopeError(
            f"{seen}: {last_words}" if last_words else seen,
            expected=f"a worker process in which {package} can be imported ({sys.executable})",
            next_step=f"install {package} for this interpreter, or repeat with --jobs 1 if memory is short",
        )

    def _dismiss(self, worker: WorkerProcess) -> None:
        self._forget(worker)
        worker.kill()

    def _forget(self, worker: WorkerProcess) -> None:
        self._selector.unregister(worker.stdout)
        self._workers.remove(worker)


def _death(code: int, last_words: str) -> str:
    names = {each.value: each.name for each in signal.Signals}
    told = f"exited with code {code}" if code >= 0 else f"died of {names.get(-code, f'signal {-code}')}"
    if code == -signal.SIGKILL:
        told += ", perhaps for want of memory"
    return f"{told}: {last_words}" if last_words else told
