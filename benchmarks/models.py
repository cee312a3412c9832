"""What scenarios are made of: settings, results, and the small models that several of them share.

    @scenario()
    def gpt(setting: Setting) -> Results: ...

    SCENARIOS["gpt"].run(Setting(seed=0, steps=3))

What a scenario returns depends on nothing but its setting, so that two runs of it can be compared bit for bit.
"""

from __future__ import annotations

import os

# Without this limit, oneDNN may choose AMX for bf16 on CPUs whose kernel forbids it, and the process dies of SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

Tensors = dict[str, Tensor]
Kind = TypeVar("Kind", bound=type[Function])


@dataclass(frozen=True)
class Setting:
    """What a scenario is built from."""

    seed: int = 0
    steps: int = 3
    device: str = "cpu"


@dataclass
class Results:
    """Everything a run computed, by name."""

    losses: Tensors = field(default_factory=dict)
    gradients: Tensors = field(default_factory=dict)
    weights: Tensors = field(default_factory=dict)
    outputs: Tensors = field(default_factory=dict)

    def flat(self) -> Tensors:
        parts = {"loss": self.losses, "gradient": self.gradients, "weight": self.weights, "output": self.outputs}
        return {f"{part} {name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Scenario:
    """One model with what is done to it."""

    name: str
    run: Callable[[Setting], Results]
    compiled: bool = False
    """Runs in a process of its own: compiled code is kept for the life of a process."""
    trains: bool = True
    interrupts: bool = False
    """Some of its backward passes raise on purpose: what lies beyond gets no backward."""


SCENARIOS: dict[str, Scenario] = {}
FUNCTIONS: dict[str, type[Function]] = {}
"""Custom Functions of the models, by the name they have in a trace."""


def scenario(
    *, compiled: bool = False, trains: bool = True, interrupts: bool = False
) -> Callable[..., Callable[[Setting], Results]]:
    def register(run: Callable[[Setting], Results]) -> Callable[[Setting], Results]:
        @functools.wraps(run)
        def seeded(setting: Setting) -> Results:
            torch.manual_seed(setting.seed)
            return run(setting)

        SCENARIOS[run.__name__] = Scenario(run.__name__, seeded, compiled, trains, interrupts)
        return seeded

    return register


def custom(kind: Kind) -> Kind:
    FUNCTIONS[f"{kind.__module__}.{kind.__qualname__}"] = kind
    return kind


def collect(model: nn.Module, losses: list[Tensor], **outputs: Tensor) -> Results:
    """Copies of what is left after a run."""
    named = dict(model.named_parameters())
    return Results(
        losses={str(step): loss.detach().clone() for step, loss in enumerate(losses)},
        gradients={name: p.grad.detach().clone() for name, p in named.items() if p.grad is not None},
        weights={name: tensor.detach().clone() for name, tensor in model.state_dict().items()},
        outputs={name: tensor.detach().clone() for name, tensor in outputs.items()},
    )


def train(optimizer: torch.optim.Optimizer, steps: int, loss_of: Callable[[], Tensor]) -> list[Tensor]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


class Block(nn.Module):
    """Attention written out, and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.attend(self.norm1(x)))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        scores = (q @ k.transpose(-2, -1)) / (width // self.heads) ** 0.5
        seen = torch.tril(torch.ones(length, length, dtype=torch.bool, device=x.device))
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return (weights @ v).transpose(1, 2).contiguous().view(batch, length, width)


class GPT(nn.Module):
    def __init__(self, *, vocabulary: int = 64, width: int = 32, heads: int = 4, layers: int = 2, length: int = 16):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits if targets is None else functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_gpt(setting: Setting) -> tuple[GPT, Tensor, Tensor]:
    model = GPT().to(setting.device)
    tokens, targets = (torch.randint(0, 64, (4, 16)).to(setting.device) for _ in range(2))
    return model, tokens, targets


def make_perceptron(setting: Setting) -> tuple[nn.Sequential, Tensor, Tensor]:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(setting.device)
    return model, torch.randn(10, 8).to(setting.device), torch.randint(0, 3, (10,)).to(setting.device)
