"""How good and how fast summaries are.

    python benchmarks/summaries.py [--seeds 1000] [--device cuda]

Prints, for errors of four kinds on tensors of many widths, the distance estimated from sketches over the true one,
against the bar; with --device, whether that device's summaries equal the CPU's; and the speed of one thread.
Needs numpy and torch; numba for the compiled speed.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.summaries.constants import (
    ABS_SUM,
    BLOCK_ELEMENTS,
    DIGEST,
    GROUP_ROWS,
    MAX,
    MIN,
    NAN,
    ROW_LENGTH,
    SKETCH,
    SKETCH_LENGTH,
    SUM,
    SUM_SQUARES,
)
from ulpscope.numerics.summaries.summary import block_signs, estimate_distance, sum_signs, summarize

if TYPE_CHECKING:
    import torch

WIDTHS = (96, 101, 122, 128, 244, 333, 488, 512, 768, 976, 1000, 1024, 1952, 2048, 3904, 4096)
SPREAD_ROWS = 64
CHANNEL_ROWS = (256, 512)
HEAD_ROWS = (64, 128)
ELEMENT_SEEDS = 100

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bar:
    """What the estimate must hold: how far the mean may be from 1, the largest deviation, and no estimate outside."""

    mean: float
    deviation: float
    lowest: float
    highest: float

    def holds(self, ratios: Floats) -> bool:
        inside = self.lowest <= ratios.min() and ratios.max() <= self.highest
        return bool(abs(ratios.mean() - 1) <= self.mean and ratios.std() <= self.deviation and inside)


BARS = {
    "spread": Bar(mean=0.01, deviation=0.095, lowest=0.0, highest=np.inf),
    "column": Bar(mean=0.05, deviation=np.inf, lowest=0.3, highest=1.8),
    "offset": Bar(mean=0.05, deviation=np.inf, lowest=0.3, highest=1.8),
    "head": Bar(mean=0.05, deviation=np.inf, lowest=0.3, highest=1.8),
    "element": Bar(mean=1e-5, deviation=1e-5, lowest=0.999, highest=1.001),
}


@dataclass(frozen=True)
class Places:
    """Sign and sum of each of a tensor's first elements: sketches of sparse errors without the zeros between."""

    signs: NDArray[np.float32]
    sums: NDArray[np.int64]

    def distance(self, elements: NDArray[np.int64], errors: Floats) -> float:
        sketch = np.bincount(self.sums[elements], weights=errors * self.signs[elements], minlength=SKETCH_LENGTH)
        return float(estimate_distance(np.zeros(SKETCH_LENGTH), sketch))


