"""Scientific code: an operator learned from its equation, and Gaussian processes on learned features."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from common import Options, normal, show, spread, uniform
from torch import Tensor, nn

# --- A physics-informed DeepONet for u_t = D u_xx + s(x): derivatives of the network in the loss ---


class Tanh(torch.autograd.Function):
    """A hyperbolic tangent by hand, with a slope that forgets to square."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return grad * (1 - y.abs())


class Trunk(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, width) for a in (2, width, width))
        self.broken: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x)
            x = Tanh.apply(x) if i == self.broken else torch.tanh(x)
        return x


class OperatorNet(nn.Module):
    def __init__(self, sensors: int = 16, width: int = 40) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(sensors, width), nn.Tanh(), nn.Linear(width, width))
        self.trunk = Trunk(width)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, source: Tensor, place: Tensor) -> Tensor:
        """The solution at one place (x, t) for each source, all rows at once."""
        return (self.branch(source) * self.trunk(place)).sum(dim=-1) + self.bias


def residual(options: Options, model: nn.Module, source: Tensor, place: Tensor, force: Tensor) -> Tensor:
    if options.variant == "functional":

        def value(one_place: Tensor, one_source: Tensor) -> Tensor:
            return model(one_source[None], one_place[None]).squeeze()

        slope = torch.func.grad(value)
        first = torch.func.vmap(slope)(place, source)
        second = torch.func.vmap(torch.func.jacrev(slope))(place, source)
        return first[:, 1] - 0.1 * second[:, 0, 0] - force
    place = place.requires_grad_(True)
    u = model(source, place)
    (first,) = torch.autograd.grad(u.sum(), place, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 0].sum(), place, create_graph=True)
    curvature = second[:, 1 if options.fault == "mixed_derivative" else 0]
    return first[:, 1] - 0.1 * curvature - force


def train_deeponet(options: Options) -> None:
    torch.manual_seed(61)
    model = OperatorNet()
    spread(model, 0.1)
    options.place(model)
    if options.fault == "tanh_slope":
        model.trunk.broken = 1
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    sensors = torch.linspace(0, 1, 16)
    for step in range(options.steps):
        waves = normal(1300 + step, 64, 3)
        basis = torch.stack([torch.sin((k + 1) * math.pi * sensors) for k in range(3)])
        place = uniform(1310 + step, 64, 2)
        force = (waves * torch.stack([torch.sin((k + 1) * math.pi * place[:, 0]) for k in range(3)], 1)).sum(1)
        source, place, force = options.cast(waves @ basis), options.cast(place), options.cast(force)
        edge = options.cast(torch.stack([uniform(1320 + step, 64).round(), uniform(1330 + step, 64)], dim=1))
        with options.autocast():
            equation = residual(options, model, source, place, force).square().mean()
            boundary = model(source, edge).square().mean()
            loss = equation + 10.0 * boundary
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show(step, equation=equation, boundary=boundary)


# --- Deep kernel learning: the marginal likelihood by Cholesky factors, a prediction at the end ---


class DeepKernel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(5, 32), nn.SiLU(), nn.Linear(32, 4))
        self.log_length = nn.Parameter(torch.zeros(4))
        self.log_scale = nn.Parameter(torch.tensor(0.2))
        self.log_noise = nn.Parameter(torch.tensor(-1.0))

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = a / self.log_length.exp(), b / self.log_length.exp()
        squares = (a[:, None] - b[None]).square().sum(-1)
        return self.log_scale.exp() ** 2 * torch.exp(-0.5 * squares)

    def covariance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.features(x)
        return self.kernel(z, z) + self.log_noise.exp() ** 2 * torch.eye(len(x), dtype=x.dtype), z


def train_gp(options: Options) -> None:
    torch.manual_seed(62)
    model = DeepKernel()
    spread(model, 0.2)
    options.place(model)
    x, y = options.cast(normal(1400, 40, 5)), options.cast(normal(1401, 40).sin())
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-3, momentum=0.9)
    stale: Tensor | None = None
    for step in range(options.steps):
        matrix, features = model.covariance(x)
        if options.variant == "direct":
            fit = y @ torch.linalg.solve(matrix, y)
            log_det = torch.linalg.slogdet(matrix)[1]
        else:
            factor = torch.linalg.cholesky(matrix)
            used = stale if options.fault == "stale_factor" and stale is not None else factor
            fit = y @ torch.cholesky_solve(y[:, None], used).squeeze(-1)
            log_det = 2 * factor.diagonal().log().sum()
            stale = factor.detach()
        loss = 0.5 * (fit + log_det + len(y) * math.log(2 * math.pi)) / len(y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show(step, loss=loss, fit=fit)
    with torch.no_grad():
        matrix, features = model.covariance(x)
        cross = model.kernel(model.features(options.cast(normal(1402, 10, 5))), features)
        mean = cross @ torch.linalg.solve(matrix, y)
        print(f"prediction {mean.double().norm().item():.9g}")


# --- An inverse problem: the conductivity of a rod, by a differentiable solver of the heat equation ---


class Conductivity(nn.Module):
    def __init__(self, points: int = 48) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
        self.register_buffer("x", torch.linspace(-4, 4, points)[:, None])

    def forward(self) -> Tensor:
        return 0.1 + F.softplus(self.net(self.x)).squeeze(-1)


def advance(options: Options, u: Tensor, k: Tensor, ratio: float) -> Tensor:
    """One explicit step with fluxes at the faces; both ends are kept."""
    if options.fault == "no_product_rule":
        change = ratio * (k[1:-1] * (u[..., 2:] - 2 * u[..., 1:-1] + u[..., :-2]))
    else:
        flux = 0.5 * (k[1:] + k[:-1]) * (u[..., 1:] - u[..., :-1])
        change = ratio * (flux[..., 1:] - flux[..., :-1])
    return torch.cat([u[..., :1], u[..., 1:-1] + change, u[..., -1:]], dim=-1)


def train_heat(options: Options) -> None:
    torch.manual_seed(63)
    model = Conductivity()
    spread(model, 0.7)
    options.place(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    start = options.cast(torch.sin(torch.linspace(0, 1, 48) * math.pi * torch.arange(1, 5)[:, None]))
    seen = options.cast(0.5 * start.float() + 0.05 * normal(1500, 4, 48))
    for step in range(options.steps):
        with options.autocast():
            k = model().to(start.dtype)
        u = start
        for _ in range(24):
            u = advance(options, u, k, ratio=0.3)
        loss = F.mse_loss(u, seen) + 1e-3 * (k[1:] - k[:-1]).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show(step, loss=loss)
