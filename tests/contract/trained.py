"""Two small models, trained under capture: what pairs of runs are made of."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import ulpscope

torch.set_num_threads(1)

WORDS, WIDTH, LENGTH, BATCH = 23, 16, 6, 3
Prepare = Callable[[nn.Module], object]


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Writer(nn.Module):
    """A language model of two blocks."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.tok = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
        self.checkpointed = False

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.tok(words)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x))


class Viewer(nn.Module):
    """Two convolutions with batch norm, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.mean(dim=(2, 3)))


def nothing(model: nn.Module) -> None:
    """The run as it should be."""


def write(
    out: Path,
    prepare: Prepare = nothing,
    *,
    steps: int = 2,
    data: int = 1,
    seed: int = 2,
    dropout: float = 0.0,
    lr: float = 0.05,
    autocast: bool = False,
    only_steps: str | None = None,
    **options: Any,
) -> Path:
    """Train a Writer under capture; everything is the same each time but for what is asked for."""
    torch.manual_seed(0)
    model = Writer(dropout)
    prepare(model)
    words = np.random.default_rng(data).integers(0, WORDS, (steps, BATCH, LENGTH + 1))
    batches = [torch.from_numpy(batch) for batch in words]
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    with ulpscope.capture(out, model=model, steps=only_steps, **options):
        for batch in batches:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                logits = model(batch[:, :-1])
            F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten()).backward()
            optimizer.step()
    return out


def view(out: Path, prepare: Prepare = nothing, *, channels_last: bool = False, **options: Any) -> Path:
    """Train a Viewer under capture for two steps."""
    torch.manual_seed(0)
    model = Viewer()
    prepare(model)
    images = np.random.default_rng(4).standard_normal((2, 4, 3, 9, 9)).astype(np.float32)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    batches = [torch.from_numpy(image).contiguous(memory_format=layout) for image in images]
    labels = torch.tensor([0, 1, 2, 3])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ulpscope.capture(out, model=model, **options):
        for batch in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(batch), labels).backward()
            optimizer.step()
    return out


def other_eps(model: nn.Module) -> None:
    model.blocks[1].norm2.eps = 0.1


def scaled_output(model: nn.Module) -> None:
    model.blocks[0].up.register_forward_hook(lambda module, args, output: output * 1.1)


def inf_in_output(model: nn.Module) -> None:
    first = torch.zeros(2 * WIDTH, dtype=torch.bool)
    first[0] = True
    model.blocks[1].up.register_forward_hook(lambda module, args, output: output.masked_fill(first, torch.inf))


def wrong_weight(model: nn.Module) -> None:
    with torch.no_grad():
        model.blocks[1].down.weight[3] += 0.5


def with_checkpoints(model: nn.Module) -> None:
    model.checkpointed = True
