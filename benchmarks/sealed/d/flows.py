"""Normalizing flows: Glow on images, and a continuous flow with a stochastic trace."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from common import Options, normal, show, spread, uniform
from torch import Tensor, nn

# --- Glow: activation norm, invertible 1x1 convolution, affine coupling, two levels ---


class ActNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def initialise(self, x: Tensor) -> None:
        """From the first batch: each channel begins with mean 0 and deviation 1."""
        with torch.no_grad():
            self.bias.copy_(-x.mean(dim=(0, 2, 3)))
            self.log_scale.copy_(-x.std(dim=(0, 2, 3)).log())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x + self.bias[:, None, None]) * self.log_scale.exp()[:, None, None]
        return y, self.log_scale.sum() * x.shape[2] * x.shape[3]


class InvertibleConv(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(width, width))[0])
        self.by_factors = False
        self.pixels = True

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.conv2d(x, self.weight[:, :, None, None])
        if self.by_factors:
            factors, _ = torch.linalg.lu_factor(self.weight)
            log_det = factors.diagonal().abs().log().sum()
        else:
            log_det = torch.linalg.slogdet(self.weight)[1]
        return y, log_det * (x.shape[2] * x.shape[3]) if self.pixels else log_det


class Coupling(nn.Module):
    def __init__(self, width: int, hidden: int = 48, offset: float = 2.0) -> None:
        super().__init__()
        self.offset = offset
        self.net = nn.Sequential(
            nn.Conv2d(width // 2, hidden, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, 1),
            nn.ReLU(),
            nn.Conv2d(hidden, width, 3, padding=1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        still, moved = x.chunk(2, dim=1)
        shift, raw = self.net(still).to(x.dtype).chunk(2, dim=1)
        scale = torch.sigmoid(raw + self.offset)
        return torch.cat([still, (moved + shift) * scale], dim=1), scale.log().sum(dim=(1, 2, 3))


class FlowStep(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = ActNorm(width)
        self.mix = InvertibleConv(width)
        self.couple = Coupling(width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(len(x))
        for part in (self.norm, self.mix, self.couple):
            x, log_det = part(x)
            x = x.to(total.dtype)
            total = total + log_det
        return x, total


class Glow(nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.levels = nn.ModuleList(nn.ModuleList(FlowStep(width) for _ in range(depth)) for width in (12, 24))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probability of every image, and what is left of it at the end."""
        log_p = x.new_zeros(len(x))
        for i, level in enumerate(self.levels):
            x = F.pixel_unshuffle(x, 2)
            for step in level:
                x, log_det = step(x)
                log_p = log_p + log_det
            if i + 1 < len(self.levels):
                x, out = x.chunk(2, dim=1)
                log_p = log_p + log_normal(out)
        return log_p + log_normal(x), x


def log_normal(x: Tensor) -> Tensor:
    return (-0.5 * (x.square() + math.log(2 * math.pi))).sum(dim=(1, 2, 3))


def train_glow(options: Options) -> None:
    torch.manual_seed(21)
    model = Glow()
    spread(model, 0.03)
    images = uniform(801, 6, 3, 16, 16) - 0.5
    with torch.no_grad():
        x = images
        for i, level in enumerate(model.levels):
            x = F.pixel_unshuffle(x, 2)
            for step in level:
                step.norm.initialise(x)
                x = step(x)[0]
            x = x.chunk(2, dim=1)[0] if i == 0 else x
    for level in model.levels:
        for step in level:
            step.mix.by_factors = options.variant == "factors"
    if options.fault == "pixels":
        model.levels[1][0].mix.pixels = False
    if options.fault == "offset":
        model.levels[0][1].couple.offset = 1.0
    options.place(model)
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-3)
    for step in range(options.steps):
        images = options.cast(uniform(810 + step, 6, 3, 16, 16) - 0.5)
        with options.autocast():
            log_p, latent = model(images)
        bits = -log_p.mean() / (math.log(2) * images[0].numel()) + 8
        optimizer.zero_grad()
        bits.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 5.0)
        optimizer.step()
        show(step, bits=bits, latent=latent.detach().float().std())


# --- FFJORD: a flow along an ordinary differential equation, its trace by Hutchinson's estimate ---


class Field(nn.Module):
    """Velocity at a place and time; every layer is gated by the time."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        sizes = [4, width, width, 4]
        pairs = list(itertools.pairwise(sizes))
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.gates = nn.ModuleList(nn.Linear(1, b) for _, b in pairs)
        self.shifts = nn.ModuleList(nn.Linear(1, b, bias=False) for _, b in pairs)

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        t = t.reshape(1, 1)
        for i, (layer, gate, shift) in enumerate(zip(self.layers, self.gates, self.shifts, strict=True)):
            x = layer(x) * torch.sigmoid(gate(t)) + shift(t)
            if i + 1 < len(self.layers):
                x = torch.tanh(x)
        return x


class ContinuousFlow(nn.Module):
    def __init__(self, options: Options, intervals: int = 3) -> None:
        super().__init__()
        self.field = Field()
        self.intervals = intervals
        self.functional = options.variant == "vjp"
        self.weights = (1.0, 2.0, 1.0, 1.0) if options.fault == "runge_kutta" else (1.0, 2.0, 2.0, 1.0)

    def velocity(self, t: Tensor, x: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
        if self.functional:
            speed, pull = torch.func.vjp(lambda place: self.field(t, place), x)
            (product,) = pull(probe.to(speed.dtype))
        else:
            x = x if x.requires_grad else x.requires_grad_(True)
            speed = self.field(t, x)
            (product,) = torch.autograd.grad(speed, x, probe.to(speed.dtype), create_graph=True)
        return speed.to(x.dtype), (product * probe).sum(dim=1)

    def forward(self, x: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
        h = 1.0 / self.intervals
        change = x.new_zeros(len(x))
        for i in range(self.intervals):
            t = x.new_tensor(i * h)
            k1, d1 = self.velocity(t, x, probe)
            k2, d2 = self.velocity(t + h / 2, x + h / 2 * k1, probe)
            k3, d3 = self.velocity(t + h / 2, x + h / 2 * k2, probe)
            k4, d4 = self.velocity(t + h, x + h * k3, probe)
            a, b, c, d = self.weights
            x = x + h / 6 * (a * k1 + b * k2 + c * k3 + d * k4)
            change = change - h / 6 * (a * d1 + b * d2 + c * d3 + d * d4)
        return x, change


def train_ffjord(options: Options) -> None:
    torch.manual_seed(22)
    model = ContinuousFlow(options)
    spread(model, 0.15)
    options.place(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-5)
    for step in range(options.steps):
        x = options.cast(normal(850 + step, 64, 4) * torch.tensor([1.0, 0.5, 2.0, 1.0]))
        probe = options.cast(normal(860 + step, 64, 4).sign())
        with options.autocast():
            z, change = model(x, probe)
        log_p = -0.5 * (z.square() + math.log(2 * math.pi)).sum(dim=1) - change
        loss = -log_p.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show(step, loss=loss, change=change.detach().mean())