def places(count: int) -> Places:
    blocks = -(-count // BLOCK_ELEMENTS)
    own = block_signs(0, blocks)
    sums = (np.arange(SKETCH_LENGTH) + own.rotations[:, None]) % SKETCH_LENGTH
    signs = sum_signs().astype(np.float32)[:, sums].transpose(1, 0, 2, 3)
    signs *= np.repeat(own.groups, GROUP_ROWS, axis=1).astype(np.float32)[:, :, None, None]
    signs *= np.take_along_axis(own.sums, sums, axis=1).astype(np.float32)[:, None, :, None]
    whole = np.broadcast_to(sums[:, None, :, None], signs.shape)
    return Places(signs.reshape(-1)[:count], whole.reshape(-1)[:count])


def spread_ratios(width: int, known: Places, seeds: int, rng: np.random.Generator) -> Floats:
    """Independent errors on every element. Elements are sorted by their sum, so that sketches are sums of slices."""
    count = SPREAD_ROWS * width
    order = np.argsort(known.sums[:count], kind="stable")
    starts = np.searchsorted(known.sums[:count][order], np.arange(SKETCH_LENGTH))
    signs = known.signs[:count][order]
    ratios = np.empty(seeds)
    for seed in range(seeds):
        errors = rng.standard_normal(count, dtype=np.float32)
        sketch = np.add.reduceat((errors * signs).astype(np.float64), starts)
        ratios[seed] = np.sqrt(np.square(sketch).sum() / np.dot(errors, errors))
    return ratios


def channel_ratios(width: int, known: Places, seeds: int, rng: np.random.Generator) -> Floats:
    """One channel is wrong, by another amount in each row."""
    ratios = np.empty(seeds)
    for seed in range(seeds):
        elements = np.arange(rng.integers(*CHANNEL_ROWS)) * width + rng.integers(width)
        errors = rng.standard_normal(len(elements))
        ratios[seed] = known.distance(elements, errors) / np.linalg.norm(errors)
    return ratios


def offset_ratios(width: int, known: Places, seeds: int, rng: np.random.Generator) -> Floats:
    """One channel is off by a constant."""
    ratios = np.empty(seeds)
    for seed in range(seeds):
        elements = np.arange(rng.integers(*CHANNEL_ROWS)) * width + rng.integers(width)
        ratios[seed] = known.distance(elements, np.ones(len(elements))) / np.sqrt(len(elements))
    return ratios


def head_ratios(width: int, known: Places, seeds: int, rng: np.random.Generator) -> Floats:
    """An eighth of the channels, side by side, is off by a constant."""
    part = max(width // 8, 1)
    ratios = np.empty(seeds)
    for seed in range(seeds):
        rows = np.arange(rng.integers(*HEAD_ROWS))[:, None] * width
        elements = (rows + rng.integers(width - part) + np.arange(part)).reshape(-1)
        ratios[seed] = known.distance(elements, np.ones(len(elements))) / np.sqrt(len(elements))
    return ratios


def element_ratios(width: int, known: Places, seeds: int, rng: np.random.Generator) -> Floats:
    """A single element is wrong, seen through whole summaries in the precision in which a trace stores them."""
    ratios = np.empty(min(seeds, ELEMENT_SEEDS))
    for seed in range(len(ratios)):
        reference = rng.standard_normal(16 * width, dtype=np.float32)
        target = reference.copy()
        target[rng.integers(len(target))] += np.float32(8.0)
        pair = [summarize(side, "float32")[SKETCH : SKETCH + SKETCH_LENGTH] for side in (reference, target)]
        distance = np.linalg.norm(target.astype(np.float64) - reference)
        ratios[seed] = estimate_distance(pair[0].astype(np.float32), pair[1].astype(np.float32)) / distance
    return ratios


KINDS: dict[str, Callable[[int, Places, int, np.random.Generator], Floats]] = {
    "spread": spread_ratios,
    "column": channel_ratios,
    "offset": offset_ratios,
    "head": head_ratios,
    "element": element_ratios,
}


def print_estimates(seeds: int) -> bool:
    print(f"estimated / true distance, {seeds} seeds")
    print(f"{'width':>6} {'kind':8} {'mean':>7} {'sd':>7} {'min':>7} {'max':>7}  bar")
    rng = np.random.default_rng(20240501)
    fine = True
    for width in WIDTHS:
        known = places(CHANNEL_ROWS[1] * width)
        for kind, measure in KINDS.items():
            ratios = measure(width, known, seeds, rng)
            held = BARS[kind].holds(ratios)
            fine &= held
            numbers = f"{ratios.mean():7.4f} {ratios.std():7.4f} {ratios.min():7.4f} {ratios.max():7.4f}"
            print(f"{width:6} {kind:8} {numbers}  {'ok' if held else 'MISSED'}", flush=True)
    return fine


def best_seconds(run: Callable[[], object], seconds: float = 0.3) -> float:
    run()
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def print_speed() -> None:
    from ulpscope.numerics.summaries.compiled import Found, find_compiled, summarizer_of

    if find_compiled() is Found.NONE:
        print("\nspeed: nothing compiles here, nothing to measure")
        return
    print("\nspeed of the compiled path, one thread, best of many calls")
    row = np.zeros(ROW_LENGTH)
    for name, size in (("float32", 4), ("bfloat16", 2)):
        for size_bytes in (64, 4 << 10, 256 << 10, 1 << 20, 64 << 20):
            normal = np.random.default_rng(0).standard_normal(size_bytes // size, dtype=np.float32)
            bits = normal if size == 4 else (normal.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
            summarize, place = summarizer_of(name), (bits.ctypes.data, bits.size, row.ctypes.data)
            taken = best_seconds(lambda summarize=summarize, place=place: summarize(*place))  # type: ignore[misc]
            print(f"{name:9} {size_bytes:>9} bytes {taken * 1e6:10.1f} us {size_bytes / taken / 1e9:6.2f} GB/s")


def layouts(base: "torch.Tensor") -> Iterator[tuple[str, "torch.Tensor"]]:
    """Views of a tensor of shape (8, 3, 20, 13) in many layouts."""
    yield "contiguous", base
    yield "transposed", base.transpose(0, 2)
    yield "permuted", base.permute(0, 2, 3, 1)
    yield "sliced", base[1::2, :, 3:, ::3]
    yield "odd offset", base.view(-1)[1:]
    yield "odd offset, whole blocks", base.view(-1)[3 : 3 + 2 * BLOCK_ELEMENTS]
    yield "expanded", base[:1].expand(5, 3, 20, 13)
    yield "scalar", base[0, 0, 0, 0]
    yield "empty", base[:0]
    yield "many chunks", base.view(-1).repeat(700)


def check_device(device: str) -> bool:
    """Compares the device's summaries with the CPU's, by the same torch operations."""
    import torch

    from ulpscope.capture.torch.summaries.summary import summarize_tensor_into

    def rows_of(base: torch.Tensor) -> dict[str, Floats]:
        rows = {}
        for layout, tensor in layouts(base):
            row = torch.zeros(ROW_LENGTH, dtype=torch.float64, device=base.device)
            assert summarize_tensor_into(tensor, row)
            rows[layout] = row.cpu().numpy()
        return rows

    wrong = total = 0
    for label, base in device_cases():
        here, there = rows_of(base), rows_of(base.to(device))
        differing = [layout for layout in here if not same_row(here[layout], there[layout])]
        total += len(here)
        wrong += len(differing)
        if differing:
            print(f"  {label}: {device} differs from cpu for {', '.join(differing)}")
    print(f"\n{device} against cpu: {total} summaries, {wrong} differ")
    return wrong == 0


def same_row(here: Floats, there: Floats) -> bool:
    """Equal bits of the digest, equal counts and range, sums within what the order of summation explains."""
    exact = [MIN, MAX, *range(NAN, SKETCH)]
    sums = [SUM, SUM_SQUARES, ABS_SUM, *range(SKETCH, DIGEST)]
    tolerance = 1e-12 * (here[ABS_SUM] + abs(here[SUM]) + here[SUM_SQUARES]) + 1e-300
    return bool(
        here[DIGEST:].tobytes() == there[DIGEST:].tobytes()
        and np.array_equal(here[exact], there[exact])
        and np.all(np.abs(here[sums] - there[sums]) <= tolerance)
    )


def device_cases() -> Iterator[tuple[str, "torch.Tensor"]]:
    """Tensors of every type: random bits (nan, inf, subnormal and huge among them), and ordinary numbers."""
    import torch

    from ulpscope.numerics.dtypes import DTYPES

    random = np.random.default_rng(1)
    for name, dtype in DTYPES.items():
        torch_dtype = getattr(torch, name, None)
        if torch_dtype is None:
            continue
        bits = random.integers(0, 2 if name == "bool" else 256, 6240 * dtype.item_size, dtype=np.uint8)
        yield f"{name} of random bits", torch.from_numpy(bits).view(torch_dtype).view(8, 3, 20, 13)
    for name in ("float64", "float32", "bfloat16", "float16"):
        yield name, torch.randn(8, 3, 20, 13).to(getattr(torch, name))


def print_device_speed(device: str) -> None:
    import torch

    from ulpscope.capture.torch.summaries.summary import summarize_tensor_into

    module = torch.get_device_module(torch.device(device))
    row = torch.zeros(ROW_LENGTH, dtype=torch.float64, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        for size_bytes in (4 << 10, 1 << 20, 64 << 20):
            tensor = torch.randn(size_bytes // dtype.itemsize, device=device).to(dtype)
            started = best_seconds(lambda tensor=tensor: summarize_tensor_into(tensor, row))  # type: ignore[misc]
            taken = best_seconds(lambda tensor=tensor: (summarize_tensor_into(tensor, row), module.synchronize()))  # type: ignore[misc]
            speed = f"{taken * 1e6:9.1f} us {size_bytes / taken / 1e9:6.2f} GB/s, launched in {started * 1e6:7.1f} us"
            print(f"{device} {dtype!s:15} {size_bytes:>9} bytes {speed}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--device", help="compare this device's summaries with the CPU's")
    options = parser.parse_args()
    fine = print_estimates(options.seeds)
    if options.device:
        fine &= check_device(options.device)
        print_device_speed(options.device)
    print_speed()
    return 0 if fine else 1


if __name__ == "__main__":
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
