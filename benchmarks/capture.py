"""What capture costs: plain training steps, captured ones and msprobe's, interleaved in one run.

    python benchmarks/capture.py                        CUDA where there is a device, else the CPU
    python benchmarks/capture.py --only module api      plain and these variants
    python benchmarks/capture.py --profile api          where the time of a captured step goes

CPU: a 4-layer GPT (width 256, 8 heads, vocabulary 1000, batch 4 x 128) with AdamW, one thread. CUDA: a 12-layer GPT in
bf16 (width 1024, 16 heads, vocabulary 32000, batch 8 x 1024) with fused AdamW. Each variant has a process of its own,
since msprobe patches torch for good; in each round the processes run one block of steps after the other. A block is
timed as a whole, between two synchronisations. The table gives the time a step of each variant's best block, and its
ratio to that of the best plain block. msprobe (mindstudio-probe==26.2.0) must be importable by the same interpreter, or
its rows are left out. Exit code 1 if a bar is missed.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from capture_bench import BlockTimes, Failure, Inspected, Work, serve
from capture_profile import profile
from capture_tools import MODELS, VARIANTS, Variant, Written

MODEL_OF_DEVICE = {"cpu": "small", "cuda": "large"}
ROUNDS = {"cpu": 4, "cuda": 5}
STEPS = {"cpu": 4, "cuda": 6}
HEADS = "ms ratio median single cpu thread memory closing calls values B/value kB/step launches".split()
LEGEND = """\
ms: a step of the best block; ratio: to the best plain block; median: of the rounds' ratios; single: ratio of the best
steps that were waited for one by one; cpu: ratio of processor time, all threads; thread: that of the training's, which
tells more than the clock where the machine has other work; memory: ratio of the device's peak;
closing: ms a step after the block; launches: kernels and copies, the model's included; the others: of one step"""


@dataclass(frozen=True)
class Bar:
    """The most that a figure of a variant may be."""

    variant: str
    figure: str
    limit: float


BARS = {
    ("cpu", "small"): (
        Bar("api", "ratio", 2.2),
        Bar("outside", "ratio", 1.02),
        Bar("gradients", "ratio", 1.06),
        Bar("training/10", "ratio", 1.10),
        Bar("twin", "ratio", 4.0),
        Bar("api", "bytes a value", 500),
    ),
    ("cuda", "large"): (
        Bar("api", "ratio", 1.4),
        Bar("module", "ratio", 1.15),
        Bar("twin", "ratio", 3.0),
        Bar("api", "memory", 1.1),
        Bar("module", "memory", 1.1),
        Bar("outside", "ratio", 1.02),
        Bar("gradients", "ratio", 1.03),
        Bar("api", "bytes a value", 500),
    ),
}
OVERFLOW_SHARE = 1.1
"""The most that the ratio of the overflow watch may be of that of api: noise, and what it looks for."""
TRAINING_SHARE = 1.03
"""The most that the ratio of the training watch may be of that of level module, which records the same: noise."""
SHARE_OF_MSPROBE = 0.5
"""The most that the ratio of api may be of that of msprobe's L1, on the CPU."""


@dataclass
class Row:
    """A variant with its process and what was measured of it."""

    variant: Variant
    process: Any
    channel: Connection
    blocks: list[BlockTimes] = field(default_factory=list)
    inspected: Inspected | None = None
    failure: str | None = None

    def ask(self, work: Work) -> BlockTimes | Inspected | None:
        if self.failure is not None:
            return None
        self.channel.send(work)
        return self.receive()

    def receive(self) -> Any:
        try:
            answer = self.channel.recv()
        except (EOFError, ConnectionError):
            answer = Failure("its process died")
        if isinstance(answer, Failure):
            self.failure = answer.text
            say(f"FAILED {self.variant.name}: {answer.text}")
            return None
        return answer

    @property
    def best(self) -> float:
        return min(block.per_step for block in self.blocks)

    @property
    def single(self) -> float:
        return min(block.single for block in self.blocks)

    @property
    def cpu(self) -> float:
        return min(block.cpu_per_step for block in self.blocks)

    @property
    def thread(self) -> float:
        return min(block.thread_per_step for block in self.blocks)

    @property
    def closing(self) -> float:
        return statistics.median(block.closing for block in self.blocks)

    @property
    def peak(self) -> int:
        return max(block.peak for block in self.blocks)

    @property
    def written(self) -> Written:
        return self.blocks[-1].written


