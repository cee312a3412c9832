"""Unusual layers and optimizers: transport by Sinkhorn, convolutions by FFT, a circuit of qubits, tensor trains with
Shampoo, complex numbers, sorting networks, sharpness-aware steps with Lookahead."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from common import OPTIONS, Script, dtype, fault, full, generator, mlp, noise, variant
from torch import Tensor, nn
from torch.nn.utils import parametrizations


def sinkhorn(cost: Tensor, eps: float = 0.2, rounds: int = 12) -> Tensor:
    """The transport plan between uniform weights."""
    n, m = cost.shape[-2:]
    if variant("kernel"):
        k = torch.exp(-cost / eps)
        v = torch.ones(*cost.shape[:-2], 1, m, dtype=cost.dtype)
        for _ in range(rounds):
            u = (1 / n) / (k * v).sum(-1, keepdim=True)
            v = (1 / m) / (k * u).sum(-2, keepdim=True)
        return u * k * v
    log = -cost / eps
    f, g = torch.zeros_like(log[..., :1]), torch.zeros_like(log[..., :1, :])
    for _ in range(rounds):
        f = -math.log(n) - (log + g).logsumexp(-1, keepdim=True)
        axis = -1 if fault("both_rows") else -2
        g = -math.log(m) - (log + f).logsumexp(axis, keepdim=True).view_as(g)
    return (log + f + g).exp()


class Matcher(nn.Module):
    """Moves one cloud of points onto another."""

    def __init__(self) -> None:
        super().__init__()
        self.features = mlp(3, 48, 24, act=nn.GELU)
        self.move = mlp(3, 48, 3, act=nn.GELU)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        moved = full(a + self.move(a))
        geometry = (moved[:, :, None] - full(b)[:, None]).pow(2).sum(-1)
        if fault("cost_root"):
            geometry = geometry.sqrt()
        fa, fb = full(self.features(a)), full(self.features(b))
        looks = 1 - F.cosine_similarity(fa[:, :, None], fb[:, None], dim=-1)
        cost = geometry + 0.5 * looks
        plan = sinkhorn(cost)
        return (plan * cost).sum((-1, -2)).mean()


class MatchScript(Script):
    faults = ("both_rows", "cost_root")
    variants = ("kernel",)

    def setup(self) -> None:
        self.model = self.net(Matcher())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        a, b = noise(4, 14, 3, seed=1700 + step), noise(4, 14, 3, seed=1710 + step)
        return a, b * 0.6 + 0.5

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.model(*batch)


class LongConv(nn.Module):
    """A filter as long as the sequence, applied in the frequency domain."""

    def __init__(self, dim: int, length: int) -> None:
        super().__init__()
        decay = torch.exp(-torch.arange(length) / torch.linspace(2, 12, dim)[:, None])
        self.kernel = nn.Parameter(torch.randn(dim, length) * 0.3 * decay)
        self.skip = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[-1]
        if variant("direct"):
            padded = F.pad(full(x), (n - 1, 0))
            y = F.conv1d(padded, full(self.kernel).flip(-1)[:, None], groups=x.shape[1])
        else:
            size = n if fault("wrap") else 2 * n
            y = torch.fft.irfft(torch.fft.rfft(full(x), size) * torch.fft.rfft(full(self.kernel), size), size)[..., :n]
        return (y + full(x) * full(self.skip)[:, None]).to(x.dtype)


class LongModel(nn.Module):
    def __init__(self, dim: int = 24, length: int = 40) -> None:
        super().__init__()
        self.lift = nn.Conv1d(2, dim, 1)
        self.convs = nn.ModuleList(LongConv(dim, length) for _ in range(2))
        self.mix = nn.ModuleList(parametrizations.weight_norm(nn.Conv1d(dim, 2 * dim, 1)) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm1d(dim) for _ in range(2))
        self.head = nn.Linear(dim, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x)
        for conv, mix, norm in zip(self.convs, self.mix, self.norms, strict=True):
            h = h + F.glu(mix(F.gelu(conv(norm(h)))), 1)
        return self.head(h.mean(-1))


class LongScript(Script):
    faults = ("wrap", "frozen_norm")
    variants = ("direct",)

    def setup(self) -> None:
        self.model = self.net(LongModel())
        if fault("frozen_norm"):
            self.model.norms.eval()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        t = torch.arange(40.0)
        kind = torch.arange(18) % 3
        x = torch.sin(0.3 * (kind + 1)[:, None] * t + torch.arange(18.0)[:, None])
        x = torch.stack([x, t.expand(18, -1) / 40], 1) + 0.3 * noise(18, 2, 40, seed=1720 + step).float()
        return x.to(dtype()), kind

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1])


class Circuit(nn.Module):
    """Rotations and controlled flips on a state of qubits; measured are the signs of each."""

    def __init__(self, qubits: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.qubits = qubits
        self.angles = nn.Parameter(torch.rand(depth, qubits, 2, generator=generator(17)) * 3)

    def turn(self, state: Tensor, angle: Tensor, qubit: int, axis: str) -> Tensor:
        half = angle if fault("full_angle") else angle / 2
        c, s = half.cos(), half.sin()
        if axis == "y":
            gate = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2).to(state.dtype)
        else:
            zero = torch.zeros_like(c)
            gate = (
                torch.stack([torch.complex(c, -s), torch.complex(zero, zero)], -1),
                torch.stack([torch.complex(zero, zero), torch.complex(c, s)], -1),
            )
            gate = torch.stack(gate, -2)
        state = state.movedim(qubit + 1, -1)
        if gate.ndim == 2:
            gate = gate.expand(len(state), 2, 2)
        new = torch.einsum("b...j,bij->b...i", state, gate)
        return new.movedim(-1, qubit + 1)

    def flip(self, state: Tensor, control: int, target: int) -> Tensor:
        if fault("flip_swapped"):
            control, target = target, control
        off, on = state.unbind(control + 1)
        place = target + 1 if target < control else target
        return torch.stack([off, on.flip(place)], control + 1)

    def forward(self, x: Tensor) -> Tensor:
        kind = torch.complex128 if x.dtype == torch.float64 else torch.complex64
        state = torch.zeros(len(x), *[2] * self.qubits, dtype=kind)
        state[(slice(None), *[0] * self.qubits)] = 1
        for layer in full(self.angles):
            for q in range(self.qubits):
                state = self.turn(state, full(x[:, q]), q, "y")
                state = self.turn(state, layer[q, 0], q, "z")
                state = self.turn(state, layer[q, 1], q, "y")
            for q in range(self.qubits):
                state = self.flip(state, q, (q + 1) % self.qubits)
        p = state.abs() ** 2 if variant("absolute") else state.real**2 + state.imag**2
        outs = []
        for q in range(self.qubits):
            zero, one = p.movedim(q + 1, 1).flatten(2).sum(-1).unbind(1)
            outs.append(zero - one)
        return torch.stack(outs, -1)


class CircuitScript(Script):
    faults = ("full_angle", "flip_swapped")
    variants = ("absolute", "hand_adam")

    def setup(self) -> None:
        self.model = self.net(nn.Sequential(mlp(6, 24, 4, act=nn.Tanh), Circuit(), nn.Linear(4, 2)))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        if variant("hand_adam"):
            self.optimizer = HandAdam(self.model.parameters(), lr=0.02)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = noise(24, 6, seed=1730 + step)
        return x, (x[:, 0] > x[:, 1]).long()

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        h = self.model[1](self.model[0](x))
        return F.cross_entropy(self.model[2](h.to(x.dtype)), y)


class HandAdam(torch.optim.Optimizer):
    """Adam as in the paper."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.count += 1
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                m, v = state["exp_avg"], state["exp_avg_sq"]
                m.copy_(b1 * m + (1 - b1) * p.grad)
                v.copy_(b2 * v + (1 - b2) * p.grad**2)
                first, second = m / (1 - b1**self.count), v / (1 - b2**self.count)
                p.sub_(group["lr"] * first / (second.sqrt() + 1e-8))


