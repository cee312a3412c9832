"""What capture.py measures: GPTs in training, plain or under a tool.

tool = make_tool(VARIANTS["api"], Training(MODELS["small"], "cpu"), folder)
tool.begin(); tool.step(); tool.end()
tool.take(1)
"""

import os

# Without this limit, oneDNN may choose AMX for bf16 on CPUs whose kernel forbids it, and the process dies of SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

import ulpscope
from ulpscope.records.runs import Noise
from ulpscope.trace.reader import RankTrace, open_trace

FAR_AWAY = "1000000"


@dataclass(frozen=True)
class Variant:
    """One way to run a step."""

    name: str
    tool: str
    level: str = ""
    save: str = "stats"
    steps: str | None = None
    precision: str | None = None
    """Of a twin."""
    watch: str | None = None
    ring: int = 0
    """Bytes of data that an overflow watch holds."""
    every: int = 1
    """Of so many steps a training watch records one."""


# The control is a second plain process: its ratio says how far ratios can be trusted.
VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("plain", "none"),
        Variant("control", "none"),
        Variant("module", "ulpscope", "module"),
        Variant("api", "ulpscope", "api"),
        Variant("kernel", "ulpscope", "kernel"),
        Variant("api+tensors", "ulpscope", "api", save="tensors"),
        Variant("twin", "ulpscope", "api", precision="bfloat16"),
        Variant("gradients", "ulpscope", watch="gradients"),
        Variant("overflow", "ulpscope", watch="overflow"),
        Variant("overflow+ring", "ulpscope", watch="overflow", ring=10**9),
        Variant("training", "ulpscope", watch="training"),
        Variant("training/10", "ulpscope", watch="training", every=10),
        Variant("outside", "ulpscope", "api", steps=FAR_AWAY),
        Variant("msprobe-L0", "msprobe", "L0", save="statistics"),
        Variant("msprobe-L1", "msprobe", "L1", save="statistics"),
        Variant("msprobe-mix", "msprobe", "mix", save="statistics"),
        Variant("msprobe-md5", "msprobe", "L1", save="md5"),
    )
}


def composed_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    mask = torch.ones(query.shape[-2], query.shape[-2], dtype=torch.bool, device=query.device).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value


def fused_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


