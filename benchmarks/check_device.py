"""What `ulpscope check` says of an accelerator's kernels: training steps of small models, every API against the CPU.

    python benchmarks/check_device.py --device cuda
    python benchmarks/check_device.py --device cuda --only transformer --dtypes bfloat16

Prints the counts of verdicts for each model and dtype, and everything that is not PASS with what decided.
"""

from __future__ import annotations

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import sound_models  # noqa: E402

DTYPES = ("float32", "bfloat16", "float16")


class Block(nn.Module):
    """A layer of a transformer as it is written today: fused attention, RMS norm, gated activation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.gate, self.up, self.down = (
            nn.Linear(width, 4 * width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        inner = self.norm2(x)
        return x + self.down(functional.silu(self.gate(inner)) * functional.gelu(self.up(inner)))


class Transformer(nn.Module):
    """Two blocks of 768 channels: reductions as long as real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4000, 768)
        self.blocks = nn.Sequential(Block(768, 12), Block(768, 12))
        self.head = nn.Linear(768, 4000)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


def transformer() -> tuple[nn.Module, sound_models.Loss]:
    tokens = torch.randint(0, 4000, (2, 257))

    def loss(model: nn.Module) -> Tensor:
        return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return Transformer(), loss


def check(trace: Path, out: Path, device: str, jobs: int) -> dict[str, int]:
    command = [sys.executable, "-m", "ulpscope", "check", str(trace), "--device", device, "--out", str(out)]
    options = ["--jobs", str(jobs), "--timeout", "300", "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"check ended with {done.returncode}: {done.stderr[-2000:]}")
    return {word: count for word, count in json.loads(done.stdout)["counts"].items() if count}


def tell(out: Path) -> None:
    with (out / "details.csv").open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            if row.get("verdict") != "PASS":
                print("   ", *(f"{row.get(name, '')}" for name in ("name", "variant", "place", "verdict", "message")))


def main() -> int:
    models = {**sound_models.MODELS, "transformer": transformer}
    sound_models.MODELS["transformer"] = transformer
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", default=list(models), choices=list(models))
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--jobs", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as folder:
        for name in options.only:
            for dtype in options.dtypes:
                trace, out = Path(folder) / f"{name}-{dtype}", Path(folder) / f"{name}-{dtype}-result"
                sound_models.capture_model(name, dtype, trace)
                print(name, dtype, check(trace, out, options.device, options.jobs), flush=True)
                tell(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
