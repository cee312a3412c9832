"""What saving data costs: its speed against the disk's own, its bytes against msprobe's, bytes a value of stats.

    python benchmarks/saving.py
    python benchmarks/saving.py --msprobe MSPROBE_ENV/bin/python

The disk's speed is that of large sequential writes of random bytes to one file, until they have been synced (fsync). A
run that makes tensors faster than that is captured with all its data, CPU and one thread; it is timed until the capture
is closed and every file of the trace is synced, too. Small contents are also packed without a run around them: a run of
them is bound by its calls. The disk and the runs alternate; speeds are the best of the rounds, shares of the disk's
speed their median, each against the disk just before.

MSPROBE_ENV is an environment with mindstudio-probe==26.2.0, torch, and what ulpscope needs. The same training steps
(the small GPT of capture.py) are captured here with `--save tensors` and there with `task: tensor`; what both leave on
disk is counted. Without the environment this part is skipped. Exit code 1 if a bar is missed.
"""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

import ulpscope
from capture_tools import MODELS, Training
from ulpscope.trace.data import DataPacker
from ulpscope.trace.reader import open_trace

SPEED_BAR = 0.70
MSPROBE_BAR = 0.60
VALUE_BAR = 500
KIB, MIB = 2**10, 2**20
ROUNDS = 3
STEPS = 2
MSPROBE_LEVELS = ("L1", "mix")
DEFAULT_MSPROBE = Path(__file__).resolve().parents[1] / ".scratch" / "msprobe-env" / "bin" / "python"


@dataclass(frozen=True)
class Load:
    """Contents of one size, and whether saving them has to keep up with the disk."""

    name: str
    nbytes: int
    total: int
    judged: bool = True

    @property
    def count(self) -> int:
        return self.total // self.nbytes


LOADS = (
    Load("64 MiB", 64 * MIB, 2048 * MIB),
    Load("1 MiB", MIB, 2048 * MIB),
    Load("16 KiB", 16 * KIB, 128 * MIB, judged=False),
)
PACKED = Load("16 KiB, packed", 16 * KIB, 2048 * MIB)
DISK = Load("the disk's own", 64 * MIB, 2048 * MIB)


@dataclass(slots=True)
class Speeds:
    """Bytes a second of several rounds, until written and until synced, and what the run felt of it."""

    written: list[float] = field(default_factory=list)
    synced: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    """Of the disk's own speed just before."""
    slowdowns: list[float] = field(default_factory=list)
    waits: int = 0

    def add(self, nbytes: int, began: float, written: float, synced: float) -> None:
        self.written.append(nbytes / (written - began))
        self.synced.append(nbytes / (synced - began))

    def __str__(self) -> str:
        share = f"{statistics.median(self.shares):13.0%}" if self.shares else ""
        felt = f"{self.waits:7}{min(self.slowdowns):11.1f}x" if self.slowdowns else ""
        return f"{max(self.written) / 1e9:7.2f} GB/s{max(self.synced) / 1e9:7.2f} GB/s{share}{felt}"


