"""The fused CUDA kernels: do their rows equal the plain reference's, and how fast do they read?

    python benchmarks/fused.py [--speed-only]

Equality: digest, counts, bins, minimum and maximum to the bit, sums and sketch to rounding, over dtypes, lengths around
borders, layouts and strange contents. Speed: the device's time for a launch and bytes a second, by size and dtype,
against torch.sum; launches come from a CUDA graph, so that the host does not matter. Then the host's time for a launch.
Exit code 1 if a row differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import numpy as np
import torch
from torch import Tensor

from ulpscope.capture.torch.summaries.launching import FusedRows, Read, make_reader, plan
from ulpscope.numerics.summaries.constants import (
    ABS_SUM,
    DIGEST,
    NAN,
    ROW_LENGTH,
    SKETCH,
    SUM,
    SUM_SQUARES,
)
from ulpscope.numerics.summaries.summary import summarize

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
LENGTHS = (0, 1, 2, 61, 121, 122, 123, 1951, 1952, 1953, 8 * 1952, 8 * 1952 + 5, 40 * 1952, 1_000_003)
SIZES = (2**12, 2**20, 2**24, 2**26, 2**29)
PIECES = 16
LAUNCHES = 16


def contents(length: int, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Tensors of one length whose summaries take different paths."""
    torch.manual_seed(length)
    if dtype not in FLOATS:
        top = 2 if dtype == torch.bool else 100
        yield "integers", torch.randint(0, top, (length,)).to(dtype)
        return
    normal = torch.randn(length)
    yield "normal", normal.to(dtype)
    yield "relu", normal.relu().to(dtype)
    yield "tiny", (normal * 1e-30).to(dtype)
    yield "wide", (normal * torch.exp(normal * 20)).to(dtype)
    yield "large", (normal * 2.0**28).to(dtype)
    yield "constant", torch.full((length,), 0.1).to(dtype)
    yield "zero", torch.zeros(length, dtype=dtype)
    strange = normal.clone()
    for start, value in enumerate((float("inf"), -float("inf"), float("nan"), -0.0, 1e-41, 2.0**29, -1e9)):
        strange[start * 7 :: 97] = value
    yield "strange", strange.to(dtype)


