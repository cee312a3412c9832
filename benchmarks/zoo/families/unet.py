"""Trains a small diffusion network: group norm, a time embedding, skips, and an average of its weights."""

from __future__ import annotations

import argparse
import copy

import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Trainer, flavour, load_weights, parse, precision

SIZE, BATCH, WIDTHS, TIME = 16, 4, (16, 32), 32
FAULTS = (
    "groups",
    "time_truncated",
    "time_halves",
    "upsampling",
    "skip_order",
    "noise_seed",
    "noise_schedule",
    "average_decay",
    "norm_after",
    "loss_absolute",
    "time_ignored",
)


class TimeEmbedding(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(TIME, TIME), nn.Linear(TIME, TIME)
        self.fault = fault

    def forward(self, time: Tensor) -> Tensor:
        if self.fault == "time_truncated":
            time = time.long()
        frequencies = torch.exp(-9.2 * torch.arange(TIME // 2) / (TIME // 2))
        angles = time[:, None] * frequencies
        parts = (angles.cos(), angles.sin()) if self.fault == "time_halves" else (angles.sin(), angles.cos())
        return self.second(functional.silu(self.first(torch.cat(parts, dim=-1))))


class Block(nn.Module):
    def __init__(self, before: int, width: int, fault: str) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4 if fault == "groups" else 8, before)
        self.conv1 = nn.Conv2d(before, width, 3, padding=1)
        self.time = nn.Linear(TIME, width)
        self.norm2, self.conv2 = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)
        self.skip = nn.Conv2d(before, width, 1) if before != width else nn.Identity()
        self.fault = fault

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.conv1(functional.silu(self.norm1(x)))
        if self.fault == "norm_after":
            hidden = self.norm2(hidden) + self.time(functional.silu(time))[:, :, None, None]
            return self.skip(x) + self.conv2(functional.silu(hidden))
        if self.fault != "time_ignored":
            hidden = hidden + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(hidden)))


class Up(nn.Module):
    def __init__(self, before: int, width: int, fault: str) -> None:
        super().__init__()
        self.conv, self.block = nn.Conv2d(before, width, 3, padding=1), Block(2 * width, width, fault)
        self.fault = fault

    def forward(self, x: Tensor, skip: Tensor, time: Tensor) -> Tensor:
        x = functional.interpolate(x, scale_factor=2, mode="bilinear" if self.fault == "upsampling" else "nearest")
        x = self.conv(x)
        return self.block(torch.cat((skip, x) if self.fault == "skip_order" else (x, skip), dim=1), time)


class UNet(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        narrow, wide = WIDTHS
        first = fault if fault == "time_ignored" else "none"
        self.time = TimeEmbedding(fault)
        self.stem = nn.Conv2d(3, narrow, 3, padding=1)
        self.down1, self.shrink1 = Block(narrow, narrow, first), nn.Conv2d(narrow, narrow, 3, stride=2, padding=1)
        self.down2 = Block(narrow, wide, fault if fault in ("groups", "norm_after") else "none")
        self.shrink2 = nn.Conv2d(wide, wide, 3, stride=2, padding=1)
        self.middle = Block(wide, wide, "none")
        self.up2 = Up(wide, wide, fault if fault == "upsampling" else "none")
        self.up1 = Up(wide, narrow, fault if fault == "skip_order" else "none")
        self.norm, self.out = nn.GroupNorm(8, narrow), nn.Conv2d(narrow, 3, 3, padding=1)

    def forward(self, images: Tensor, time: Tensor) -> Tensor:
        time = self.time(time)
        large = self.down1(self.stem(images), time)
        small = self.down2(self.shrink1(large), time)
        x = self.middle(self.shrink2(small), time)
        x = self.up1(self.up2(x, small, time), large, time)
        return self.out(functional.silu(self.norm(x)))


def retained(fault: str) -> Tensor:
    """How much of the image is left at each time."""
    if fault == "noise_schedule":
        betas = torch.linspace(1e-4**0.5, 0.02**0.5, 1000) ** 2
    else:
        betas = torch.linspace(1e-4, 0.02, 1000)
    return (1 - betas).cumprod(0)


def average(kept: nn.Module, model: nn.Module, decay: float) -> None:
    with torch.no_grad():
        for old, new in zip(kept.parameters(), model.parameters(), strict=True):
            old.mul_(decay).add_(new, alpha=1 - decay)


def noised(kept: Tensor, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    time = torch.rand(BATCH) * 999
    noise = torch.randn_like(images)
    share = kept[time.long()][:, None, None, None]
    return share.sqrt() * images + (1 - share).sqrt() * noise, time, noise


def train(options: argparse.Namespace, model: UNet, trainer: Trainer) -> None:
    kept, mean = retained(options.fault), copy.deepcopy(model)
    decay = 0.9 if options.fault == "average_decay" else 0.99
    distance = functional.l1_loss if options.fault == "loss_absolute" else functional.mse_loss
    generator = torch.Generator().manual_seed(17)
    torch.manual_seed(6 if options.fault == "noise_seed" else 5)
    for _ in range(options.steps):
        images = torch.randn(BATCH, 3, SIZE, SIZE, generator=generator).tanh()
        mixed, time, noise = noised(kept, images)
        with precision(options):
            guess = model(mixed, time)
        trainer.train(distance(guess.float(), noise))
        average(mean, model, decay)


def main() -> None:
    options = parse(__doc__, FAULTS, memory=("contiguous", "channels_last"))
    model = UNet(options.fault)
    load_weights(model)
    if options.memory == "channels_last":
        model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **flavour(options))
    train(options, model, Trainer(options, model, optimizer))


if __name__ == "__main__":
    main()
