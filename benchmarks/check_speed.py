"""How many APIs a second `ulpscope check` tests: a training step of a 4-layer GPT, forward and backward, every call.

    python benchmarks/check_speed.py               float32, two workers
    python benchmarks/check_speed.py --dtype bfloat16 --repeat 5

Calls that only view memory are left out, as the checkers this is compared with do not test them. The clock runs from
the first result to the last, when all workers have started. Best of several. Exit code 1 below 20 a second.
"""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ulpscope
from ulpscope.records.check_runs import CheckedCase, CheckOptions
from ulpscope.workflows.check.command import check, plan_check

LAYERS, WIDTH, HEADS, LENGTH, BATCH, VOCABULARY = 4, 128, 4, 64, 4, 300
VIEWS = ("*.view", "*.transpose", "*.chunk", "*.reshape", "*.__getitem__", "*.triu", "*.bool", "*.arange", "*.ones")
BAR = 20.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        heads = (part.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        query, key, value = heads
        scores = (query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)).masked_fill(mask, float("-inf"))
        mixed = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)
        x = x + self.dropout(self.out(mixed))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(LENGTH))
        mask = torch.ones(LENGTH, LENGTH).triu(1).bool()
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def capture_step(trace: Path, dtype: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT().to(getattr(torch, dtype))
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
    with ulpscope.capture(trace, level="api", save="stats", model=model):
        F.cross_entropy(model(tokens[:, :-1]).view(-1, VOCABULARY), tokens[:, 1:].reshape(-1)).backward()


def rate(trace: Path, jobs: int) -> tuple[float, int]:
    """APIs a second, and how many there are."""
    options = CheckOptions(every=True, stress=False, jobs=jobs, skip=VIEWS)
    plan = plan_check(trace, options)
    moments: list[float] = []

    def heard(_: CheckedCase) -> None:
        moments.append(time.perf_counter())

    check(plan, options, heard=heard)
    return (len(moments) - jobs) / (moments[-1] - moments[jobs - 1]), len(moments)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as folder:
        trace = Path(folder) / "trace"
        capture_step(trace, options.dtype)
        found = [rate(trace, options.jobs) for _ in range(options.repeat)]
    best = max(speed for speed, _ in found)
    print(f"{options.dtype}: {found[0][1]} APIs, {best:.1f} a second ({', '.join(f'{s:.1f}' for s, _ in found)})")
    return int(best < BAR)


if __name__ == "__main__":
    sys.exit(main())
