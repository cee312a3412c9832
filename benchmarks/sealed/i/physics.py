"""Physics: a wave equation with its adjoint by hand, a recurrent surrogate of a pendulum, an equilibrium network."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from common import Script, dtype, fault, full, generator, mlp, variant
from torch import Tensor, nn


def laplace(u: Tensor) -> Tensor:
    return torch.roll(u, 1, -1) - 2 * u + torch.roll(u, -1, -1)


class WaveSolve(torch.autograd.Function):
    """Leapfrog in time; backward solves the adjoint equation."""

    @staticmethod
    def forward(ctx: Any, m: Tensor, start: Tensor, steps: int) -> Tensor:
        fields = [start, start]
        for _ in range(steps):
            fields.append(2 * fields[-1] - fields[-2] + m * laplace(fields[-1]))
        history = torch.stack(fields)
        ctx.save_for_backward(m, history)
        return history[2:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        m, history = ctx.saved_tensors
        later = torch.zeros_like(grad[0])
        adjoint = torch.zeros_like(grad[0])
        slope = torch.zeros_like(m)
        for t in reversed(range(len(grad))):
            pull = m * laplace(adjoint) if fault("adjoint_order") else laplace(m * adjoint)
            new = grad[t] + 2 * adjoint + pull
            if not fault("adjoint_term"):
                new = new - later
            later, adjoint = adjoint, new
            slope = slope + (adjoint * laplace(history[t + 1])).sum(0)
        return slope, None, None


class Medium(nn.Module):
    """Speed of sound at places, from random Fourier features."""

    def __init__(self, features: int = 24) -> None:
        super().__init__()
        self.register_buffer("frequency", torch.randn(1, features, generator=generator(11)) * 3)
        self.layers = mlp(2 * features, 48, 48, 1, act=nn.Tanh)

    def forward(self, x: Tensor) -> Tensor:
        scale = 1.0 if fault("two_pi") else 2 * math.pi
        angle = scale * x @ self.frequency
        h = torch.cat([angle.sin(), angle.cos()], -1)
        return 0.1 + 0.3 * torch.sigmoid(full(self.layers(h))).squeeze(-1)


class WaveScript(Script):
    faults = ("adjoint_order", "adjoint_term", "two_pi")
    variants = ("autograd",)

    def setup(self) -> None:
        self.model = self.net(Medium())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.x = torch.linspace(0, 1, 49)[:-1, None].to(dtype())
        centre = torch.tensor([0.2, 0.5, 0.8])[:, None]
        self.start = torch.exp(-200 * (self.x.squeeze(-1) - centre) ** 2).to(dtype())

    def solve(self, m: Tensor) -> Tensor:
        if variant("autograd"):
            before = now = self.start
            fields = []
            for _ in range(40):
                before, now = now, 2 * now - before + m * laplace(now)
                fields.append(now)
            return torch.stack(fields)
        return WaveSolve.apply(m, self.start, 40)

    def batch(self, step: int) -> Tensor:
        speed = 0.2 + 0.1 * torch.sin(2 * math.pi * self.x.squeeze(-1))
        with torch.no_grad():
            return WaveSolve.apply(speed, self.start, 40)[:, :, ::6]

    def loss(self, batch: Tensor) -> Tensor:
        traces = self.solve(self.model(self.x))[:, :, ::6]
        return 100 * (traces - batch).pow(2).mean()


class Surrogate(nn.Module):
    def __init__(self, dim: int = 48) -> None:
        super().__init__()
        self.lift = nn.Linear(4, 32)
        self.lstm = nn.LSTM(32, dim, num_layers=2, batch_first=True)
        for name, p in self.lstm.named_parameters():
            if "bias_ih" in name:
                # Gates are in the order input, forget, cell, output.
                start = 2 * dim if fault("forget_bias") else dim
                p.data[start : start + dim].fill_(1.0)
        self.out = nn.Linear(dim, 2)

    def loop(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hs, cs = [], []
        for layer in range(2):
            w, u, b, d = self.lstm.all_weights[layer]
            h, c = state[0][layer], state[1][layer]
            outs = []
            for t in range(x.shape[1]):
                i, f, g, o = (x[:, t] @ w.T + b + h @ u.T + d).chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                outs.append(h)
            x = torch.stack(outs, 1)
            hs.append(h)
            cs.append(c)
        return x, (torch.stack(hs), torch.stack(cs))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h = torch.tanh(self.lift(x))
        h, state = self.loop(h, state) if variant("cells") else self.lstm(h, state)
        return self.out(h), state


class SurrogateScript(Script):
    faults = ("forget_bias", "detached_state", "clip_value")
    variants = ("cells",)

    def setup(self) -> None:
        self.model = self.net(Surrogate())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def batch(self, step: int) -> Tensor:
        g = generator(130 + step)
        angle = torch.rand(12, generator=g) * 2 - 1
        speed = torch.rand(12, generator=g) - 0.5
        rows = []
        for _ in range(21):
            rows.append(torch.stack([angle, speed], -1))
            speed = speed - 0.2 * torch.sin(angle)
            angle = angle + 0.2 * speed
        return torch.stack(rows, 1).to(dtype())

    def loss(self, batch: Tensor) -> Tensor:
        inputs = torch.cat([batch, batch.sin()], -1)
        state = (torch.zeros(2, 12, 48, dtype=batch.dtype), torch.zeros(2, 12, 48, dtype=batch.dtype))
        total = torch.zeros(())
        for start in (0, 10):
            if fault("detached_state"):
                state = (state[0].detach(), state[1].detach())
            change, state = self.model(inputs[:, start : start + 10], state)
            now, after = batch[:, start : start + 10], batch[:, start + 1 : start + 11]
            predicted = now + change
            energy = 0.5 * predicted[..., 1] ** 2 - torch.cos(predicted[..., 0])
            truth = 0.5 * after[..., 1] ** 2 - torch.cos(after[..., 0])
            total = total + F.mse_loss(predicted, after) + 0.1 * F.mse_loss(energy, truth)
        return 5 * total

    def update(self, loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        limit = 0.005 if fault("clip_value") else 0.05
        nn.utils.clip_grad_value_(self.model.parameters(), limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Cell(nn.Module):
    """The function whose fixed point is the layer."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.a = nn.utils.parametrizations.spectral_norm(nn.Linear(dim, dim, bias=False))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(0.8 * self.a(z) + x)


