"""Feeds damaged files to commands and readers: each must give a clear error or an answer, soon and in little memory.

    python benchmarks/hostile.py --files 2000 [--case calls] [--first 0]

Mutation number N of a case is always the same: `--first N --files 1` repeats it. A command may end with any exit code
but 70, a reader may raise UlpscopeError and nothing else; neither may take SECONDS of processor time or WAIT in all, or
need more memory than 4 times the file and 1 GB. To add a kind of files, add a case: what lies there soundly, which of
it is damaged and how, and what is done with it.
"""

import argparse
import contextlib
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hostile_ascend import FILE_CASES
from hostile_damages import SECRET, Damage, damage_bytes, restore
from hostile_graphs import GRAPH_CASES
from hostile_runs import RUN_CASES
from ulpscope.records.errors import UlpscopeError

SECONDS = 5
WAIT = 60
MEMORY_A_BYTE, MEMORY = 4, 2**30
BATCH = 500


@dataclass(frozen=True)
class Case:
    """One kind of files."""

    lay: Callable[[Path], Sequence[Path]]
    """Writes sound files into a folder; gives those of which one is damaged each time."""
    damage: Damage
    read: Callable[[Path, int], str | None]
    """Does with a damaged file what users do, the number chooses what; gives `error` where that was told."""


@dataclass
class Laid:
    """The sound files of a case in a folder."""

    case: Case
    folder: Path
    sound: dict[Path, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "secret.txt").write_text(f"{SECRET}\n" * 3)
        self.sound = {path: path.read_bytes() for path in self.case.lay(self.folder)}

    def outcome(self, number: int) -> str:
        """What is made of mutation `number`: `answer`, `error`, or what is wrong with it."""
        path, content = list(self.sound.items())[number % len(self.sound)]
        self.case.damage(path, np.random.default_rng([number, len(content)]))
        try:
            return judged(lambda: self.case.read(path, number // len(self.sound)), size=max(len(content), _size(path)))
        finally:
            restore(path, content)


def files_case(sound: Callable[[], Sequence[bytes]], read: Callable[[Path], None]) -> Case:
    """Files that stand alone, as a reader is given them."""

    def lay(folder: Path) -> list[Path]:
        paths = []
        for number, content in enumerate(sound()):
            paths.append(folder / str(number) / "Relu.fc1_Relu.21.0.1767225600021123")
            paths[-1].parent.mkdir()
            paths[-1].write_bytes(content)
        return paths

    return Case(lay, damage_bytes, lambda path, _: read(path))


CASES: dict[str, Case] = {
    **{name: Case(*case) for name, case in RUN_CASES.items()},
    **{name: files_case(*case) for name, case in (FILE_CASES | GRAPH_CASES).items()},
}


def judged(read: Callable[[], str | None], *, size: int) -> str:
    """What reading gives."""
    signal.signal(signal.SIGALRM, _time_out)
    signal.alarm(WAIT)
    before, started = _most_memory(), time.process_time()
    try:
        found = read() or "answer"
    except UlpscopeError as error:
        found = "error" if error.seen and error.expected and error.next_step else "an error that does not say enough"
    except TimeoutError:
        found = "hangs"
    except BaseException:  # whatever else a reader raises is what is looked for here
        found = traceback.format_exc(limit=-4)
    finally:
        signal.alarm(0)
    taken = time.process_time() - started
    if taken > SECONDS:
        return f"takes {taken:.0f} s"
    more = _most_memory() - before
    return f"takes {more / 2**20:,.0f} MB" if more > MEMORY + MEMORY_A_BYTE * min(size, 2**28) else found


def _size(path: Path) -> int:
    return path.stat().st_blocks * 512 if path.is_file() else 0


def _most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _time_out(number: int, frame: object) -> None:
    raise TimeoutError


def run_batch(name: str, numbers: range, results: "multiprocessing.SimpleQueue[tuple[int, str]]") -> None:
    """In a process of its own: a range of mutations, each with what was made of it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        laid = Laid(CASES[name], Path(folder))
        for path in laid.sound:  # loading a framework is not what a damaged file costs
            with contextlib.suppress(UlpscopeError):
                laid.case.read(path, 0)
        for number in numbers:
            results.put((number, laid.outcome(number)))


def check(name: str, first: int, files: int) -> tuple[Counter[str], dict[int, str]]:
    """Counts of outcomes, and the mutations that went wrong."""
    counts: Counter[str] = Counter()
    wrong: dict[int, str] = {}
    start = first
    while start < first + files:
        numbers = range(start, min(start + BATCH, first + files))
        start = numbers.stop
        reached = numbers.start
        for number, found in _in_process(name, numbers):
            counts[found if found in ("answer", "error") else "wrong"] += 1
            if found not in ("answer", "error"):
                wrong[number] = found
            reached = number + 1
        if reached < numbers.stop:
            wrong[reached] = "the process died"
            counts["wrong"] += 1
            start = reached + 1
    return counts, wrong


def _in_process(name: str, numbers: range) -> Iterator[tuple[int, str]]:
    # A forked process would wait for ever for polars' threads, which it has not.
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=run_batch, args=(name, numbers, results))
    process.start()
    for _ in numbers:
        waiting = time.monotonic()
        while results.empty():
            if (not process.is_alive() and results.empty()) or time.monotonic() - waiting > 3 * WAIT:
                process.kill()
                process.join()
                return
            time.sleep(0.002)
        yield results.get()
    process.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000, help="mutations of each case")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--case", choices=CASES, action="append")
    args = parser.parse_args()
    failed = False
    for name in args.case or CASES:
        started = time.perf_counter()
        counts, wrong = check(name, args.first, args.files)
        told = ", ".join(f"{counts[word]:,} {word}" for word in ("answer", "error", "wrong"))
        print(f"{name:<14} {told} in {time.perf_counter() - started:.0f} s", flush=True)
        for number, why in list(wrong.items())[:5]:
            print(f"  mutation {number}: {why}", flush=True)
        failed = failed or bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
