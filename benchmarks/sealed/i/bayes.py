"""Bayesian: weights with variational posteriors, Stein particles by torch.func, spline flows, a Kalman filter."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from common import OPTIONS, Script, dtype, fault, full, generator, mlp, noise, variant
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap


class BayesLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int, seed: int) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.rho = nn.Parameter(torch.full((outputs, inputs), -3.0))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.noise = generator(seed)

    def forward(self, x: Tensor) -> Tensor:
        sigma = self.rho.exp() if fault("exp_rho") else F.softplus(self.rho)
        eps = torch.randn(self.mu.shape, generator=self.noise).to(self.mu.dtype)
        return F.linear(x, self.mu + sigma * eps, self.bias)

    def kl(self) -> Tensor:
        sigma = F.softplus(self.rho)
        prior = 0.5
        if variant("distributions"):
            p = torch.distributions.Normal(self.mu, sigma)
            q = torch.distributions.Normal(torch.zeros_like(self.mu), torch.full_like(self.mu, prior))
            return torch.distributions.kl_divergence(p, q).sum()
        spread = sigma / prior if fault("kl_square") else (sigma / prior) ** 2
        return 0.5 * (spread + (self.mu / prior) ** 2 - 1 - spread.log()).sum()


class BackpropScript(Script):
    faults = ("exp_rho", "kl_square", "kl_weight")
    variants = ("distributions",)

    def setup(self) -> None:
        layers = [BayesLinear(12, 40, 1), nn.ReLU(), BayesLinear(40, 40, 2), nn.ReLU(), BayesLinear(40, 1, 3)]
        self.model = self.net(nn.Sequential(*layers))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = noise(64, 12, seed=300 + step)
        return x, torch.sin(x[:, :1]) + 0.5 * x[:, 1:2]

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        kl = sum(m.kl() for m in self.model if isinstance(m, BayesLinear))
        batches = 64 if fault("kl_weight") else 20
        return F.mse_loss(self.model(x), y) / 0.2 + kl / (64 * batches)


class SvgdScript(Script):
    faults = ("repulsion", "bandwidth")
    variants = ("loop",)

    def setup(self) -> None:
        self.template = mlp(6, 24, 1, act=nn.Tanh)
        self.shapes = {k: p.shape for k, p in self.template.named_parameters()}
        size = sum(p.numel() for p in self.template.parameters())
        self.template = self.net(self.template)
        self.particles = nn.Parameter((torch.randn(12, size, generator=generator(4)) * 0.3).to(dtype()))
        self.optimizer = torch.optim.Adagrad([self.particles], lr=0.05)

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        pieces = flat.split([s.numel() for s in self.shapes.values()])
        return {k: p.view(s) for (k, s), p in zip(self.shapes.items(), pieces, strict=True)}

    def energy(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        guess = functional_call(self.template, self.unpack(flat), (x,))
        return (guess - y).pow(2).sum() / 0.5 + 0.5 * flat.pow(2).sum()

    def run(self) -> None:
        for step in range(OPTIONS.steps):
            x = noise(32, 6, seed=310 + step)
            y = torch.cos(x[:, :1]) + x[:, 1:2] * 0.3
            theta = self.particles.detach()
            with self.autocast():
                if variant("loop"):
                    pairs = [grad_and_value(self.energy)(t, x, y) for t in theta]
                    slope, energy = (torch.stack(z) for z in zip(*pairs, strict=True))
                else:
                    slope, energy = vmap(grad_and_value(self.energy), (0, None, None))(theta, x, y)
            square = (theta[:, None] - theta[None]).pow(2).sum(-1)
            middle = square.median()
            width = (middle.sqrt() if fault("bandwidth") else middle) / math.log(len(theta) + 1)
            kernel = torch.exp(-square / width)
            # Sum over j of the gradient of k(x_j, x_i) with respect to x_j.
            push = 2 / width * (theta * kernel.sum(1, keepdim=True) - kernel @ theta)
            phi = (kernel @ -slope - push) if fault("repulsion") else (kernel @ -slope + push)
            self.particles.grad = -phi / len(theta)
            self.optimizer.step()
            self.report(step, energy.mean())


class Spline(nn.Module):
    """A rational quadratic coupling layer with linear tails."""

    def __init__(self, dim: int = 6, bins: int = 8, bound: float = 3.0) -> None:
        super().__init__()
        self.half, self.bins, self.bound = dim // 2, bins, bound
        self.net = mlp(self.half, 64, 64, (dim - self.half) * (3 * bins - 1))

    def knots(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        low = 1e-2
        width = raw.softmax(-1)
        width = low + width * (1 if fault("knot_scale") else 1 - low * self.bins)
        edge = F.pad(width.cumsum(-1), (1, 0)) * 2 * self.bound - self.bound
        return edge, edge.diff(dim=-1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x[:, : self.half], x[:, self.half :]
        raw = full(self.net(a)).view(len(x), -1, 3 * self.bins - 1)
        xs, w = self.knots(raw[..., : self.bins])
        ys, h = self.knots(raw[..., self.bins : 2 * self.bins])
        slope = 1e-2 + F.softplus(raw[..., 2 * self.bins :])
        # So that the slope is one at the ends, where the tails begin.
        slope = F.pad(slope, (1, 1), value=0.99 if fault("tail_slope") else 1.0)
        inside = (b > -self.bound) & (b < self.bound)
        c = b.clamp(-self.bound + 1e-3, self.bound - 1e-3)
        if variant("searchsorted"):
            k = torch.searchsorted(xs.detach().contiguous(), c[..., None].contiguous(), right=True) - 1
        else:
            k = (c[..., None] >= xs[..., :-1]).sum(-1, keepdim=True) - 1
        x0, y0, w, h = (t.gather(-1, k).squeeze(-1) for t in (xs, ys, w, h))
        d0, d1 = slope.gather(-1, k).squeeze(-1), slope.gather(-1, k + 1).squeeze(-1)
        s = h / w
        t = (c - x0) / w
        bottom = s + (d1 + d0 - 2 * s) * t * (1 - t)
        y = y0 + h * (s * t**2 + d0 * t * (1 - t)) / bottom
        top = s**2 * (d1 * t**2 + 2 * s * t * (1 - t) + d0 * (1 - t) ** 2)
        log = top.log() - 2 * bottom.log()
        y = torch.where(inside, y, b)
        log = torch.where(inside, log, torch.zeros_like(log))
        return torch.cat([a, y.to(a.dtype)], -1), log.sum(-1)


class SplineFlow(nn.Module):
    def __init__(self, dim: int = 6, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Spline(dim) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor | float = 0.0
        for layer in self.layers:
            x, log = layer(x)
            x = x.flip(-1)
            total = total + log
        base = -0.5 * (full(x) ** 2 + math.log(2 * math.pi)).sum(-1)
        return base if fault("no_logdet") else base + total


class SplineScript(Script):
    faults = ("knot_scale", "tail_slope", "no_logdet")
    variants = ("searchsorted",)
    clip = 5.0

    def setup(self) -> None:
        self.model = self.net(SplineFlow())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def batch(self, step: int) -> Tensor:
        x = noise(96, 6, seed=320 + step)
        return torch.cat([x[:, :3], 0.5 * x[:, 3:] + torch.sin(2 * x[:, :3])], -1)

    def loss(self, batch: Tensor) -> Tensor:
        return -self.model(batch).mean()


class Kalman(nn.Module):
    """A linear Gaussian state space model, with a network for what is observed."""

    def __init__(self, obs: int = 6, latent: int = 4) -> None:
        super().__init__()
        self.encoder = mlp(obs, 24, 3, act=nn.Tanh)
        self.transition = nn.Parameter(torch.eye(latent) * 0.9 + 0.05 * torch.randn(latent, latent))
        self.emission = nn.Parameter(torch.randn(3, latent) * 0.5)
        self.log_q = nn.Parameter(torch.full((latent,), -1.0))
        self.log_r = nn.Parameter(torch.full((3,), -1.0))

    def update(self, mean: Tensor, cov: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        c, r = self.emission, self.log_r.exp().diag()
        residual = y - mean @ c.T
        s = c @ cov @ c.T + r
        if variant("cholesky"):
            root = torch.linalg.cholesky(s)
            gain = torch.cholesky_solve(c @ cov, root).transpose(-1, -2)
            white = torch.linalg.solve_triangular(root, residual[..., None], upper=False).squeeze(-1)
            logdet = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            score = -0.5 * (white.pow(2).sum(-1) + logdet + 3 * math.log(2 * math.pi))
        else:
            gain = torch.linalg.solve(s, c @ cov).transpose(-1, -2)
            quad = (residual * torch.linalg.solve(s, residual[..., None]).squeeze(-1)).sum(-1)
            score = -0.5 * (quad + torch.logdet(s) + 3 * math.log(2 * math.pi))
        mean = mean + (gain @ residual[..., None]).squeeze(-1)
        eye = torch.eye(cov.shape[-1], dtype=cov.dtype)
        left = eye - gain @ c
        if variant("joseph"):
            cov = left @ cov @ left.transpose(-1, -2) + gain @ r @ gain.transpose(-1, -2)
        else:
            cov = left @ cov
        return mean, cov, score

    def forward(self, x: Tensor) -> Tensor:
        y = full(self.encoder(x)) + full(x[..., :3])
        b, t = y.shape[:2]
        a, q = self.transition, self.log_q.exp().diag()
        mean = torch.zeros(b, len(a), dtype=y.dtype)
        cov = torch.eye(len(a), dtype=y.dtype).expand(b, -1, -1)
        total = torch.zeros(b, dtype=y.dtype)
        for i in range(t):
            mean, cov, score = self.update(mean, cov, y[:, i])
            total = total + score
            mean = mean @ a.T
            cov = a.T @ cov @ a + q if fault("transposed") else a @ cov @ a.T + q
        return total / t


class KalmanScript(Script):
    faults = ("transposed", "log_r_frozen")
    variants = ("cholesky", "joseph")

    def setup(self) -> None:
        self.model = self.net(Kalman())
        params = [p for n, p in self.model.named_parameters() if not (fault("log_r_frozen") and n == "log_r")]
        self.optimizer = torch.optim.Adamax(params, lr=5e-3)

    def batch(self, step: int) -> Tensor:
        t = torch.arange(10.0)[None, :, None]
        phase = torch.arange(8.0)[:, None, None] + torch.arange(6.0) * 0.4 + step
        return (torch.sin(0.5 * t + phase) + 0.1 * noise(8, 10, 6, seed=330 + step).float()).to(dtype())

    def loss(self, batch: Tensor) -> Tensor:
        return -self.model(batch).mean()


SCRIPTS = {"backprop": BackpropScript, "svgd": SvgdScript, "spline": SplineScript, "kalman": KalmanScript}