class TrainLinear(nn.Module):
    """A linear layer whose matrix is a train of three small tensors."""

    def __init__(self, inputs: tuple[int, int, int], outputs: tuple[int, int, int], rank: int = 5) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        (a, b, c), (x, y, z) = inputs, outputs
        self.g1 = nn.Parameter(torch.randn(a, x, rank) * (a * rank) ** -0.25)
        self.g2 = nn.Parameter(torch.randn(rank, b, y, rank) * (b * rank) ** -0.25)
        self.g3 = nn.Parameter(torch.randn(rank, c, z) * (c * rank) ** -0.25)
        self.bias = nn.Parameter(torch.zeros(x * y * z))

    def forward(self, v: Tensor) -> Tensor:
        t = v.view(-1, *self.inputs)
        if variant("matrix"):
            w = torch.einsum("axr,rbys,scz->abcxyz", self.g1, self.g2, self.g3)
            y = v @ w.reshape(v.shape[-1], -1)
        else:
            t = torch.einsum("nabc,axr->nbcxr", t, self.g1)
            if fault("rank_order"):
                t = torch.einsum("nbcxr,sbyr->ncxys", t, self.g2)
            else:
                t = torch.einsum("nbcxr,rbys->ncxys", t, self.g2)
            y = torch.einsum("ncxys,scz->nxyz", t, self.g3).flatten(1)
        return y + self.bias


