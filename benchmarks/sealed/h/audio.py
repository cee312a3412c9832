"""Vocoders and speech enhancement, written by hand."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from common import Batch, Task, full, task
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, weight_norm


def wave(g: torch.Generator, n: int, length: int) -> Tensor:
    """Some sines and noise."""
    t = torch.arange(length) / 8000
    pitch = 100 + 300 * torch.rand(n, 4, 1, generator=g)
    loud = torch.rand(n, 4, 1, generator=g)
    return (loud * torch.sin(2 * math.pi * pitch * t)).sum(1) * 0.3 + 0.02 * torch.randn(n, length, generator=g)


def filters(bins: int, mels: int) -> Tensor:
    """Triangles on a mel scale."""
    top = 2595 * math.log10(1 + 4000 / 700)
    points = 700 * (10 ** (torch.linspace(0, top, mels + 2) / 2595) - 1) / 4000 * (bins - 1)
    k = torch.arange(bins)
    rise = (k - points[:-2, None]) / (points[1:-1, None] - points[:-2, None])
    fall = (points[2:, None] - k) / (points[2:, None] - points[1:-1, None])
    return torch.minimum(rise, fall).clamp(min=0)


def log_mel(x: Tensor, size: int = 128, mels: int = 20, hop: int = 32) -> Tensor:
    window = torch.hann_window(size, dtype=x.dtype)
    spectrum = torch.stft(x, size, hop, window=window, return_complex=True)
    magnitude = torch.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-9)
    return torch.log((filters(size // 2 + 1, mels).to(x.dtype) @ magnitude).clamp(min=1e-5))


# HiFi-GAN -------------------------------------------------------------------------------------------------------------


class Unit(nn.Module):
    def __init__(self, width: int, kernel: int, dilations: tuple[int, ...], norm: Any) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            norm(nn.Conv1d(width, width, kernel, dilation=d, padding=(kernel - 1) * d // 2)) for d in dilations
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.convs:
            x = x + layer(F.leaky_relu(x, 0.1))
        return x


class Generator(nn.Module):
    def __init__(self, fault: str, norm: Any) -> None:
        super().__init__()
        self.fault = fault
        self.pre = norm(nn.Conv1d(20, 48, 7, padding=3))
        self.ups = nn.ModuleList()
        self.units = nn.ModuleList()
        width = 48
        for rate in (8, 4):
            self.ups.append(norm(nn.ConvTranspose1d(width, width // 2, 2 * rate, rate, rate // 2)))
            width //= 2
            self.units.append(nn.ModuleList(Unit(width, k, (1, 3), norm) for k in (3, 7)))
        self.post = norm(nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, mel: Tensor) -> Tensor:
        x = self.pre(mel)
        for up, units in zip(self.ups, self.units, strict=True):
            x = F.leaky_relu(x) if self.fault == "slope" else F.leaky_relu(x, 0.1)
            x = up(x)
            parts = [unit(x) for unit in units]
            x = sum(parts) if self.fault == "no_mean" else sum(parts) / len(parts)
        return torch.tanh(self.post(F.leaky_relu(x))).squeeze(1)


class Period(nn.Module):
    """Judges every p-th sample."""

    def __init__(self, period: int, pad: str, norm: Any) -> None:
        super().__init__()
        self.period = period
        self.pad = pad
        self.convs = nn.ModuleList(
            norm(nn.Conv2d(i, o, (5, 1), (3, 1), (2, 0))) for i, o in ((1, 8), (8, 16), (16, 24))
        )
        self.post = norm(nn.Conv2d(24, 1, (3, 1), padding=(1, 0)))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        missing = -x.shape[-1] % self.period
        x = F.pad(x[:, None], (0, missing), mode=self.pad)
        x = x.view(x.shape[0], 1, -1, self.period)
        found = []
        for layer in self.convs:
            x = F.leaky_relu(layer(x), 0.1)
            found.append(x)
        return self.post(x).flatten(1), found


class Gan(nn.Module):
    def __init__(self, fault: str, norm: Any) -> None:
        super().__init__()
        self.generator = Generator(fault, norm)
        pad = "constant" if fault == "pad" else "reflect"
        self.judges = nn.ModuleList(Period(p, pad, norm) for p in (3, 5, 7))


@task("hifigan")
class HifiGan(Task):
    """The discriminators and the generator in turn."""

    faults = ("slope", "no_mean", "pad", "scheduler_first")
    ways = ("old_weight_norm",)
    lr = 2e-4

    def build(self) -> nn.Module:
        norm = weight_norm if self.has("old_weight_norm") else parametrizations.weight_norm
        return Gan(self.fault, norm)

    def data(self, g: torch.Generator) -> Batch:
        return {"wave": wave(g, 2, 1024)}

    def fit(self, model: Gan) -> None:
        one = torch.optim.AdamW(model.judges.parameters(), lr=self.lr, betas=(0.8, 0.99))
        two = torch.optim.AdamW(model.generator.parameters(), lr=self.lr, betas=(0.8, 0.99))
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (one, two)]
        for step in range(self.options.steps):
            truth = self.batches(step)[0]["wave"]
            if self.fault == "scheduler_first":
                for scheduler in schedulers:
                    scheduler.step()
            with self.amp():
                mel = log_mel(full(truth))[..., :-1].to(self.dtype)
                made = model.generator(mel)
                judged = self.judge(model, full(truth).to(self.dtype), made.detach())
            one.zero_grad()
            judged.backward()
            one.step()
            with self.amp():
                value = self.please(model, truth, made)
            two.zero_grad()
            value.backward()
            two.step()
            if self.fault != "scheduler_first":
                for scheduler in schedulers:
                    scheduler.step()
            self.say(value.detach())

    def judge(self, model: Gan, truth: Tensor, made: Tensor) -> Tensor:
        total: Any = 0
        for judge in model.judges:
            real, fake = full(judge(truth)[0]), full(judge(made)[0])
            total = total + (1 - real).square().mean() + fake.square().mean()
        return total

    def please(self, model: Gan, truth: Tensor, made: Tensor) -> Tensor:
        total: Any = 4.5 * F.l1_loss(log_mel(full(made)), log_mel(full(truth)))
        for judge in model.judges:
            _, real = judge(truth)
            score, fake = judge(made)
            total = total + (1 - full(score)).square().mean()
            total = total + 2 * sum(F.l1_loss(full(a), full(b)) for a, b in zip(fake, real, strict=True))
        return total


@task("hifigan-eval")
class HifiGanEval(HifiGan):
    """The generator alone; its weight norms may be folded."""

    faults = ("slope", "fold_dim")
    ways = ("folded",)
    inference = True

    def build(self) -> nn.Module:
        model = super().build().generator.to(self.dtype)
        g = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith("original0"):
                    p.mul_(0.5 + torch.rand(p.shape, generator=g).to(p.dtype))
        if self.has("folded"):
            for module in model.modules():
                if parametrize.is_parametrized(module, "weight"):
                    self.fold(module)
        return model

    def fold(self, module: nn.Module) -> None:
        if self.fault == "fold_dim" and isinstance(module, nn.ConvTranspose1d):
            magnitude = module.parametrizations.weight.original0.data
            direction = module.parametrizations.weight.original1.data
            norm = direction.norm(dim=(0, 2), keepdim=True)
            parametrize.remove_parametrizations(module, "weight")
            module.weight.data = magnitude * direction / norm
        else:
            parametrize.remove_parametrizations(module, "weight")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        mel = log_mel(full(batch["wave"]))[..., :-1].to(self.dtype)
        return full(model(mel)).square().mean()


# A vocoder with periodic activations ----------------------------------------------------------------------------------


class SnakeFunction(torch.autograd.Function):
    """x + sin(ax)^2 / a with its gradient written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, whole: bool) -> Tensor:
        ctx.save_for_backward(x, a)
        ctx.whole = whole
        return x + torch.sin(a * x).square() / a

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, a = ctx.saved_tensors
        double = torch.sin(2 * a * x)
        to_a = x * double / a
        if ctx.whole:
            to_a = to_a - torch.sin(a * x).square() / a**2
        return grads[0] * (1 + double), (grads[0] * to_a).sum((0, 2), keepdim=True).to(a.dtype), None