class Equilibrium(nn.Module):
    def __init__(self, dim: int = 40, classes: int = 5) -> None:
        super().__init__()
        self.inject = nn.Linear(20, dim)
        self.cell = Cell(dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def solve(self, function: Any, z: Tensor) -> Tensor:
        for _ in range(6 if fault("iterations") else 60):
            z = function(z)
        return z

    def forward(self, x: Tensor) -> Tensor:
        x = self.inject(x)
        with torch.no_grad():
            z = self.solve(lambda z: self.cell(z, x), torch.zeros_like(x))
        z = self.cell(z, x)
        if torch.is_grad_enabled() and not fault("no_implicit"):
            z0 = z.detach().requires_grad_()
            f0 = self.cell(z0, x.detach())

            def implicit(grad: Tensor) -> Tensor:
                return self.solve(lambda y: torch.autograd.grad(f0, z0, y, retain_graph=True)[0] + grad, grad)

            z.register_hook(implicit)
        return self.head(self.norm(z))


class EquilibriumScript(Script):
    faults = ("iterations", "no_implicit")
    variants = ("label_smooth",)

    def setup(self) -> None:
        self.model = self.net(Equilibrium())
        self.optimizer = torch.optim.Rprop(self.model.parameters(), lr=1e-3)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        g = generator(140 + step)
        x = torch.randn(32, 20, generator=g)
        return x.to(dtype()), (x[:, :5]).argmax(-1)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = self.model(batch[0])
        if variant("label_smooth"):
            logp = logits.log_softmax(-1)
            nll = -logp.gather(1, batch[1][:, None]).mean()
            return 0.9 * nll - 0.1 * logp.mean()
        return F.cross_entropy(logits, batch[1], label_smoothing=0.1)


SCRIPTS = {"wave": WaveScript, "surrogate": SurrogateScript, "equilibrium": EquilibriumScript}