class Shampoo(torch.optim.Optimizer):
    """Every axis has its own preconditioner, a matrix root."""

    def __init__(self, params: Any, lr: float, eps: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                g = p.grad.clone()
                state = self.state[p]
                if not state:
                    state["pre"] = [group["eps"] * torch.eye(n, dtype=p.dtype) for n in p.shape]
                order = p.ndim if fault("matrix_root") else 2 * p.ndim
                for axis, pre in enumerate(state["pre"]):
                    flat = p.grad.movedim(axis, 0).flatten(1) if p.ndim > 1 else p.grad[:, None]
                    pre.add_(flat @ flat.T)
                    values, vectors = torch.linalg.eigh(pre)
                    root = (vectors * values.clamp(min=1e-10) ** (-1 / order)) @ vectors.T
                    g = torch.tensordot(root, g, ([1], [axis])).movedim(0, axis)
                p.add_(g, alpha=-group["lr"])


class TrainScript(Script):
    faults = ("rank_order", "matrix_root")
    variants = ("matrix",)

    def setup(self) -> None:
        layers = [TrainLinear((4, 4, 3), (4, 4, 4)), nn.LeakyReLU(0.2), TrainLinear((4, 4, 4), (2, 4, 3))]
        self.model = self.net(nn.Sequential(*layers, nn.LeakyReLU(0.2), nn.Linear(24, 4)))
        self.optimizer = Shampoo(self.model.parameters(), lr=0.02)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = noise(40, 48, seed=1740 + step)
        return x, x[:, :4].argmax(-1)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1])


class ComplexLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.real = nn.Linear(inputs, outputs, bias=False)
        self.imag = nn.Linear(inputs, outputs, bias=False)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        if variant("complex"):
            z = torch.complex(full(a), full(b)) @ torch.complex(full(self.real.weight), full(self.imag.weight)).T
            return z.real, z.imag
        if fault("conjugate"):
            return self.real(a) + self.imag(b), self.real(b) - self.imag(a)
        return self.real(a) - self.imag(b), self.real(b) + self.imag(a)


class ComplexNet(nn.Module):
    """For signals given by real and imaginary part; modReLU between the layers."""

    def __init__(self, inputs: int = 16, dim: int = 40) -> None:
        super().__init__()
        self.first = ComplexLinear(inputs, dim)
        self.second = ComplexLinear(dim, dim)
        self.bias = nn.Parameter(torch.full((2, dim), -0.05))
        self.head = nn.Linear(dim, 4)

    def activate(self, a: Tensor, b: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        size = torch.sqrt(full(a) ** 2 + full(b) ** 2 + (1e-2 if fault("size_eps") else 1e-6))
        scale = (F.relu(size + bias) / size).to(a.dtype)
        return a * scale, b * scale

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.activate(*self.first(a, b), self.bias[0])
        a, b = self.activate(*self.second(a, b), self.bias[1])
        return self.head(torch.sqrt(full(a) ** 2 + full(b) ** 2 + 1e-6).to(a.dtype))


class ComplexScript(Script):
    faults = ("conjugate", "size_eps")
    variants = ("complex",)

    def setup(self) -> None:
        self.model = self.net(ComplexNet())
        self.optimizer = torch.optim.Adadelta(self.model.parameters(), lr=1.0)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        kind = torch.arange(32) % 4
        t = torch.arange(16.0)
        phase = 0.5 * (kind + 1)[:, None] * t
        a = torch.cos(phase) + 0.3 * noise(32, 16, seed=1750 + step).float()
        b = torch.sin(phase) + 0.3 * noise(32, 16, seed=1760 + step).float()
        return a.to(dtype()), b.to(dtype()), kind

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.model(*batch[:2]), batch[2])


