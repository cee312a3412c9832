"""What capture costs: a training step with and without it, bytes a value, and the start of the command line.

    python benchmarks/cost.py              the table
    python benchmarks/cost.py --profile    where the time of a captured step goes

CPU, one thread, a 4-layer GPT (width 256, 8 heads, vocabulary 1000, batch 4 x 128) with AdamW. Plain and captured
blocks of steps alternate in one process; each ratio is that of the best step of either. Exit code 1 if a bar is missed.
"""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import argparse
import cProfile
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import ulpscope
from ulpscope.trace.reader import open_trace

RATIO_BAR = 4.0
BYTES_BAR = 700
HELP_BAR = 0.4
LEVELS = ("module", "api", "kernel")
SAVES = ("stats", "tensors")
STEPS = 4
ROUNDS = 4


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, 2)
        )
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.proj((weights @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, *, vocabulary: int = 1000, width: int = 256, heads: int = 8, layers: int = 4, length: int = 128):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass(slots=True)
class Training:
    """A model with all it needs for a step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    tokens: Tensor
    targets: Tensor

    @classmethod
    def make(cls) -> "Training":
        torch.manual_seed(0)
        model = Gpt()
        tokens, targets = torch.randint(0, 1000, (2, 4, 128))
        return cls(model, torch.optim.AdamW(model.parameters(), lr=1e-4), tokens, targets)

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(self.tokens).flatten(0, 1), self.targets.flatten())
        loss.backward()
        self.optimizer.step()


@dataclass(slots=True)
class Measured:
    """Seconds of the steps of one setting, plain and captured, measured in turn."""

    level: str
    save: str
    plain: list[float] = field(default_factory=list)
    captured: list[float] = field(default_factory=list)
    calls: int = 0
    values: int = 0
    nbytes: int = 0

    @property
    def best_ratio(self) -> float:
        return min(self.captured) / min(self.plain)

    @property
    def median_ratio(self) -> float:
        return statistics.median(self.captured) / statistics.median(self.plain)

    @property
    def bytes_a_value(self) -> float:
        return self.nbytes / self.values


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    torch.set_num_threads(1)
    training = Training.make()
    for _ in range(3):
        training.step()
    if arguments.profile:
        profile(training, level=arguments.level[0], save=arguments.save[0])
        return 0
    measured = [
        measure(training, level=level, save=save, rounds=arguments.rounds)
        for save in arguments.save
        for level in arguments.level
    ]
    return tell(measured, help_seconds())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="profile a captured step instead")
    parser.add_argument("--level", nargs="+", choices=LEVELS)
    parser.add_argument("--save", nargs="+", choices=SAVES)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"blocks of {STEPS} steps (default: {ROUNDS})")
    arguments = parser.parse_args(argv)
    arguments.level = arguments.level or (["api"] if arguments.profile else LEVELS)
    arguments.save = arguments.save or (["stats"] if arguments.profile else SAVES)
    return arguments


def measure(training: Training, *, level: str, save: str, rounds: int) -> Measured:
    result = Measured(level, save)
    for _ in range(rounds):
        result.plain += timed(training.step, STEPS)
        with tempfile.TemporaryDirectory(prefix="ulpscope-cost-") as folder:
            out = Path(folder) / "trace"
            with ulpscope.capture(out, level=level, save=save, model=training.model):
                training.step()
                result.captured += timed(training.step, STEPS)
            read_sizes(out, result)
    return result


def timed(step: Callable[[], None], times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return seconds


def read_sizes(out: Path, result: Measured) -> None:
    info = open_trace(out).ranks[0].info
    if info.errors:
        raise SystemExit(f"cost: the capture had errors of its own: {info.errors}")
    result.calls = info.coverage.calls_recorded
    result.values = info.coverage.values
    result.nbytes = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())


def help_seconds(tries: int = 5) -> float:
    command = [sys.executable, "-m", "ulpscope", "--help"]
    return min(timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), tries))


def tell(measured: Sequence[Measured], seconds: float) -> int:
    print(
        f"{'save':8}{'level':8}{'plain':>9}{'captured':>10}{'best':>7}{'median':>8}{'calls':>8}{'values':>8}{'B/value':>9}"
    )
    for one in measured:
        print(
            f"{one.save:8}{one.level:8}{min(one.plain) * 1e3:7.1f}ms{min(one.captured) * 1e3:8.1f}ms"
            f"{one.best_ratio:6.2f}x{one.median_ratio:7.2f}x"
            f"{one.calls // (STEPS + 1):8}{one.values // (STEPS + 1):8}{one.bytes_a_value:9.0f}"
        )
    print("(calls and values: of one step)")
    print(f"ulpscope --help: {seconds:.3f} s")
    missed = list(missed_bars(measured, seconds))
    for sentence in missed:
        print(f"MISSED {sentence}")
    print(f"{'bars missed' if missed else 'all bars hold'}")
    return 1 if missed else 0


def missed_bars(measured: Sequence[Measured], seconds: float) -> list[str]:
    missed = []
    for one in measured:
        if (one.level, one.save) == ("api", "stats"):
            if one.best_ratio > RATIO_BAR:
                missed.append(f"api, stats: {one.best_ratio:.2f} times the plain step, at most {RATIO_BAR}")
            if one.bytes_a_value > BYTES_BAR:
                missed.append(f"api, stats: {one.bytes_a_value:.0f} bytes a value, at most {BYTES_BAR}")
    if seconds > HELP_BAR:
        missed.append(f"ulpscope --help: {seconds:.2f} s, at most {HELP_BAR}")
    return missed


def profile(training: Training, *, level: str, save: str, steps: int = 5) -> None:
    """Top functions by own time, and own time by our module, of captured steps."""
    profiler = cProfile.Profile()
    plain = min(timed(training.step, 3))
    with (
        tempfile.TemporaryDirectory(prefix="ulpscope-cost-") as folder,
        ulpscope.capture(Path(folder) / "trace", level=level, save=save, model=training.model),
    ):
        training.step()
        unprofiled = min(timed(training.step, 3))
        profiler.enable()
        for _ in range(steps):
            training.step()
        profiler.disable()
    print(f"plain step {plain * 1e3:.1f} ms, captured {unprofiled * 1e3:.1f} ms; below: {steps} steps, profiled")
    stats = pstats.Stats(profiler)
    stats.sort_stats("tottime").print_stats(25)
    print_modules(stats, steps)


def print_modules(stats: pstats.Stats, steps: int) -> None:
    seconds: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for (file, _, _), (_, count, own, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        name = module_of(file)
        seconds[name] += own
        calls[name] += count
    print(f"{'own time a step':>16} {'calls a step':>13}  module")
    for name in sorted(seconds, key=seconds.__getitem__, reverse=True)[:20]:
        print(f"{seconds[name] / steps * 1e3:13.2f} ms {calls[name] // steps:13}  {name}")


def module_of(file: str) -> str:
    if "/ulpscope/" in file:
        return "ulpscope/" + file.rpartition("/ulpscope/")[2]
    if "/site-packages/" in file:
        return file.rpartition("/site-packages/")[2].split("/")[0]
    return "built in" if file == "~" else "python"


if __name__ == "__main__":
    sys.exit(main())