def say(line: str) -> None:
    """Prints at once: a run that is cut off still tells what was measured."""
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.profile:
        profile(VARIANTS[arguments.profile], model=arguments.model, device=arguments.device)
        return 0
    say(heading(arguments))
    with tempfile.TemporaryDirectory(prefix="ulpscope-capture-") as folder:
        rows = start(arguments, Path(folder))
        try:
            measure(rows, arguments)
            if arguments.device == "cuda":
                inspect(rows)
        finally:
            stop(rows)
            tell_logs(rows, Path(folder))
    if len(rows[0].blocks) < arguments.rounds:
        return 1
    tell(rows)
    return judge(rows, device=arguments.device, model=arguments.model)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ours = [name for name, variant in VARIANTS.items() if variant.tool == "ulpscope" and variant.steps is None]
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", choices=MODELS, help="default: small on the CPU, large on CUDA")
    parser.add_argument("--only", nargs="+", choices=[*VARIANTS][1:], help="measure these, besides plain steps")
    parser.add_argument("--md5", action="store_true", help="measure msprobe's md5, too")
    parser.add_argument("--rounds", type=int, help=f"default: {ROUNDS}")
    parser.add_argument("--steps", type=int, help=f"steps of a block (default: {STEPS})")
    parser.add_argument("--profile", nargs="?", const="api", choices=ours, help="profile this variant instead")
    arguments = parser.parse_args(argv)
    arguments.model = arguments.model or MODEL_OF_DEVICE[arguments.device]
    arguments.rounds = arguments.rounds or ROUNDS[arguments.device]
    arguments.steps = arguments.steps or STEPS[arguments.device]
    return arguments


def heading(arguments: argparse.Namespace) -> str:
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU, one thread"
    return (
        f"{name}, torch {torch.__version__}, msprobe {msprobe_version() or 'MISSING: its rows are left out'}; model "
        f"{arguments.model}, {arguments.rounds} rounds of blocks of {arguments.steps} steps"
    )


def msprobe_version() -> str | None:
    if importlib.util.find_spec("msprobe") is None:
        return None
    return importlib.metadata.version("mindstudio-probe")


def chosen(arguments: argparse.Namespace) -> Iterator[Variant]:
    """Those that can run, in order; what takes minutes or tens of gigabytes only if it was asked for."""
    costly = {"msprobe-md5"} if arguments.device == "cpu" else {"msprobe-md5", "api+tensors"}
    wanted = {"plain", *(arguments.only or set(VARIANTS) - costly)} | ({"msprobe-md5"} if arguments.md5 else set())
    for name, variant in VARIANTS.items():
        if name in wanted and (variant.tool != "msprobe" or msprobe_version() is not None):
            yield variant


def start(arguments: argparse.Namespace, folder: Path) -> list[Row]:
    spawning = multiprocessing.get_context("spawn")
    rows = []
    for variant in chosen(arguments):
        own = folder / variant.name.replace("+", "-").replace("/", "-")
        own.mkdir(mode=0o750)
        channel, other = spawning.Pipe()
        options = (other, variant.name, arguments.model, arguments.device, own)
        process = spawning.Process(target=serve, args=options, daemon=True)
        process.start()
        other.close()
        rows.append(Row(variant, process, channel))
    for row in rows:
        row.receive()
    return rows


def measure(rows: Sequence[Row], arguments: argparse.Namespace) -> None:
    for row in rows:  # compiles kernels, fills caches
        began = time.perf_counter()
        if row.ask(work_of(row.variant, arguments.device, steps=1)) is not None:
            say(f"warm: {row.variant.name:12} {time.perf_counter() - began:6.1f} s")
    for number in range(arguments.rounds):
        for row in rows:
            block = row.ask(work_of(row.variant, arguments.device, steps=arguments.steps))
            if rows[0].failure is not None:
                return
            if isinstance(block, BlockTimes):
                row.blocks.append(block)
                ratio = block.per_step / rows[0].blocks[-1].per_step
                say(f"round {number + 1}: {row.variant.name:12} {block.per_step * 1e3:9.2f} ms a step {ratio:7.3f}x")


def work_of(variant: Variant, device: str, *, steps: int) -> Work:
    if variant.save == "tensors" and device == "cuda":
        return Work(1, warm=1, singles=0)  # a step has 13 GB of contents
    return Work(steps)


def inspect(rows: Sequence[Row]) -> None:
    for row in rows:
        if row.variant.save == "tensors":
            continue
        answer = row.ask(Work(None))
        if isinstance(answer, Inspected):
            row.inspected = answer


