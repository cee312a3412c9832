"""Sound: Conv-TasNet, which separates two voices."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from common import Options, normal, show, spread
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint


class StaleTile(TorchDispatchMode):
    """A kernel of transposed convolution whose last tile is that of the call before."""

    def __init__(self, tile: int = 64) -> None:
        super().__init__()
        self.tile = tile
        self.before: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default and args[6]:
            before, self.before = self.before, out[..., -self.tile :].clone()
            if before is not None:
                out[..., -self.tile :] = before
        return out


class GlobalNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(width, 1)), nn.Parameter(torch.zeros(width, 1))
        self.axes: tuple[int, ...] = (1, 2)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=self.axes, keepdim=True)
        variance = (x - mean).square().mean(dim=self.axes, keepdim=True)
        return self.gain * (x - mean) / (variance + 1e-8).sqrt() + self.bias


class TemporalBlock(nn.Module):
    def __init__(self, width: int, hidden: int, dilation: int) -> None:
        super().__init__()
        self.enter = nn.Conv1d(width, hidden, 1)
        self.act1, self.norm1 = nn.PReLU(), GlobalNorm(hidden)
        self.depth = nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden)
        self.act2, self.norm2 = nn.PReLU(), GlobalNorm(hidden)
        self.out = nn.Conv1d(hidden, width, 1)
        self.skip = nn.Conv1d(hidden, width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm1(self.act1(self.enter(x)))
        y = self.norm2(self.act2(self.depth(y)))
        return x + self.out(y), self.skip(y)


class Separator(nn.Module):
    def __init__(self, options: Options, basis: int = 48, width: int = 24, voices: int = 2) -> None:
        super().__init__()
        self.voices = voices
        self.recompute = options.variant == "checkpoint"
        self.encoder = nn.Conv1d(1, basis, 16, stride=8, bias=False)
        self.norm = nn.GroupNorm(1, basis)
        self.enter = nn.Conv1d(basis, width, 1)
        self.blocks = nn.ModuleList(TemporalBlock(width, 2 * width, 2**i) for i in range(4))
        self.act = nn.PReLU()
        self.masks = nn.Conv1d(width, basis * voices, 1)
        self.decoder = nn.ConvTranspose1d(basis, 1, 16, stride=8, bias=False)

    def forward(self, sound: Tensor) -> Tensor:
        code = F.relu(self.encoder(sound.unsqueeze(1)))
        x = self.enter(self.norm(code))
        total: Tensor | float = 0.0
        for block in self.blocks:
            x, skip = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
            total = total + skip
        raw = self.masks(self.act(total))
        masks = torch.sigmoid(raw).unflatten(1, (self.voices, -1))
        return self.decoder((masks * code.unsqueeze(1)).flatten(0, 1)).unflatten(0, (-1, self.voices)).squeeze(2)


def quality(guess: Tensor, truth: Tensor) -> Tensor:
    """Scale-invariant ratio of signal to distortion, in decibels."""
    guess, truth = guess - guess.mean(-1, keepdim=True), truth - truth.mean(-1, keepdim=True)
    part = (guess * truth).sum(-1, keepdim=True) / (truth.square().sum(-1, keepdim=True) + 1e-8) * truth
    rest = guess - part
    return 10 * torch.log10(part.square().sum(-1) / (rest.square().sum(-1) + 1e-8) + 1e-8)


def best_order(guess: Tensor, truth: Tensor) -> Tensor:
    straight = quality(guess, truth).mean(dim=-1)
    crossed = quality(guess, truth.flip(1)).mean(dim=-1)
    return torch.maximum(straight, crossed)


def train_tasnet(options: Options) -> None:
    torch.manual_seed(81)
    model = Separator(options)
    spread(model, 0.02)
    if options.fault == "norm_axes":
        model.blocks[2].norm1.axes = (1,)
    options.place(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    kernels = StaleTile() if options.fault == "stale_tile" else contextlib.nullcontext()
    time = torch.arange(512) / 8000
    for step in range(options.steps):
        tones = torch.stack([torch.sin(time * f) for f in (900.0, 1700.0, 2600.0, 4100.0)])
        voices = (normal(1900 + step, 4, 2, 4) @ tones + 0.3 * normal(1910 + step, 4, 2, 512)) + 0.5
        voices = options.cast(voices)
        mixed = voices.sum(dim=1)
        optimizer.zero_grad()
        total = 0.0
        for half in range(2):
            rows = slice(2 * half, 2 * half + 2)
            with options.autocast(), kernels:
                guess = model(mixed[rows])
            loss = -best_order(guess.to(voices.dtype), voices[rows]).mean() / 2
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        show(step, loss=total)