class Snake(nn.Module):
    def __init__(self, width: int, fault: str, own: bool) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.full((1, width, 1), 0.7))
        self.fault = fault
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        a = self.a.to(x.dtype)
        if self.own:
            return SnakeFunction.apply(x, a, self.fault != "snake_gradient")
        return x + torch.sin(a * x).square() / a


class BigVgan(nn.Module):
    def __init__(self, fault: str, own: bool) -> None:
        super().__init__()
        self.pre = nn.Conv1d(20, 32, 7, padding=3)
        self.stages = nn.ModuleList()
        width = 32
        for rate in (8, 4):
            up = nn.ConvTranspose1d(width, width // 2, 2 * rate, rate, rate // 2)
            width //= 2
            body = nn.Conv1d(width, width, 7, padding=3)
            self.stages.append(nn.ModuleList([Snake(width * 2, fault, own), up, Snake(width, fault, own), body]))
        self.post = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.pre(mel)
        for before, up, act, body in self.stages:
            x = up(before(x))
            x = x + body(act(x))
        return torch.tanh(self.post(x)).squeeze(1)


@task("bigvgan")
class BigVganTask(Task):
    """Trained with spectra of several resolutions."""

    faults = ("snake_gradient", "no_activations")
    ways = ("plain_snake",)

    def build(self) -> nn.Module:
        return BigVgan(self.fault, not self.has("plain_snake"))

    def parameters(self, model: nn.Module) -> Any:
        if self.fault == "no_activations":
            return [p for m in model.modules() if isinstance(m, nn.Conv1d | nn.ConvTranspose1d) for p in m.parameters()]
        return list(model.parameters())

    def data(self, g: torch.Generator) -> Batch:
        return {"wave": wave(g, 2, 1024)}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        truth = full(batch["wave"])
        made = full(model(log_mel(truth)[..., :-1].to(self.dtype)))
        total: Any = 0
        for size in (64, 128, 256):
            total = total + F.l1_loss(log_mel(made, size, hop=size // 4), log_mel(truth, size, hop=size // 4))
        return total + F.l1_loss(made, truth)


# Enhancement ----------------------------------------------------------------------------------------------------------


class Enhancer(nn.Module):
    """A complex mask of the spectrum by convolutions and a GRU."""

    def __init__(self, fault: str, dft: bool) -> None:
        super().__init__()
        self.fault = fault
        self.dft = dft
        self.size, self.hop = 128, 32
        self.register_buffer("window", torch.hann_window(self.size, periodic=fault != "window"))
        k = torch.arange(65)[:, None] * torch.arange(128)[None]
        angle = 2 * math.pi * (k % 128).double() / 128
        self.register_buffer("basis", torch.cat([angle.cos(), -angle.sin()]))
        self.encode = nn.Sequential(nn.Conv1d(130, 48, 3, padding=1), nn.PReLU(), nn.Conv1d(48, 32, 3, padding=1))
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.mask = nn.Linear(32, 130)

    def spectrum(self, x: Tensor) -> Tensor:
        """Real parts, then imaginary parts."""
        window = self.window.to(x.dtype)
        if self.dft:
            padded = F.pad(x[:, None], (64, 64), mode="reflect")[:, 0]
            frames = padded.unfold(-1, self.size, self.hop) * window
            return (frames @ self.basis.to(x.dtype).t()).transpose(1, 2)
        s = torch.stft(x, self.size, self.hop, window=window, return_complex=True)
        return torch.cat([s.real, s.imag], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            s = self.spectrum(full(x))
        y = self.encode(s.to(self.mask.weight.dtype))
        h, _ = self.gru(y.transpose(1, 2))
        h = self.norm(h) if self.fault == "no_residual" else self.norm(h + y.transpose(1, 2))
        m = full(torch.tanh(self.mask(h))).transpose(1, 2)
        with torch.autocast("cpu", enabled=False):
            real, imag = s.chunk(2, dim=1)
            a, b = m.chunk(2, dim=1)
            sign = 1 if self.fault == "complex_sign" else -1
            made = torch.complex(real * a + sign * imag * b, real * b + imag * a)
            return torch.istft(made, self.size, self.hop, window=self.window.to(s.dtype), length=x.shape[-1])


@task("enhance")
class Enhance(Task):
    faults = ("window", "complex_sign", "no_residual", "snr_mean")
    ways = ("dft",)
    lr = 2e-3

    def build(self) -> nn.Module:
        return Enhancer(self.fault, self.has("dft"))

    def cast(self, batch: Batch) -> Batch:
        exact = torch.float64 if self.dtype == torch.float64 else torch.float32
        return {k: v.to(exact) for k, v in batch.items()}

    def data(self, g: torch.Generator) -> Batch:
        clean = wave(g, 4, 1024) + 0.2
        return {"clean": clean, "noisy": clean + 0.2 * torch.randn(clean.shape, generator=g)}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        made, clean = full(model(batch["noisy"])), batch["clean"]
        if self.fault != "snr_mean":
            made = made - made.mean(-1, keepdim=True)
            clean = clean - clean.mean(-1, keepdim=True)
        scale = (made * clean).sum(-1, keepdim=True) / (clean.square().sum(-1, keepdim=True) + 1e-8)
        target = scale * clean
        noise = made - target
        ratio = (target.square().sum(-1) + 1e-8) / (noise.square().sum(-1) + 1e-8)
        return -10 * torch.log10(ratio).mean()