class SoftSort(torch.autograd.Function):
    """A relaxed swap: the smaller and the larger of two, with the gradient of the logistic relaxation."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, steep: float) -> tuple[Tensor, Tensor]:
        p = torch.sigmoid(steep * (b - a))
        ctx.save_for_backward(a, b, p)
        ctx.steep = steep
        return p * a + (1 - p) * b, p * b + (1 - p) * a

    @staticmethod
    def backward(ctx: Any, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b, p = ctx.saved_tensors
        slope = ctx.steep * p * (1 - p)
        if fault("swap_slope"):
            slope = p * (1 - p)
        # Derivative of the outputs with respect to p, then of p with respect to a and b.
        through = (low * (a - b) + high * (b - a)) * slope
        return p * low + (1 - p) * high - through, (1 - p) * low + p * high + through, None


class Sorter(nn.Module):
    """Scores images; a network of swaps sorts the scores."""

    def __init__(self, steep: float = 5.0) -> None:
        super().__init__()
        self.steep = steep
        self.conv = nn.Conv2d(1, 8, 3, padding=1, padding_mode="replicate" if fault("border") else "reflect")
        self.fc1 = nn.Linear(8 * 16, 32)
        self.fc2 = nn.Linear(32, 1)

    def swap(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        if variant("autograd"):
            p = torch.sigmoid(self.steep * (b - a))
            return p * a + (1 - p) * b, p * b + (1 - p) * a
        return SoftSort.apply(a, b, self.steep)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        b, n = x.shape[:2]
        h = F.avg_pool2d(F.relu(self.conv(x.flatten(0, 1)[:, None])), 2)
        score = full(self.fc2(F.silu(self.fc1(h.flatten(1))))).view(b, n)
        columns = list(score.unbind(1))
        for layer in range(n):
            for i in range(layer % 2, n - 1, 2):
                columns[i], columns[i + 1] = self.swap(columns[i], columns[i + 1])
        return score, torch.stack(columns, 1)


class SorterScript(Script):
    faults = ("swap_slope", "border", "descending")
    variants = ("autograd",)

    def setup(self) -> None:
        self.model = self.net(Sorter())
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.01)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        g = generator(1770 + step)
        value = torch.rand(8, 6, generator=g)
        x = value[..., None, None] + 0.4 * torch.randn(8, 6, 8, 8, generator=g)
        return x.to(dtype()), value.sort(-1, descending=fault("descending")).values.to(dtype())

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        _, ordered = self.model(batch[0])
        return F.mse_loss(ordered, batch[1])


class Lookahead:
    """Slow weights that follow the fast ones every k steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, k: int = 2, alpha: float = 0.5) -> None:
        self.optimizer, self.k, self.alpha, self.count = optimizer, k, alpha, 0
        self.slow = [[p.detach().clone() for p in g["params"]] for g in optimizer.param_groups]

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        self.count += 1
        if self.count % self.k:
            return
        for group, slow in zip(self.optimizer.param_groups, self.slow, strict=True):
            for p, s in zip(group["params"], slow, strict=True):
                if fault("slow_not_kept"):
                    p.copy_(s + self.alpha * (p - s))
                else:
                    s.add_(p - s, alpha=self.alpha)
                    p.copy_(s)


class SharpScript(Script):
    """Sharpness-aware minimisation of an orthogonal network, under Lookahead."""

    faults = ("no_restore", "radius_norm", "slow_not_kept")
    variants = ("foreach",)

    def setup(self) -> None:
        layer = parametrizations.orthogonal(nn.Linear(20, 20), orthogonal_map="householder")
        self.model = self.net(
            nn.Sequential(nn.Linear(12, 20), nn.Tanh(), layer, nn.BatchNorm1d(20), nn.Tanh(), nn.Linear(20, 3))
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, foreach=variant("foreach"))
        self.lookahead = Lookahead(self.optimizer)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = noise(48, 12, seed=1780 + step)
        return x, (x[:, :3] ** 2).argmax(-1)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def run(self) -> None:
        params = list(self.model.parameters())
        for step in range(OPTIONS.steps):
            batch = self.batch(step)
            self.optimizer.zero_grad()
            with self.autocast():
                loss = self.loss(batch)
            loss.backward()
            with torch.no_grad():
                norm = torch.stack([p.grad.norm() for p in params]).norm()
                if fault("radius_norm"):
                    norm = torch.stack([p.grad.norm() for p in params]).sum()
                moves = [0.1 * p.grad / (norm + 1e-12) for p in params]
                for p, move in zip(params, moves, strict=True):
                    p.add_(move)
            self.optimizer.zero_grad()
            with self.autocast():
                sharp = self.loss(batch)
            sharp.backward()
            if not fault("no_restore"):
                with torch.no_grad():
                    for p, move in zip(params, moves, strict=True):
                        p.sub_(move)
            self.lookahead.step()
            self.report(step, sharp)


SCRIPTS = {
    "match": MatchScript,
    "longconv": LongScript,
    "circuit": CircuitScript,
    "tensortrain": TrainScript,
    "complex": ComplexScript,
    "sorter": SorterScript,
    "sharp": SharpScript,
}
