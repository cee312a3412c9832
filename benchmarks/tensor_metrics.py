"""How fast pairs of tensors are compared, and in how much memory.

    python benchmarks/tensor_metrics.py [--megabytes 256] [--seconds 3] [--directory DIR] [--msprobe PYTHON]

Makes pairs of files in a temporary directory (no pair identical), maps them, and prints GB/s (bytes of both sides, page
cache warm, best of many) of the default and the detailed metrics, with one thread and with two that share the work:
by CPU time and by the clock; and the peak of anonymous memory. With --msprobe, the Python of an environment that has
mindstudio-probe: the CPU time that its own comparison takes for the same tensors, saved by torch, in one thread.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES, numpy_dtype
from ulpscope.numerics.pairs.metrics import compare_arrays

# Name, reference, target, and the least GB/s of default and detailed metrics that are asked for.
CASES = (
    ("float32", "float32", "float32", 2.0, 0.5),
    ("bfloat16", "bfloat16", "bfloat16", 2.0, 0.5),
    ("float16", "float16", "float16", None, None),
    ("float64", "float64", "float64", None, None),
    ("bfloat16 / float32", "bfloat16", "float32", None, None),
    ("float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn", None, None),
    ("int64", "int64", "int64", None, None),
    ("float32 transposed", "float32", "float32", 1.0, 0.4),
)
MSPROBE_CASES = ("float32", "bfloat16")
MSPROBE_SCRIPT = """
import json, sys, time
import numpy as np, torch
torch.set_num_threads(1)
from msprobe.core.compare.npy_compare import CompareResult, ValidateTensor, compare_ops_apply

def load(path, dtype):
    # What msprobe does with a saved tensor: torch.load, and bfloat16 widened to float32.
    tensor = torch.load(path, weights_only=True)
    return (tensor.to(torch.float32) if tensor.dtype == torch.bfloat16 else tensor).numpy()

for name, reference, target in json.loads(sys.argv[1]):
    start = time.process_time()
    result = ValidateTensor().check_tensor(CompareResult(load(target, name), load(reference, name)))
    compare_ops_apply(result.n_value, result.b_value, result.error_flag, result.err_msg)
    peak = [line for line in open("/proc/self/status") if "VmHWM" in line]
    print(json.dumps([name, time.process_time() - start, peak]), flush=True)
"""

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Mapped:
    """A pair of files, mapped."""

    reference: Array
    target: Array
    names: tuple[str, str]

    @property
    def bytes(self) -> int:
        return self.reference.nbytes + self.target.nbytes

    def part(self, index: int, count: int) -> "Mapped":
        bounds = slice(len(self.reference) * index // count, len(self.reference) * (index + 1) // count)
        return Mapped(self.reference[bounds], self.target[bounds], self.names)

    def compare(self, detailed: bool) -> None:
        left, right = self.names
        compare_arrays(self.reference, self.target, reference_dtype=left, target_dtype=right, detailed=detailed)


def elements(numbers: NDArray[np.float32], name: str) -> Array:
    scaled = numbers * np.float32(1e6) if name.startswith("int") else numbers
    return scaled.astype(numpy_dtype(name))


def write_pair(directory: Path, name: str, names: tuple[str, str], size_bytes: int) -> Mapped:
    """Normal numbers; the target is off by about a hundredth."""
    count = 2 * size_bytes // sum(DTYPES[side].item_size for side in names)
    files = [directory / f"{name.replace(' / ', '-')}.{side}" for side in ("reference", "target")]
    rng = np.random.default_rng(0)
    with open(files[0], "wb") as reference_file, open(files[1], "wb") as target_file:
        for start in range(0, count, 1 << 20):
            reference = rng.standard_normal(min(1 << 20, count - start), dtype=np.float32)
            target = reference + np.float32(0.01) * rng.standard_normal(len(reference), dtype=np.float32)
            elements(reference, names[0]).tofile(reference_file)
            elements(target, names[1]).tofile(target_file)
    reference_map, target_map = (
        np.memmap(file, np.uint8, mode="r").view(numpy_dtype(side)) for file, side in zip(files, names, strict=True)
    )
    if "transposed" in name:
        return Mapped(reference_map.reshape(-1, 4096).T, target_map.reshape(-1, 4096).T, names)
    return Mapped(reference_map, target_map, names)


def best_seconds(run: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Wall time, and CPU time of all threads: on a machine with other work only the second tells a core's speed."""
    run()
    wall = cpu = float("inf")
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        start, start_cpu = time.perf_counter(), time.process_time()
        run()
        wall, cpu = min(wall, time.perf_counter() - start), min(cpu, time.process_time() - start_cpu)
    return wall, cpu


