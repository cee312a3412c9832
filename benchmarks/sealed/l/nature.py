"""Physics, chemistry, pictures from rays, shapes: research code by hand."""

from __future__ import annotations

import itertools
import math

import torch
from common import Script, script
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm


class Potential(nn.Module):
    """Energy of atoms from what each sees around it within a radius."""

    radius = 4.0

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.register_buffer("centres", torch.linspace(0.5, 3.5, 8))
        self.atom = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def fade(self, distance: Tensor) -> Tensor:
        if self.script.has("other_fade"):
            return torch.tanh(1 - distance / self.radius) ** 3
        return 0.5 * (torch.cos(math.pi * distance / self.radius) + 1)

    def forward(self, places: Tensor) -> Tensor:
        count = len(places)
        pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
        here, there = torch.tensor(pairs).T
        distance = (places[here] - places[there]).norm(dim=-1)
        near = distance < self.radius
        bumps = torch.exp(-2.0 * (distance[:, None] - self.centres).square()) * self.fade(distance)[:, None]
        bumps = bumps * near[:, None]
        if self.script.way("matrix"):
            seen = bumps.view(count, count - 1, -1).sum(1)
        else:
            seen = bumps.new_zeros(count, 8).index_add(0, here, bumps)
        return self.atom(seen).sum()


@script("potential")
class Forces(Script):
    faults = ("other_fade", "forces_detached", "energy_per_atom")
    variants = ("matrix",)

    def build(self) -> None:
        self.net = self.add(Potential(self))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=3e-3)
        grid = torch.cartesian_prod(*[torch.arange(2.0)] * 3)
        self.places = [(grid * 1.6).to(self.dtype) + 0.2 * self.normal(8, 3) for _ in range(2)]
        self.energies, self.forces = self.normal(2), [self.normal(8, 3) for _ in range(2)]

    def loss(self, number: int) -> Tensor:
        total = torch.zeros(())
        for places, energy, force in zip(self.places, self.energies, self.forces, strict=True):
            at = places.clone().requires_grad_()
            made = self.wide(self.net(at))
            learns = not self.has("forces_detached")
            (slope,) = torch.autograd.grad(made, at, create_graph=learns, retain_graph=True)
            share = 8 if self.has("energy_per_atom") else 1
            total = (
                total + F.mse_loss(made / share, self.wide(energy)) + F.mse_loss(-self.wide(slope), self.wide(force))
            )
        return total / 2


class Wave(nn.Module):
    """Logarithm of the amplitude of spins."""

    def __init__(self) -> None:
        super().__init__()
        self.visible = nn.Parameter(0.3 * torch.randn(6))
        self.hidden = nn.Linear(6, 12)

    def forward(self, spins: Tensor) -> Tensor:
        x = self.hidden(spins)
        return spins @ self.visible + (x.abs() + F.softplus(-2 * x.abs()) - math.log(2)).sum(-1)


@script("spins")
class Spins(Script):
    """A ring of six spins in a field across it: all states, so nothing is left to chance."""

    faults = ("no_baseline", "open_ring", "weak_field")
    variants = ("quotient",)

    def build(self) -> None:
        net = Wave()
        nn.init.normal_(net.hidden.weight, std=0.3)
        self.net = self.add(net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.spins = (torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 6)).to(self.dtype)

    def energies(self, amplitude: Tensor) -> Tensor:
        neighbours = self.spins.roll(-1, dims=1) * self.spins
        if self.has("open_ring"):
            neighbours = neighbours[:, :-1]
        energy = -neighbours.sum(1)
        states = torch.arange(64)
        field = 0.8 if self.has("weak_field") else 1.0
        for bit in range(6):
            energy = energy - field * torch.exp(amplitude[states ^ (1 << (5 - bit))] - amplitude)
        return energy

    def loss(self, number: int) -> Tensor:
        amplitude = self.wide(self.net(self.spins))
        if self.way("quotient"):
            return (torch.softmax(2 * amplitude, 0) * self.energies(amplitude)).sum()
        with torch.no_grad():
            chance = torch.softmax(2 * amplitude, 0)
            local = self.energies(amplitude)
            mean = (chance * local).sum()
        centred = local if self.has("no_baseline") else local - mean
        learn = 2 * (chance * centred * amplitude).sum()
        return learn - learn.detach() + mean


class Linearised(nn.Module):
    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.lift = nn.Sequential(nn.Linear(4, 32), nn.ELU(), nn.Linear(32, 12))
        self.drop = nn.Sequential(nn.Linear(12, 32), nn.ELU(), nn.Linear(32, 4))
        self.forward_map = nn.Parameter(torch.linalg.qr(torch.randn(12, 12))[0] * 0.95)

    def forward(self, x: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        first = self.lift(x)
        if self.script.way("powers"):
            maps = [torch.linalg.matrix_power(self.forward_map, n) for n in range(1, steps + 1)]
            states = torch.einsum("bi,tij->btj", first, torch.stack(maps))
        else:
            along = [first]
            for _ in range(steps):
                along.append(along[-1] @ self.forward_map)
            states = torch.stack(along[1:], 1)
        return first, states


@script("linearised")
class Koopman(Script):
    """Pendulums, whose motion is linear when lifted."""

    faults = ("one_step_late", "decoded_only", "transposed_map")
    variants = ("powers",)

    def build(self) -> None:
        self.net = self.add(Linearised(self))
        if self.has("transposed_map"):
            self.net.forward_map.data = self.net.forward_map.data.T.contiguous()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=3e-3)
        x = torch.randn(8, 4, generator=self.random)
        path = [x]
        for _ in range(6):
            place, speed = path[-1].chunk(2, 1)
            speed = speed - 0.2 * torch.sin(place)
            path.append(torch.cat([place + 0.2 * speed, speed], 1))
        self.path = torch.stack(path, 1).to(self.dtype)

    def loss(self, number: int) -> Tensor:
        first, states = self.net(self.path[:, 0], 5)
        late = 1 if self.has("one_step_late") else 0
        later = self.path[:, 1 + late : 6 + late]
        loss = F.mse_loss(self.wide(self.net.drop(first)), self.wide(self.path[:, 0]))
        loss = loss + F.mse_loss(self.wide(self.net.drop(states)), self.wide(later))
        if not self.has("decoded_only"):
            loss = loss + 0.5 * F.mse_loss(self.wide(states), self.wide(self.net.lift(later)))
        return loss


