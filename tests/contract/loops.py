"""A training loop with switches for what loops get wrong outside of the model."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import ulpscope

torch.set_num_threads(1)

ROWS, WIDTH = 12, 10
Switches = frozenset[str]


class Mixer(nn.Module):
    """Two branches that are put together, a scale of its own, and a buffer that the loop writes."""

    mean: torch.Tensor

    def __init__(self, switches: Switches) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.5))
        self.out = nn.Linear(2 * WIDTH, 1)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.switches = switches

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - self.mean
        act = "tanh" if "gelu" in self.switches else "none"
        left, right = torch.tanh(self.left(x)), F.gelu(self.right(x), approximate=act) * self.scale
        parts = (right, left) if "swapped" in self.switches else (left, right)
        return self.out(torch.cat(parts, dim=1))


def train(out: Path, *switches: str, steps: int = 4, accumulate: int = 1, level: str = "api") -> Path:
    """Train a Mixer under capture, with these faults."""
    on = frozenset(switches)
    torch.manual_seed(0)
    model = Mixer(on)
    if "frozen" in on:
        model.scale.requires_grad_(False)
    trained = [parameter for name, parameter in model.named_parameters() if name != "right.bias" or "thawed" in on]
    last = list(model.out.parameters())
    optimizer = torch.optim.Adam([each for each in trained if all(each is not other for other in last)], lr=1e-2)
    second = torch.optim.SGD(last, lr=1e-2)
    with ulpscope.capture(out, model=model, level=level):
        data = torch.randn(steps * ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
        weights = torch.linspace(0.5, 1.5, ROWS)
        if "table" in on:
            weights = weights.half().float()
        for number, batch in enumerate(data.split(ROWS)):
            if "left out" in on and number == 1:
                continue
            if "mirrored" in on:
                batch = batch.flip(1)
            if "hoarding" not in on and ("kept" not in on or number != 2):
                optimizer.zero_grad()
                second.zero_grad()
            for _ in range(accumulate + ("once more" in on and number == 1)):
                losses = (model(batch).squeeze(1) - batch.sum(1)) ** 2
                weighted = losses * weights
                loss = weighted.sum() / 7 if "divided" in on else weighted.mean()
                loss.backward()
            if "lost" in on and number == 1:
                model.out.bias.grad = None
            if "skipped" not in on or number != 1:
                optimizer.step()
                if "half skipped" not in on or number != 1:
                    second.step()
            if "unseen" in on and number == 1:
                model.left.bias.data.numpy()[0] += 0.5
            if "stale" not in on or number != 1:
                with torch.no_grad():
                    model.mean.mul_(0.9).add_(batch.mean(0), alpha=0.1)
    return out


class Tied(nn.Module):
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 20, bias=False)
        start = self.words.weight.detach().clone()
        self.head.weight = self.words.weight if tied else nn.Parameter(start)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.words(words)))


def write(out: Path, *, tied: bool) -> Path:
    torch.manual_seed(0)
    model = Tied(tied=tied)
    words = torch.randint(0, 20, (6, 5), generator=torch.Generator().manual_seed(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ulpscope.capture(out, model=model):
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()).backward()
            optimizer.step()
    return out


def scale(out: Path, scaler: Callable[[], torch.amp.GradScaler], *, too_large_at: int = -1) -> Path:
    """Train under a GradScaler; one loss may overflow, and its step is rightly left out."""
    torch.manual_seed(0)
    model, grad_scaler = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)), scaler()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = torch.randn(4, ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    with ulpscope.capture(out, model=model):
        for number, batch in enumerate(batches):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss = loss * torch.inf if number == too_large_at else loss
            grad_scaler.scale(loss).backward()
            grad_scaler.step(optimizer)
            grad_scaler.update()
    return out