def layouts(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Ways to look at a tensor of 48 x 40 x 64 elements."""
    yield "contiguous", lambda x: x
    yield "transposed", lambda x: x.transpose(0, 1)
    yield "inner transposed", lambda x: x.transpose(1, 2)
    yield "columns", lambda x: x[:, :, 8:40]
    yield "odd columns", lambda x: x[:, :, 3:36]
    yield "every second", lambda x: x[::2, :, ::2]
    yield "expanded", lambda x: x[:, :1].expand(48, 70, 64)
    yield "unaligned", lambda x: x.flatten()[1:100_001]
    yield "heads", lambda x: x.view(8, 6, 40, 64).permute(0, 2, 1, 3)


def reference(tensor: Tensor) -> np.ndarray:
    host = tensor.cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    array = host.view(torch.int16).numpy() if name == "bfloat16" else host.numpy()
    return summarize(array, name)


def differences(row: np.ndarray, expected: np.ndarray) -> list[str]:
    found = []
    if row[DIGEST : DIGEST + 1].tobytes() != expected[DIGEST : DIGEST + 1].tobytes():
        found.append("digest")
    if not np.array_equal(row[NAN:SKETCH], expected[NAN:SKETCH]):
        found.append("counts")
    if not np.array_equal(row[:SUM], expected[:SUM]):
        found.append(f"range {row[:SUM]} {expected[:SUM]}")
    size = expected[ABS_SUM] or max(abs(expected[SUM]), 1e-300)
    for slot, scale in ((SUM, size), (SUM_SQUARES, expected[SUM_SQUARES]), (ABS_SUM, size)):
        if abs(row[slot] - expected[slot]) > 1e-6 * scale:
            found.append(f"sum {slot}: {row[slot]} {expected[slot]}")
    norm = float(np.sqrt(expected[SUM_SQUARES]))
    worst = np.abs(row[SKETCH:DIGEST] - expected[SKETCH:DIGEST]).max()
    if worst > 1e-6 * norm:
        found.append(f"sketch off by {worst / (norm or 1.0):.1e}")
    return found


def planned(tensor: Tensor, row: Tensor) -> Read:
    one = plan(tensor, row.data_ptr())
    assert one is not None
    return one


def check(reader: FusedRows, cases: list[tuple[str, Tensor]]) -> int:
    """Read all at once and compare; gives the number of wrong rows."""
    rows = torch.zeros((len(cases), ROW_LENGTH), dtype=torch.int64, device="cuda")
    reader.read([planned(tensor, rows[i]) for i, (_, tensor) in enumerate(cases)])
    reader.join()
    host = rows.cpu().numpy().view(np.float64)
    wrong = 0
    for (name, tensor), row in zip(cases, host, strict=True):
        found = differences(row, reference(tensor))
        if found:
            wrong += 1
            if wrong <= 12:
                print(f"WRONG {name}: {'; '.join(found)}", flush=True)
    return wrong


def equality(reader: FusedRows, names: list[str]) -> int:
    wrong = total = 0
    for dtype in (getattr(torch, name) for name in names):
        began = time.perf_counter()
        cases = [
            (f"{dtype} {length} {kind}", tensor.cuda())
            for length in LENGTHS
            for kind, tensor in contents(length, dtype)
        ]
        cases += [
            (f"{dtype} {name} {kind}", look(tensor.cuda().view(48, 40, 64)))
            for name, look in layouts(dtype)
            for kind, tensor in contents(48 * 40 * 64, dtype)
        ]
        cases = [case for case in cases if plan(case[1], 0) is not None]
        failed = check(reader, cases) + sum(check(reader, [case]) for case in cases[::5])
        again = check(reader, cases[:3])
        wrong, total = wrong + failed + again, total + len(cases)
        print(f"{dtype}: {len(cases)} values, {failed} wrong, {time.perf_counter() - began:.1f} s", flush=True)
    print(f"{total} values, {wrong} wrong rows", flush=True)
    return wrong


def seconds(stream: torch.cuda.Stream, work: Callable[[Tensor], object], pieces: Tensor) -> float:
    """Of the device, for the work on one piece, done on all of them in turn."""
    with torch.cuda.stream(stream):
        work(pieces[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for turn in range(LAUNCHES):
            work(pieces[turn % len(pieces)])
    return min(elapsed(graph.replay) for _ in range(4)) / LAUNCHES


def elapsed(work: Callable[[], object]) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    work()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3


def speed(reader: FusedRows, stream: torch.cuda.Stream) -> None:
    rows = torch.zeros((4, ROW_LENGTH), dtype=torch.int64, device="cuda")

    def read(*values: Tensor) -> None:
        reader.read([planned(value, row) for value, row in zip(values, rows, strict=False)])

    kinds: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], object]]] = {
        "torch.sum": (lambda x: x, lambda x: x.sum()),
        "normal": (lambda x: x, read),
        "four at once": (lambda x: x, lambda x: read(*x.view(4, -1))),
        "behind a relu": (torch.relu, read),
        "behind a gelu": (lambda x: torch.nn.functional.gelu(2 * x), read),
        "wide": (lambda x: x * torch.exp(6 * x), read),
        "half of columns": (lambda x: x, lambda x: read(x.view(-1, 256)[:, :128])),
        "heads": (lambda x: x, lambda x: read(x.view(-1, 16, 64).transpose(0, 1))),
    }
    print(f"{'us, TB/s':26}" + "".join(f"{size / 2**20:>9.3f} MB   " for size in SIZES))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        item = dtype.itemsize
        base = torch.randn(SIZES[-1] // item, device="cuda").to(dtype)
        for name, (make, work) in kinds.items():
            data = make(base)
            line = f"{str(dtype)[6:]:10}{name:16}"
            for size in SIZES:
                reader.join()
                took = seconds(stream, work, data.view(-1, size // item)[:PIECES])
                line += f" {took * 1e6:7.1f} {size / (2 if 'half' in name else 1) / took / 1e12:4.2f}  "
            print(line, flush=True)
    host_cost(reader, rows)


def host_cost(reader: FusedRows, rows: Tensor) -> None:
    small = [torch.randn(1024, device="cuda") for _ in range(300)]
    for count in (1, 3, 300):
        best = float("inf")
        for _ in range(30):
            torch.cuda.synchronize()
            began = time.perf_counter()
            reader.read([planned(tensor, rows[0]) for tensor in small[:count]])
            best = min(best, time.perf_counter() - began)
        print(f"{count} small values: {best * 1e6:.1f} us of the host", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed-only", action="store_true")
    parser.add_argument("--dtypes", nargs="*", default=[str(dtype)[6:] for dtype in FLOATS + INTEGERS])
    arguments = parser.parse_args()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        reader = make_reader(torch.device("cuda", 0))
        assert reader is not None, "needs CUDA"
        wrong = 0 if arguments.speed_only else equality(reader, arguments.dtypes)
        speed(reader, stream)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