@dataclass(frozen=True)
class Bar:
    what: str
    seen: str
    holds: bool


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--msprobe", type=Path, default=DEFAULT_MSPROBE, help="Python of an environment with msprobe")
    parser.add_argument("--folder", type=Path, help="where to write (default: the system's folder for such files)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--dump-with-msprobe", nargs=2, metavar=("LEVEL", "DIR"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    if arguments.dump_with_msprobe:
        dump_with_msprobe(*arguments.dump_with_msprobe)
        return 0
    bars = [*speed_bars(arguments.folder, arguments.rounds), *size_bars(arguments.folder, arguments.msprobe)]
    for bar in bars:
        print(f"{'ok    ' if bar.holds else 'MISSED'} {bar.what}: {bar.seen}")
    return 0 if all(bar.holds for bar in bars) else 1


def speed_bars(parent: Path | None, rounds: int) -> Iterator[Bar]:
    disk = Speeds()
    measured = {load: Speeds() for load in (*LOADS, PACKED)}
    for _ in range(rounds):
        for load, speeds in measured.items():
            in_folder(parent, functools.partial(write_plainly, DISK, disk))
            in_folder(parent, functools.partial(pack_small if load is PACKED else capture_load, load, speeds))
            speeds.shares.append(speeds.synced[-1] / disk.synced[-1])
    print(f"{'':16}{'closed':>12}{'synced':>12}{'of the disk':>13}{'waits':>7}{'run slowed':>12}")
    print(f"{DISK.name:16}{disk}")
    for load, speeds in measured.items():
        print(f"{load.name:16}{speeds}")
    for load, speeds in measured.items():
        share = statistics.median(speeds.shares)
        if load.judged:
            yield Bar(f"{load.name} contents, of the disk's speed", f"{share:.0%}, at least 70 %", share >= SPEED_BAR)


def in_folder(parent: Path | None, work: Callable[[Path], None]) -> None:
    """Work in an empty folder, with nothing of earlier work left for the disk to do."""
    with tempfile.TemporaryDirectory(prefix="ulpscope-saving-", dir=parent) as folder:
        os.sync()
        work(Path(folder))


def write_plainly(load: Load, speeds: Speeds, folder: Path) -> None:
    block = np.random.default_rng(0).bytes(load.nbytes)
    began = time.perf_counter()
    with (folder / "plain").open("wb", buffering=0) as file:
        for number in range(load.count):
            file.write(block)
            # The disk begins at once, as it does with a capture's packs.
            os.posix_fadvise(file.fileno(), number * load.nbytes, load.nbytes, os.POSIX_FADV_DONTNEED)
    written = time.perf_counter()
    sync_files(folder)
    speeds.add(load.total, began, written, time.perf_counter())


def capture_load(load: Load, speeds: Speeds, folder: Path) -> None:
    tensor = torch.randn(load.nbytes // 4)
    plain = seconds_of(lambda: change_often(tensor, load.count))
    out = folder / "trace"
    began = time.perf_counter()
    with ulpscope.capture(out, save="tensors"):
        captured = seconds_of(lambda: change_often(tensor, load.count))
    closed = time.perf_counter()
    sync_files(folder)
    synced = time.perf_counter()
    info = open_trace(out).ranks[0].info
    if info.errors or info.coverage.saved_bytes < load.total:
        raise SystemExit(f"saving: {info.coverage.saved_bytes} bytes saved of {load.total}; errors: {info.errors}")
    speeds.add(info.coverage.saved_bytes, began, closed, synced)
    speeds.slowdowns.append(captured / plain)
    speeds.waits = max(speeds.waits, info.coverage.waits)


def change_often(tensor: torch.Tensor, count: int) -> None:
    """Every change is another content, and costs a fraction of what the disk needs for it."""
    for _ in range(count):
        tensor.add_(1.0)


def pack_small(load: Load, speeds: Speeds, folder: Path) -> None:
    """The writer's work alone: thousands of contents, all of them different."""
    contents = np.random.default_rng(0).integers(0, 256, (64 * MIB // load.nbytes, load.nbytes), dtype=np.uint8)
    packer = DataPacker(folder)
    began = time.perf_counter()
    for number in range(load.count):
        raw = contents[number % len(contents)]
        packer.add(0, raw=raw, dtype="uint8", shape=raw.shape, digest=number)
    packer.flush(0)
    written = time.perf_counter()
    sync_files(folder)
    speeds.add(load.total, began, written, time.perf_counter())


def sync_files(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())


def seconds_of(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def size_bars(parent: Path | None, msprobe: Path) -> Iterator[Bar]:
    with tempfile.TemporaryDirectory(prefix="ulpscope-saving-", dir=parent) as name:
        folder = Path(name)
        stats, tensors = (captured_bytes(folder / save, save) for save in ("stats", "tensors"))
        yield Bar("bytes a value, stats", f"{stats:.0f}, at most {VALUE_BAR}", stats <= VALUE_BAR)
        ours = bytes_below(folder / "tensors")
        if not msprobe.exists():
            print(f"skipped: msprobe's bytes, there is no {msprobe} (ours: {ours / 1e6:.1f} MB, {tensors:.0f} a value)")
            return
        for level in MSPROBE_LEVELS:
            theirs = msprobe_bytes(msprobe, level, folder / level)
            seen = f"{ours / 1e6:.1f} MB of {theirs / 1e6:.1f} MB, {ours / theirs:.0%}, at most 60 %"
            yield Bar(
                f"bytes of the tensors of {STEPS} steps, against msprobe {level}", seen, ours <= MSPROBE_BAR * theirs
            )


def captured_bytes(out: Path, save: str) -> float:
    """Bytes a value of the training, captured."""
    training = Training(MODELS["small"], "cpu")
    with ulpscope.capture(out, save=save, model=training.model):
        for _ in range(STEPS):
            training.step()
    info = open_trace(out).ranks[0].info
    if info.errors or info.coverage.not_saved:
        raise SystemExit(f"saving: {info.coverage.not_saved} values not saved; errors: {info.errors}")
    return bytes_below(out) / info.coverage.values


def bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def msprobe_bytes(python: Path, level: str, folder: Path) -> int:
    """What msprobe leaves of the same training; it refuses folders that others may write."""
    folder.mkdir(mode=0o750)
    sources = Path(ulpscope.__file__).parents[1]
    command = [str(python), str(Path(__file__).resolve()), "--dump-with-msprobe", level, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, umask=0o027, check=False)
    if done.returncode:
        raise SystemExit(f"msprobe ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return bytes_below(folder / "dump")


def dump_with_msprobe(level: str, folder: str) -> None:
    from msprobe.pytorch import PrecisionDebugger

    config = Path(folder) / "config.json"
    settings = {"task": "tensor", "dump_path": str(Path(folder) / "dump"), "rank": [], "step": [], "level": level}
    config.write_text(json.dumps({**settings, "tensor": {"scope": [], "list": [], "data_mode": ["all"]}}))
    training = Training(MODELS["small"], "cpu")
    debugger = PrecisionDebugger(config_path=str(config))
    for _ in range(STEPS):
        debugger.start(model=training.model)
        training.step()
        debugger.stop()
        debugger.step()


if __name__ == "__main__":
    sys.exit(main())