class Unrolled(nn.Module):
    """Steps towards a picture that has the measured shadows, each corrected by a small network."""

    def __init__(self, script: Script, rays: Tensor) -> None:
        super().__init__()
        self.script = script
        self.register_buffer("rays", rays)
        self.rate = nn.Parameter(torch.full((2,), 0.05))
        self.clean = nn.ModuleList(
            nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.PReLU(), nn.Conv2d(8, 1, 3, padding=1)) for _ in range(2)
        )

    def forward(self, shadows: Tensor) -> Tensor:
        x = shadows.new_zeros(len(shadows), 64)
        for i, clean in enumerate(self.clean):
            if self.script.way("gram"):
                slope = x @ (self.rays.T @ self.rays) - shadows @ self.rays
            else:
                missing = F.linear(x, self.rays) - shadows
                if self.script.has("stale_shadows") and i:
                    missing = -shadows
                slope = missing @ self.rays
            x = x - self.rate[i] * slope
            picture = x.view(-1, 1, 8, 8)
            x = (picture + clean(picture)).flatten(1)
        return x.view(-1, 8, 8)


@script("shadows")
class Tomography(Script):
    faults = ("stale_shadows", "border_counts")
    variants = ("gram",)

    def build(self) -> None:
        places = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0)) - 3.5
        rows = []
        for angle in torch.linspace(0, math.pi, 7)[:-1]:
            along = places[:, 0] * torch.cos(angle) + places[:, 1] * torch.sin(angle)
            rows += [torch.clamp(1 - (along - offset).abs(), min=0) for offset in torch.arange(-4.5, 5.0)]
        rays = torch.stack(rows)
        self.net = self.add(Unrolled(self, rays))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-3)
        self.pictures = self.uniform(3, 8, 8)
        shadows = self.pictures.flatten(1).to(rays.dtype) @ rays.T
        self.shadows = shadows.to(self.dtype)

    def loss(self, number: int) -> Tensor:
        missed = (self.wide(self.net(self.shadows)) - self.wide(self.pictures)).square()
        if not self.has("border_counts"):
            missed = missed[:, 1:-1, 1:-1]
        return missed.mean()


class Surface(nn.Module):
    """Distance from a surface, at first a sphere."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        sizes = [3 + 18, 48, 48, 48, 1]
        layers = []
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            layer = nn.Linear(a if i != 2 else a + 21, b)
            if b == 1:
                nn.init.normal_(layer.weight, math.sqrt(math.pi) / math.sqrt(a), 1e-4)
                nn.init.constant_(layer.bias, -0.6)
            else:
                nn.init.normal_(layer.weight, 0.0, math.sqrt(2) / math.sqrt(b))
                nn.init.zeros_(layer.bias)
            layers.append(weight_norm(layer))
        self.layers = nn.ModuleList(layers)
        self.act = nn.Softplus(beta=20 if script.has("soft") else 100)

    def forward(self, x: Tensor) -> Tensor:
        waves = [f(x * 2**i) for i in range(3) for f in (torch.sin, torch.cos)]
        told = torch.cat([x, *waves], dim=-1)
        y = told
        for i, layer in enumerate(self.layers):
            if i == 2:
                y = torch.cat([y, told], dim=-1)
                if not self.script.has("loud_skip"):
                    y = y / math.sqrt(2)
            y = layer(y)
            if i < 3:
                y = self.act(y)
        return y.squeeze(-1)


@script("surface")
class SignedDistance(Script):
    faults = ("soft", "loud_skip", "squared_slope")

    def build(self) -> None:
        self.net = self.add(Surface(self))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10)
        points = torch.randn(24, 3, generator=self.random)
        self.normals = F.normalize(points, dim=-1).to(self.dtype)
        self.points = (0.7 * F.normalize(points, dim=-1)).to(self.dtype)
        self.free = 2 * self.uniform(24, 3) - 1

    def loss(self, number: int) -> Tensor:
        at = torch.cat([self.points, self.free]).requires_grad_()
        distance = self.net(at)
        (slope,) = torch.autograd.grad(distance.sum(), at, create_graph=True)
        distance, slope = self.wide(distance), self.wide(slope)
        steep = slope.square().sum(-1) if self.has("squared_slope") else slope.norm(dim=-1)
        facing = (slope[:24] - self.wide(self.normals)).norm(dim=-1).mean()
        far = torch.exp(-50 * distance[24:].abs()).mean()
        return distance[:24].abs().mean() + 0.1 * (steep - 1).square().mean() + 0.5 * facing + 0.1 * far

    def step(self, number: int) -> float:
        value = super().step(number)
        self.schedule.step()
        return value