@dataclass(frozen=True)
class Size:
    """What a GPT is made of, and what it is trained on."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int
    dtype: torch.dtype
    attention: Callable[[Tensor, Tensor, Tensor], Tensor]
    fused_optimizer: bool


MODELS = {
    "small": Size(4, 256, 8, 1000, 4, 128, torch.float32, composed_attention, fused_optimizer=False),
    "large": Size(12, 1024, 16, 32000, 8, 1024, torch.bfloat16, fused_attention, fused_optimizer=True),
    "tiny": Size(2, 64, 4, 500, 2, 64, torch.bfloat16, fused_attention, fused_optimizer=True),
}
"""`tiny` is `large` for a try without a device."""


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.heads, self.attention = size.heads, size.attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, 2)
        )
        attended = self.attention(query, key, value)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.token = nn.Embedding(size.vocabulary, size.width)
        self.position = nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Training:
    """A model with all it needs for a step."""

    def __init__(self, size: Size, device: str) -> None:
        torch.manual_seed(0)
        with torch.device(device):
            self.model = Gpt(size).to(size.dtype)
        fused = True if size.fused_optimizer else None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=fused)
        self.tokens, self.targets = torch.randint(0, size.vocabulary, (2, size.batch, size.length)).to(device)

    def step(self) -> None:
        loss = self.forward()
        loss.backward()
        self.optimizer.step()

    def forward(self) -> Tensor:
        self.optimizer.zero_grad()
        return self.loss()

    def loss(self) -> Tensor:
        return functional.cross_entropy(self.model(self.tokens).flatten(0, 1), self.targets.flatten())


@dataclass(frozen=True)
class Written:
    """What a tool left on disk, of one step."""

    calls: float = 0
    values: float = 0
    nbytes: float = 0


class Tool(Protocol):
    """Runs steps of a training, between `begin` and `end`."""

    def begin(self) -> None: ...
    def step(self) -> None: ...
    def end(self) -> None: ...
    def take(self, steps: int) -> Written:
        """What is on disk since `begin`; removes it."""


class Plain:
    def __init__(self, training: Training) -> None:
        self.step = training.step

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def take(self, steps: int) -> Written:
        return Written()


class Ulpscope:
    """One capture a block."""

    def __init__(self, training: Training, variant: Variant, folder: Path) -> None:
        self.step = training.step
        self.out = folder / "trace"
        self._model, self._variant = training.model, variant
        self._open = contextlib.ExitStack()

    def begin(self) -> None:
        if self._variant.watch is not None:
            options = {"what": self._variant.watch, "ring": self._variant.ring, "every": self._variant.every}
            self._open.enter_context(ulpscope.watch(self._model, out=self.out, overwrite=True, **options))
            return
        level, save, steps = self._variant.level, self._variant.save, self._variant.steps
        capture = ulpscope.capture(self.out, level=level, save=save, steps=steps, model=self._model, overwrite=True)
        if self._variant.precision is not None:
            capture.settings = replace(capture.settings, noise=Noise(1, self._variant.precision))
        self._open.enter_context(capture)

    def end(self) -> None:
        with warnings.catch_warnings():
            # Nothing captured is what a capture of other steps is for; own errors are looked for in the trace.
            warnings.simplefilter("ignore")
            self._open.close()

    def take(self, steps: int) -> Written:
        if self._variant.steps is not None or self._variant.watch == "overflow":
            written = Written(nbytes=size_of(self.out) / steps)
        else:
            coverage = sound_rank(self.out).info.coverage
            written = Written(coverage.calls_recorded / steps, coverage.values / steps, size_of(self.out) / steps)
        shutil.rmtree(self.out, ignore_errors=True)
        return written


class Msprobe:
    """One debugger a process: it is a singleton."""

    def __init__(self, training: Training, variant: Variant, folder: Path) -> None:
        os.umask(0o027)  # msprobe refuses files that others may write
        from msprobe.pytorch import PrecisionDebugger

        self._training, self._out = training, folder / "dump"
        config = folder / "config.json"
        chosen = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": variant.save}
        common = {"task": "statistics", "dump_path": str(self._out), "level": variant.level, "rank": [], "step": []}
        config.write_text(json.dumps({**common, "statistics": chosen}), encoding="utf-8")
        self._debugger = PrecisionDebugger(config_path=str(config))

    def begin(self) -> None:
        pass

    def step(self) -> None:
        self._debugger.start(self._training.model)
        self._training.step()
        self._debugger.stop()
        self._debugger.step()

    def end(self) -> None:
        pass

    def take(self, steps: int) -> Written:
        dumps = list(self._out.rglob("dump.json"))
        if len(dumps) != steps:
            raise RuntimeError(f"msprobe wrote {len(dumps)} dumps for {steps} steps")
        calls = len(json.loads(dumps[0].read_text(encoding="utf-8"))["data"])
        written = Written(calls=calls, nbytes=size_of(self._out) / steps)
        for step in self._out.iterdir():
            shutil.rmtree(step)
        return written


def make_tool(variant: Variant, training: Training, folder: Path) -> Tool:
    if variant.tool == "ulpscope":
        return Ulpscope(training, variant, folder)
    if variant.tool == "msprobe":
        return Msprobe(training, variant, folder)
    return Plain(training)


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def sound_rank(out: Path) -> RankTrace:
    rank = open_trace(out).ranks[0]
    if rank.info.errors:
        raise RuntimeError(f"the capture had errors of its own: {rank.info.errors}")
    if not rank.info.coverage.calls_recorded:
        raise RuntimeError("the capture recorded nothing")
    return rank


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
