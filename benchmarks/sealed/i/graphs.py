"""Graphs: GIN (torch_geometric), temporal graph memory, mesh graph nets, atoms with spherical harmonics."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from common import Script, dtype, fault, full, generator, mlp, noise, variant
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, global_add_pool


class Gin(nn.Module):
    def __init__(self, features: int = 10, dim: int = 40, classes: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        self.norms = nn.ModuleList()
        eps = 1e-2 if fault("norm_eps") else 1e-5
        for i in range(depth):
            inner = nn.Sequential(
                nn.Linear(features if i == 0 else dim, dim),
                nn.BatchNorm1d(dim, eps=eps),
                nn.ReLU(),
                nn.Linear(dim, dim),
            )
            self.convs.append(GINConv(inner, eps=0.1, train_eps=True))
            self.norms.append(nn.BatchNorm1d(dim))
        self.heads = nn.ModuleList(nn.Linear(dim, classes) for _ in range(depth))

    def convolve(self, conv: GINConv, x: Tensor, edges: Tensor) -> Tensor:
        if variant("dense"):
            adjacency = torch.zeros(len(x), len(x), dtype=x.dtype)
            adjacency.index_put_((edges[1], edges[0]), torch.ones(edges.shape[1], dtype=x.dtype), accumulate=True)
            return conv.nn(adjacency @ x + (1 + conv.eps) * x)
        return conv(x, edges)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        out: Tensor | float = 0.0
        for conv, norm, head in zip(self.convs, self.norms, self.heads, strict=True):
            x = F.relu(norm(self.convolve(conv, x, edges)))
            out = out + head(global_add_pool(x, graph))
        return out


class GinScript(Script):
    faults = ("directed", "norm_eps", "frozen_eps")
    variants = ("dense", "foreach")

    def setup(self) -> None:
        self.model = self.net(Gin())
        params = [p for n, p in self.model.named_parameters() if not (fault("frozen_eps") and n.endswith("eps"))]
        self.optimizer = torch.optim.RAdam(params, lr=3e-3, foreach=variant("foreach"))

    def batch(self, step: int) -> Batch:
        g = generator(100 + step)
        graphs = []
        for i in range(12):
            n = 8 + i % 5
            pairs = torch.randint(0, n, (2, 2 * n), generator=g)
            if not fault("directed"):
                pairs = torch.cat([pairs, pairs.flip(0)], 1)
            x = torch.randn(n, 10, generator=g) * 0.5
            graphs.append(Data(x=x.to(dtype()), edge_index=pairs, y=torch.tensor([i % 4])))
        return Batch.from_data_list(graphs)

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.model(batch.x, batch.edge_index, batch.batch), batch.y)


class TimeEncoding(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.frequency = nn.Parameter(10.0 ** -torch.linspace(0, 3, dim))
        self.phase = nn.Parameter(torch.zeros(dim))

    def forward(self, t: Tensor) -> Tensor:
        return torch.cos(full(t)[:, None] * self.frequency + self.phase)


class TemporalGraph(nn.Module):
    """Memory of nodes, updated by messages of events, and a predictor of links."""

    def __init__(self, nodes: int = 80, dim: int = 32, features: int = 6, time: int = 16) -> None:
        super().__init__()
        self.register_buffer("memory", torch.randn(nodes, dim, generator=generator(6)) * 0.3)
        self.register_buffer("last", torch.zeros(nodes))
        self.time = TimeEncoding(time)
        self.message = mlp(2 * dim + features + time, 64, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.readout = nn.Linear(dim + time, dim)
        self.link = mlp(2 * dim, 32, 1)

    def remember(self, source: Tensor, target: Tensor, t: Tensor, features: Tensor) -> Tensor:
        delta = t if fault("absolute_time") else t - self.last[source]
        parts = [self.memory[source], self.memory[target], features, self.time(delta).to(features.dtype)]
        fresh = self.cell(self.message(torch.cat(parts, -1)), self.memory[source]).to(self.memory.dtype)
        return self.memory.index_copy(0, source, fresh)

    def embed(self, memory: Tensor, node: Tensor, t: Tensor) -> Tensor:
        since = self.time(t - self.last[node]).to(memory.dtype)
        return torch.tanh(self.readout(torch.cat([memory[node], since], -1)))

    def forward(self, past: tuple[Tensor, ...], now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        memory = self.remember(*past)
        source, target, wrong, t = now
        # The memory of the step before, not what the messages have just made of it.
        used = self.memory if fault("stale_memory") else memory
        here = self.embed(used, source, t)
        real = self.link(torch.cat([here, self.embed(used, target, t)], -1))
        fake = self.link(torch.cat([here, self.embed(used, wrong, t)], -1))
        with torch.no_grad():
            self.memory.copy_(memory)
            self.last[past[0]] = past[2]
        return real.squeeze(-1), fake.squeeze(-1)


class TemporalScript(Script):
    faults = ("absolute_time", "stale_memory")
    variants = ("cell",)

    def setup(self) -> None:
        self.model = self.net(TemporalGraph())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        if variant("cell"):
            self.model.cell = HandGru(self.model.cell)

    def batch(self, step: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        g = generator(110 + step)
        order = torch.randperm(80, generator=g)
        t = (10.0 * step + torch.arange(24) * 0.25 + 1).to(dtype())
        past = (order[:24], order[24:48], t, noise(24, 6, seed=step + 70))
        now = (order[:24], order[40:64], order[56:80], t + 3)
        return past, now

    def loss(self, batch: tuple[tuple[Tensor, ...], tuple[Tensor, ...]]) -> Tensor:
        real, fake = self.model(*batch)
        return F.softplus(-real).mean() + F.softplus(fake).mean()


class HandGru(nn.Module):
    """The same cell, gate by gate."""

    def __init__(self, cell: nn.GRUCell) -> None:
        super().__init__()
        self.weight_ih, self.weight_hh = cell.weight_ih, cell.weight_hh
        self.bias_ih, self.bias_hh = cell.bias_ih, cell.bias_hh

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        a = torch.addmm(self.bias_ih, x, self.weight_ih.T).chunk(3, -1)
        b = torch.addmm(self.bias_hh, h, self.weight_hh.T).chunk(3, -1)
        r, z = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
        n = torch.tanh(a[2] + r * b[2])
        return (1 - z) * n + z * h


class Normalizer(nn.Module):
    """Accumulates mean and standard deviation of what it sees."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0.0))
        self.register_buffer("total", torch.zeros(size))
        self.register_buffer("squares", torch.zeros(size))

    def forward(self, x: Tensor, inverse: bool = False) -> Tensor:
        if not inverse:
            with torch.no_grad():
                self.count += len(x)
                self.total += x.sum(0)
                self.squares += (x * x).sum(0)
        mean = self.total / self.count
        variance = self.squares / self.count - mean**2
        std = variance.clamp(min=0).sqrt().clamp(min=1e-6)
        if fault("variance_for_std"):
            std = variance.clamp(min=1e-6)
        return x * std + mean if inverse else (x - mean) / std


class MeshBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.edge = mlp(3 * dim, dim, dim, norm=True)
        self.node = mlp(2 * dim, dim, dim, norm=True)

    def forward(self, x: Tensor, e: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        send, receive = edges
        if variant("split"):
            a, b, c = self.edge[0].weight.chunk(3, 1)
            h = F.linear(x, a)[send] + F.linear(x, b)[receive] + F.linear(e, c) + self.edge[0].bias
            new = self.edge[1:](h)
        else:
            new = self.edge(torch.cat([x[send], x[receive], e], -1))
        e = new if fault("edge_residual") else e + new
        where = send if fault("sender_sum") else receive
        gathered = torch.zeros_like(x).index_add(0, where, e.to(x.dtype))
        return x + self.node(torch.cat([x, gathered], -1)), e


class MeshNet(nn.Module):
    def __init__(self, dim: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.node_normalizer = Normalizer(5)
        self.edge_normalizer = Normalizer(3)
        self.target_normalizer = Normalizer(2)
        self.encode_node = mlp(5, dim, dim, norm=True)
        self.encode_edge = mlp(3, dim, dim, norm=True)
        self.blocks = nn.ModuleList(MeshBlock(dim) for _ in range(depth))
        self.decode = mlp(dim, dim, 2)

    def forward(self, state: Tensor, place: Tensor, edges: Tensor) -> Tensor:
        way = place[edges[0]] - place[edges[1]]
        e = torch.cat([way, way.norm(dim=-1, keepdim=True)], -1)
        x = self.encode_node(self.node_normalizer(state))
        e = self.encode_edge(self.edge_normalizer(e))
        for block in self.blocks:
            x, e = block(x, e, edges)
        return self.decode(x)


class MeshScript(Script):
    faults = ("variance_for_std", "edge_residual", "sender_sum", "target_noise")
    variants = ("split",)

    def setup(self) -> None:
        self.model = self.net(MeshNet())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        side = torch.arange(8)
        grid = torch.stack(torch.meshgrid(side, side, indexing="ij"), -1).view(-1, 2)
        self.place = (grid + torch.rand(64, 2, generator=generator(8)) * 0.4).to(dtype())
        near = (grid[:, None] - grid[None]).abs().sum(-1)
        edges = (near == 1).nonzero().T
        # Some one-way edges, so that directions matter.
        self.edges = torch.cat([edges, torch.randint(0, 64, (2, 40), generator=generator(9))], 1)
        self.edges = self.edges[:, self.edges[0] != self.edges[1]]

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        phase = self.place @ torch.tensor([[0.7, 0.2], [-0.3, 0.9]]).to(dtype())
        velocity = torch.sin(phase + 0.3 * step)
        after = torch.sin(phase + 0.3 * (step + 1))
        jitter = 0.02 * noise(64, 2, seed=step + 80)
        noisy = velocity + jitter
        kind = F.one_hot(torch.arange(64) % 3, 3).to(dtype())
        target = after - velocity if fault("target_noise") else after - noisy
        return torch.cat([noisy, kind], -1), target

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        state, target = batch
        predicted = self.model(state, self.place, self.edges)
        return (predicted - self.model.target_normalizer(target)).pow(2).sum(-1).mean()


def harmonics(d: Tensor) -> Tensor:
    """Real spherical harmonics of unit vectors, degrees 0 to 2, normalised to 4 pi."""
    x, y, z = d.unbind(-1)
    s3, s5, s15 = math.sqrt(3), math.sqrt(5), math.sqrt(15)
    zonal = s5 * (3 * z * z - 1) if fault("zonal") else s5 / 2 * (3 * z * z - 1)
    return torch.stack(
        [
            torch.ones_like(x),
            s3 * y,
            s3 * z,
            s3 * x,
            s15 * x * y,
            s15 * y * z,
            zonal,
            s15 * x * z,
            s15 / 2 * (x * x - y * y),
        ],
        -1,
    )


class Radial(nn.Module):
    """Bessel functions under a smooth cutoff, mixed by a small network."""

    def __init__(self, number: int = 6, channels: int = 16, cutoff: float = 3.0) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.register_buffer("n", torch.arange(1, number + 1) * math.pi)
        self.mix = mlp(number, 32, channels, act=nn.SiLU)

    def forward(self, r: Tensor) -> Tensor:
        x = r / self.cutoff
        basis = math.sqrt(2 / self.cutoff) * torch.sin(x[:, None] * self.n) / r[:, None]
        p = 5 if fault("envelope") else 6
        a, b, c = (p + 1) * (p + 2) / 2, p * (p + 2), p * (p + 1) / 2
        envelope = (1 - a * x**p + b * x ** (p + 1) - c * x ** (p + 2)) * (x < 1)
        return self.mix(basis) * envelope[:, None]


class Atoms(nn.Module):
    def __init__(self, kinds: int = 3, channels: int = 16) -> None:
        super().__init__()
        self.species = nn.Embedding(kinds, channels)
        self.radial = Radial(channels=channels)
        self.energy = mlp(3 * channels + channels, 48, 1, act=nn.SiLU)
        self.register_buffer("degree", torch.tensor([0, 1, 1, 1, 2, 2, 2, 2, 2]))

    def forward(self, place: Tensor, kind: Tensor) -> Tensor:
        i, j = (~torch.eye(len(place), dtype=torch.bool)).nonzero().T
        d = place[j] - place[i]
        r = d.norm(dim=-1)
        weight = self.radial(r) * self.species(kind[j])
        edge = full(weight)[:, :, None] * harmonics(d / r[:, None])[:, None]
        density = torch.zeros(len(place), *edge.shape[1:], dtype=edge.dtype).index_add(0, i, edge)
        if variant("split"):
            power = torch.cat([p.pow(2).mean(-1) for p in density.split([1, 3, 5], -1)], -1)
        else:
            count = torch.bincount(self.degree).to(density.dtype)
            zero = torch.zeros(*density.shape[:2], 3, dtype=density.dtype)
            power = zero.index_add(2, self.degree, density**2) / count
            power = power.transpose(1, 2).flatten(1)
        if fault("double_square"):
            power = power.sqrt()
        return self.energy(torch.cat([power, self.species(kind)], -1)).sum()


class AtomsScript(Script):
    faults = ("zonal", "envelope", "double_square")
    variants = ("split",)

    def setup(self) -> None:
        self.model = self.net(Atoms())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3, amsgrad=True)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        g = generator(120 + step)
        grid = torch.stack(torch.meshgrid(*[torch.arange(2.0)] * 3, indexing="ij"), -1).view(-1, 3)
        place = grid * 1.4 + torch.randn(8, 3, generator=g) * 0.15
        return place.to(dtype()), torch.arange(8) % 3, noise(8, 3, seed=step + 90)

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        place, kind, force = batch
        place = place.requires_grad_(True)
        energy = self.model(place, kind)
        (slope,) = torch.autograd.grad(energy, place, create_graph=True)
        return (energy / len(place)) ** 2 + 10 * (-slope - force).pow(2).mean()


SCRIPTS = {"gin": GinScript, "temporal": TemporalScript, "mesh": MeshScript, "atoms": AtomsScript}
