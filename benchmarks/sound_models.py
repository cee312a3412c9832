"""Three small models for one training step: a GPT, a CNN and an LSTM, in any dtype."""

from __future__ import annotations

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import ulpscope
from models import GPT

SEED = 0
Loss = Callable[[nn.Module], Tensor]


class CNN(nn.Module):
    """Convolutions with batch and group norms, pooling and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.norm1, self.norm2 = nn.BatchNorm2d(16), nn.GroupNorm(4, 32)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = functional.silu(self.norm2(self.conv2(x)))
        x = functional.leaky_relu(self.depthwise(x), 0.1) + x
        return self.head(self.drop(functional.adaptive_avg_pool2d(x, 1).flatten(1)))


class LSTM(nn.Module):
    """A fused layer, and one written out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 24)
        self.fused, self.cell = nn.LSTM(24, 32, batch_first=True), nn.LSTMCell(32, 32)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        seen, (hidden, carried) = self.fused(self.tokens(tokens))
        hidden, carried = hidden[0], carried[0]
        for step in range(seen.shape[1]):
            hidden, carried = self.cell(seen[:, step], (hidden, carried))
        return self.head(seen + hidden.unsqueeze(1))


def _gpt() -> tuple[nn.Module, Loss]:
    tokens, targets = (torch.randint(0, 300, (4, 64)) for _ in range(2))
    model = GPT(vocabulary=300, width=128, layers=4, length=64)
    return model, lambda model: model(tokens, targets)


def _cnn() -> tuple[nn.Module, Loss]:
    images, labels = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))

    def loss(model: nn.Module) -> Tensor:
        dtype = next(model.parameters()).dtype
        return functional.cross_entropy(model(images.to(dtype)), labels, label_smoothing=0.1)

    return CNN(), loss


def _lstm() -> tuple[nn.Module, Loss]:
    tokens = torch.randint(0, 50, (8, 13))
    return LSTM(), lambda model: functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


MODELS: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {"gpt": _gpt, "cnn": _cnn, "lstm": _lstm}


def capture_model(name: str, dtype: str, out: Path) -> None:
    """One training step with its data."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model, loss = MODELS[name]()
    model = model.to(getattr(torch, dtype))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with ulpscope.capture(out, level="api", save="tensors", model=model):
        loss(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
