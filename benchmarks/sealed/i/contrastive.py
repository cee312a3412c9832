"""Self-supervised and score-based: VICReg, supervised contrast with LARS, denoising score matching."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from common import Script, dtype, fault, full, generator, mlp, noise, variant
from torch import Tensor, nn


class VicRegScript(Script):
    faults = ("covariance_axis", "variance_eps", "biased_std")
    variants = ("loop", "checkpoint")

    def setup(self) -> None:
        backbone = mlp(24, 64, 64)
        expander = nn.Sequential(
            nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 48, bias=False)
        )
        self.model = self.net(nn.ModuleDict({"backbone": backbone, "expander": expander}))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = noise(40, 24, seed=800 + step)
        return x + 0.3 * noise(40, 24, seed=810 + step), x + 0.3 * noise(40, 24, seed=820 + step)

    def represent(self, x: Tensor) -> Tensor:
        if variant("checkpoint"):
            h = torch.utils.checkpoint.checkpoint(self.model["backbone"], x, use_reentrant=False)
        else:
            h = self.model["backbone"](x)
        return self.model["expander"](F.relu(h))

    def spread(self, z: Tensor) -> tuple[Tensor, Tensor]:
        eps = 1e-1 if fault("variance_eps") else 1e-4
        z = z - z.mean(0)
        std = torch.sqrt(z.var(0, unbiased=not fault("biased_std")) + eps)
        cov = z @ z.T / (len(z) - 1) if fault("covariance_axis") else z.T @ z / (len(z) - 1)
        cov = full(cov)
        if variant("loop"):
            off = cov.flatten()[:-1].view(len(cov) - 1, len(cov) + 1)[:, 1:].pow(2).sum()
        else:
            off = cov.pow(2).sum() - cov.diagonal().pow(2).sum()
        return F.relu(1 - full(std)).mean(), off / z.shape[1]

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = (self.represent(x) for x in batch)
        (s1, c1), (s2, c2) = self.spread(a), self.spread(b)
        return 25 * F.mse_loss(a, b) + 12.5 * (s1 + s2) + c1 + c2


class Lars(torch.optim.Optimizer):
    """Layer-wise rates, with momentum and decay; vectors are neither decayed nor adapted."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.9, decay: float = 1e-2, trust: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                g = p.grad
                if p.ndim > 1 or fault("lars_vectors"):
                    g = g + group["decay"] * p
                    weight, slope = p.norm(), (p.grad if fault("lars_norm") else g).norm()
                    if weight > 0 and slope > 0:
                        g = g * (group["trust"] * weight / slope)
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].mul_(group["momentum"]).add_(g)
                p.add_(state["momentum"], alpha=-group["lr"])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.norm1 = nn.GroupNorm(4, 16)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.norm2 = nn.GroupNorm(4, 32)
        self.project = mlp(32, 48, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = x.amax((2, 3)) if fault("max_pool") else x.mean((2, 3))
        return F.normalize(self.project(x), dim=-1)


class SupConScript(Script):
    faults = ("self_positive", "max_pool", "lars_vectors", "lars_norm")
    variants = ("permute",)

    def setup(self) -> None:
        self.model = self.net(Encoder())
        self.optimizer = Lars(self.model.parameters(), lr=1.0)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        g = generator(830 + step)
        x = torch.rand(24, 3, 16, 16, generator=g)
        y = torch.arange(24) % 6
        x = x + 0.4 * torch.randn(6, 3, 16, 16, generator=generator(14))[y]
        if variant("permute"):
            order = torch.randperm(24, generator=generator(15))
            x, y = x[order], y[order]
        return x.to(dtype()), y

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        z = self.model(x)
        logits = full(z @ z.T) / 0.2
        itself = torch.eye(len(x), dtype=torch.bool)
        positive = y[:, None] == y[None]
        if not fault("self_positive"):
            positive = positive & ~itself
        log = logits - logits.masked_fill(itself, float("-inf")).logsumexp(-1, keepdim=True)
        return -((log * positive).sum(-1) / positive.sum(-1)).mean()


class ScoreNet(nn.Module):
    def __init__(self, dim: int = 10, hidden: int = 64) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(32, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.first = nn.Linear(dim, hidden)
        self.blocks = nn.ModuleList(mlp(hidden, 2 * hidden, hidden, act=nn.Softplus) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.last = nn.Linear(hidden, dim)
        self.register_buffer("frequency", torch.exp(torch.linspace(-1, 2, 16)))

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        level = sigma.log() if not fault("raw_sigma") else sigma
        angle = level * self.frequency.to(level.dtype)
        emb = self.embed(torch.cat([angle.sin(), angle.cos()], -1))
        h = self.first(x)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            h = h + block(norm(h) + emb)
        return self.last(h) / sigma


class ScoreScript(Script):
    faults = ("raw_sigma", "unweighted")
    variants = ("inverse", "compile")

    def setup(self) -> None:
        self.model = self.net(ScoreNet())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.99))
        if variant("compile"):
            self.model = torch.compile(self.model, backend="eager")

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        x = noise(64, 10, seed=840 + step) + 1.5 * noise(64, 1, seed=845 + step).sign()
        sigma = torch.exp(torch.linspace(-2, 1, 64))[:, None].to(dtype())
        return x, sigma, noise(64, 10, seed=850 + step)

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, sigma, eps = batch
        score = self.model(x + sigma * eps, sigma)
        if fault("unweighted"):
            return (score + eps / sigma).pow(2).sum(-1).mean()
        if variant("inverse"):
            return (sigma.squeeze(-1) ** 2 * (score + eps / sigma).pow(2).sum(-1)).mean()
        return (sigma * score + eps).pow(2).sum(-1).mean()


SCRIPTS = {"vicreg": VicRegScript, "supcon": SupConScript, "score": ScoreScript}