def in_two_threads(pair: Mapped, detailed: bool) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda index: pair.part(index, 8).compare(detailed), range(8)))


def anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/status tells no RssAnon")


@contextmanager
def peak_anonymous() -> Iterator[list[int]]:
    """Samples anonymous memory every millisecond; the list gets the peak above the start."""
    # What was freed before must not hide what is allocated now.
    ctypes.CDLL(None).malloc_trim(0)
    start, peak, done = anonymous(), [0], threading.Event()

    def sample() -> None:
        while not done.wait(0.001):
            peak[0] = max(peak[0], anonymous() - start)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield peak
    finally:
        done.set()
        sampler.join()


def measure(name: str, pair: Mapped, *, detailed: bool, bar: float | None, seconds: float) -> bool:
    pair.part(0, 1000).compare(detailed)
    with peak_anonymous() as peak:
        pair.compare(detailed)
    one, one_cpu = best_seconds(lambda: pair.compare(detailed), seconds)
    two, two_cpu = best_seconds(lambda: in_two_threads(pair, detailed), seconds)
    speed = pair.bytes / one_cpu / 1e9
    told = "" if bar is None else f"bar {bar}: {'ok' if speed >= bar else 'MISSED'}"
    walls = f"{pair.bytes / one / 1e9:6.2f} {pair.bytes / two / 1e9:6.2f} {one / two:5.2f}x"
    figures = f"{speed:6.2f} {pair.bytes / two_cpu / 1e9:6.2f} {walls} {peak[0] / 2**20:6.1f} MiB"
    print(f"{name:20} {'detailed' if detailed else 'default':9} {figures}  {told}".rstrip(), flush=True)
    return bar is None or speed >= bar


def run_msprobe(python: str, directory: Path, pairs: dict[str, Mapped]) -> None:
    import torch

    cases = []
    for name in MSPROBE_CASES:
        paths = []
        for side in ("reference", "target"):
            bits = np.array(getattr(pairs[name], side)).view(np.int16 if name == "bfloat16" else np.float32)
            tensor = torch.from_numpy(bits)
            paths.append(str(directory / f"{name}.{side}.pt"))
            torch.save(tensor.view(torch.bfloat16) if name == "bfloat16" else tensor, paths[-1])
        cases.append([name, *paths])
    command = [python, "-c", MSPROBE_SCRIPT, json.dumps(cases + cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"msprobe failed:\n{done.stderr[-2000:]}")
    for line in done.stdout.splitlines():
        if line.startswith('["'):
            name, seconds, memory = json.loads(line)
            speed = f"{pairs[name].bytes / seconds / 1e9:6.3f} GB/s a core"
            print(f"msprobe {name:12} {seconds:7.2f} s {speed} {' '.join(memory[0].split())}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256, help="size of each file")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each case is repeated")
    parser.add_argument("--directory", type=Path, help="where to put the files")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--msprobe", metavar="PYTHON", help="interpreter of an environment with mindstudio-probe")
    args = parser.parse_args()
    fine = True
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        pairs: dict[str, Mapped] = {}
        print(f"{'':30} GB/s a core   GB/s by the clock")
        print(f"{'types':20} {'metrics':9} {'1':>6} {'2 thr.':>6} {'1':>6} {'2 thr.':>6} {'gain':>6} {'anonymous':>10}")
        for name, *names, default, detailed in CASES:
            if args.only is not None and args.only not in name:
                continue
            pair = pairs[name] = write_pair(Path(directory), name, (names[0], names[1]), args.megabytes << 20)
            fine &= measure(name, pair, detailed=False, bar=default, seconds=args.seconds)
            fine &= measure(name, pair, detailed=True, bar=detailed, seconds=args.seconds)
        if args.msprobe:
            run_msprobe(args.msprobe, Path(directory), pairs)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