def stop(rows: Sequence[Row]) -> None:
    for row in rows:
        with contextlib.suppress(OSError):
            row.channel.send(None)
        row.process.join(10)
        if row.process.is_alive():
            row.process.kill()


def tell_logs(rows: Sequence[Row], folder: Path) -> None:
    for row in rows:
        if row.failure is not None:
            log = (folder / row.variant.name.replace("+", "-").replace("/", "-") / "log").read_text(
                encoding="utf-8", errors="replace"
            )
            say(f"--- the end of what {row.variant.name} printed\n{log[-3000:]}")


def tell(rows: Sequence[Row]) -> None:
    say(f"{'variant':14}" + "".join(f"{head:>10}" for head in HEADS))
    for row in rows:
        shown = cells(row, rows[0]) if is_measured(row, rows[0]) else ["failed"]
        say(f"{row.variant.name:14}" + "".join(f"{cell:>10}" for cell in shown))
    say(LEGEND)


def is_measured(row: Row, plain: Row) -> bool:
    """Whether it had all rounds; it may have failed later."""
    return len(row.blocks) == len(plain.blocks)


def cells(row: Row, plain: Row) -> list[str]:
    seen, written = figures(row, plain), row.written
    shown = [f"{row.best * 1e3:.2f}", f"{seen['ratio']:.3f}x", f"{median_ratio(row, plain):.3f}x"]
    shown += [f"{getattr(row, name) / getattr(plain, name):.3f}x" for name in ("single", "cpu", "thread")]
    shown.append(f"{seen['memory']:.3f}x" if "memory" in seen else "-")
    shown.append(f"{row.closing * 1e3:.2f}")
    shown += [f"{number:.0f}" if number else "-" for number in (written.calls, written.values)]
    shown.append(f"{seen['bytes a value']:.0f}" if "bytes a value" in seen else "-")
    shown.append(f"{written.nbytes / 1e3:.0f}" if written.nbytes else "-")
    return [*shown, f"{row.inspected.launches:.0f}" if row.inspected else "-"]


def median_ratio(row: Row, plain: Row) -> float:
    rounds = zip(row.blocks, plain.blocks, strict=True)
    return statistics.median(block.per_step / other.per_step for block, other in rounds)


def figures(row: Row, plain: Row) -> dict[str, float]:
    """What bars are about, by name."""
    seen = {"ratio": row.best / plain.best}
    if plain.peak:
        seen["memory"] = row.peak / plain.peak
    if row.written.values:
        seen["bytes a value"] = row.written.nbytes / row.written.values
    return seen


def judge(rows: Sequence[Row], *, device: str, model: str) -> int:
    """Says which bars hold; 1 if one does not."""
    measured = {row.variant.name: row for row in rows if is_measured(row, rows[0])}
    missed = [f"{row.variant.name} failed: {row.failure}" for row in rows if row.failure is not None]
    for row in measured.values():
        if row.inspected and row.inspected.synchronised:
            missed.append(f"{row.variant.name} waits for the device: {row.inspected.synchronised}")
    for bar in bars_of(measured, device=device, model=model):
        if bar.variant not in measured:
            say(f"NOT MEASURED {bar.variant}: {bar.figure} at most {bar.limit:.4g}")
            continue
        seen = figures(measured[bar.variant], measured["plain"])[bar.figure]
        sentence = f"{bar.variant}: {bar.figure} {seen:.4g}, at most {bar.limit:.4g}"
        say(f"holds  {sentence}") if seen <= bar.limit else missed.append(sentence)
    for sentence in missed:
        say(f"MISSED {sentence}")
    return 1 if missed else 0


def bars_of(measured: Mapping[str, Row], *, device: str, model: str) -> list[Bar]:
    bars = list(BARS.get((device, model), ()))
    if "api" in measured and "overflow" in measured:
        api = figures(measured["api"], measured["plain"])["ratio"]
        bars.append(Bar("overflow", "ratio", OVERFLOW_SHARE * api))
    if "module" in measured and "training" in measured:
        module = figures(measured["module"], measured["plain"])["ratio"]
        bars.append(Bar("training", "ratio", TRAINING_SHARE * module))
    if (device, model) != ("cpu", "small"):
        return bars
    if "msprobe-L1" not in measured:
        say(f"NOT MEASURED api: {SHARE_OF_MSPROBE} of the ratio of msprobe-L1")
        return bars
    other = figures(measured["msprobe-L1"], measured["plain"])["ratio"]
    return [*bars, Bar("api", "ratio", SHARE_OF_MSPROBE * other)]


if __name__ == "__main__":
    sys.exit(main())
