"""Ctrl-C while processes work side by side: the command ends at once, they end with it, and none of them complains."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ulpscope.workflows.worker_pool import WorkerPool

DATA = Path(__file__).parents[1] / "data" / "ascend" / "precision_data"
DUMPS = DATA / "npu" / "debug_0" / "dump"
GRAPH = DATA / "npu" / "debug_0" / "graph" / "ge_proto_00000_Build.txt"

# The command, but with processes for the smallest data; it waits when the first worker has just been started.
COMMAND = """
import sys
from ulpscope.cli.main import main
from ulpscope.workflows.network import measuring as compare_network_pool
from ulpscope.workflows import convert as convert_dumps
from ulpscope.workflows.worker_pool import WorkerPool

convert_dumps._WORTH_PROCESSES = compare_network_pool._WORTH_WORKERS = 0
compare_network_pool._BATCH = 1
submit = WorkerPool.submit

def submit_and_wait(pool, *work):
    WorkerPool.submit = submit
    submit(pool, *work)
    print("started", flush=True)
    sys.stdin.read()

WorkerPool.submit = submit_and_wait
sys.exit(main(sys.argv[1:]))
"""

WORKING = """
import os, signal, sys
from ulpscope.cli import main as cli
from ulpscope.workflows.worker_pool import WorkerPool

def work(words):
    with WorkerPool(1) as pool:
        worker = pool.submit(os.getpid).result()
        first, *others = [pool.submit(signal.pause) for _ in range(6)]
        others[-1].cancel()
        print(worker, flush=True)
        first.result()

cli._dispatch = work
sys.exit(cli.main([]))
"""


def interrupted(program: str, *words: str) -> tuple[str, int, str]:
    """The first line of a program, then what becomes of it when a terminal's Ctrl-C comes: exit code and stderr."""
    # A process group of its own, as a terminal gives it: the workers hear the signal, too.
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    return line, process.returncode, errors


@pytest.mark.parametrize("command", ["convert", "compare"])
def test_workers_that_are_just_starting_say_nothing(command: str, tmp_path: Path) -> None:
    words = {
        "convert": ["convert", str(DUMPS), "--to", "npy", "-o", str(tmp_path / "out"), "--jobs", "2"],
        "compare": ["compare", str(DATA / "tf" / "dump"), str(DUMPS), "--graph", str(GRAPH), "--jobs", "2"],
    }
    assert interrupted(COMMAND, *words[command]) == ("started", 130, "")


def test_workers_at_work_end_with_the_command() -> None:
    worker, code, errors = interrupted(WORKING)
    assert (code, errors) == (130, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(worker), 0)


def test_a_worker_that_is_just_starting_ignores_the_signal() -> None:
    others = multiprocessing.active_children()
    with WorkerPool(1) as pool:
        found = pool.submit(os.getpid)
        (worker,) = (each for each in multiprocessing.active_children() if each not in others)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGINT)
        assert found.result() == worker.pid


def test_a_worker_at_work_ignores_the_signal() -> None:
    with WorkerPool(1) as pool:
        pool.submit(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGINT}).result()
        worker = pool.submit(os.getpid).result()
        os.kill(worker, signal.SIGINT)
        assert pool.submit(os.getpid).result() == worker


@pytest.fixture
def another_thread() -> Iterator[None]:
    """One that does not block the signal, as libraries have."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.fixture
def heard() -> Iterator[int]:
    """A pipe with a byte in it once any thread has received a signal."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write)
    yield read
    signal.set_wakeup_fd(before)
    os.close(read)
    os.close(write)


@pytest.mark.usefixtures("another_thread")
def test_a_signal_waits_until_a_worker_is_started(monkeypatch: pytest.MonkeyPatch, heard: int) -> None:
    started: list[Any] = []

    def submit(pool: ProcessPoolExecutor, function: Any) -> Future[Any]:
        os.kill(os.getpid(), signal.SIGINT)
        os.read(heard, 1)
        started.append(function)
        return Future()

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        WorkerPool(1).submit(os.getpid)
    assert started == [os.getpid]
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_each_worker_is_started_as_was_asked() -> None:
    with WorkerPool(1, os.chdir, ("/",)) as pool:
        assert pool.submit(os.getcwd).result() == "/"
