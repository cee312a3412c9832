"""Graphs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from common import Script, script
from torch import Tensor, nn
from torch_geometric.utils import add_self_loops, degree, negative_sampling, to_torch_coo_tensor


class Graphs(Script):
    nodes, width, kinds = 40, 16, 5

    def edges(self, many: int = 120) -> Tensor:
        """Directed, none twice, some nodes with many, as a preferential attachment gives."""
        ends = torch.rand(2, 2 * many, generator=self.random)
        edges = torch.stack([(ends[0] * self.nodes).long(), (ends[1] ** 2 * self.nodes).long()])
        return edges[:, edges[0] != edges[1]].unique(dim=1)[:, :many]

    def labelled(self) -> tuple[Tensor, Tensor]:
        x = self.normal(self.nodes, self.width)
        return x, (3 * self.wide(x[:, 0]) + 2.5).long().clamp(0, self.kinds - 1)


@script("gatv2")
class Attended(Graphs):
    """Edges have three numbers of their own; those of a node to itself get their mean."""

    faults = ("loops_of_zero", "slope")

    def build(self) -> None:
        fill = 0.0 if self.has("loops_of_zero") else "mean"
        slope = 0.15 if self.has("slope") else 0.2
        self.net = gnn.Sequential(
            "x, edges, e",
            [
                (gnn.GATv2Conv(16, 8, 4, edge_dim=3, fill_value=fill, negative_slope=slope), "x, edges, e -> x"),
                nn.ELU(),
                (gnn.GATv2Conv(32, 5, 2, concat=False, edge_dim=3, fill_value=fill), "x, edges, e -> x"),
            ],
        )
        self.net = self.add(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=5e-3, weight_decay=5e-4)

    def loss(self, number: int) -> Tensor:
        x, kinds = self.labelled()
        edges = self.edges()
        return F.cross_entropy(self.wide(self.net(x, edges, 2 + self.normal(edges.shape[1], 3))), kinds)


class Aggregates(nn.Module):
    def __init__(self, degrees: Tensor, together: bool) -> None:
        super().__init__()
        self.together = together
        ways = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification", "attenuation"]}
        self.embed = nn.Linear(16, 24)
        self.convs = nn.ModuleList(gnn.PNAConv(24, 24, deg=degrees, **ways, towers=2) for _ in range(2))
        self.norms = nn.ModuleList(gnn.GraphNorm(24) for _ in range(2))
        self.head = nn.Linear(24, 1)

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor, graphs: int) -> Tensor:
        x = self.embed(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + norm(conv(x, edges), *(() if self.together else (batch, graphs))).relu()
        return self.head(gnn.global_add_pool(x, batch, graphs)).squeeze(-1)


@script("pna")
class Principal(Graphs):
    """Four graphs, and a number of each."""

    faults = ("degrees_out", "normed_together")

    def build(self) -> None:
        edges = self.edges()
        ends = edges[0 if self.has("degrees_out") else 1]
        self.net = self.add(Aggregates(degree(ends, self.nodes).long().bincount(), self.has("normed_together")))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=2e-3)

    def loss(self, number: int) -> Tensor:
        x, edges = self.normal(self.nodes, self.width), self.edges()
        graph = torch.arange(self.nodes) // 10
        edges = edges[:, graph[edges[0]] == graph[edges[1]]]
        truth = torch.stack([self.wide(x)[graph == g, :3].sin().sum() for g in range(4)])
        return F.smooth_l1_loss(self.wide(self.net(x, edges, graph, 4)), truth)


class Coarse(nn.Module):
    """Nodes put into clusters, softly, twice as coarse each time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.ModuleList([gnn.DenseSAGEConv(16, 24), gnn.DenseSAGEConv(24, 24)])
        self.assign = nn.ModuleList([gnn.DenseGCNConv(16, 6), gnn.DenseGCNConv(24, 2)])
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor, adjacent: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        extra = x.new_zeros(())
        for embed, assign in zip(self.embed, self.assign, strict=True):
            x, adjacent, link, entropy = gnn.dense_diff_pool(
                embed(x, adjacent, mask).relu(), adjacent, assign(x, adjacent, mask), mask
            )
            extra, mask = extra + link + entropy, None
        return self.head(x.mean(1)), extra


@script("diffpool")
class Pooled(Graphs):
    faults = ("unmasked", "one_way")

    def build(self) -> None:
        self.net = self.add(Coarse())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=5e-3)

    def loss(self, number: int) -> Tensor:
        mask = torch.arange(12) < torch.tensor([12, 7, 9, 5, 10, 8])[:, None]
        adjacent = (torch.rand(6, 12, 12, generator=self.random) < 0.3).to(self.dtype)
        adjacent = adjacent * mask[:, None] * mask[:, :, None]
        if not self.has("one_way"):
            adjacent = torch.maximum(adjacent, adjacent.transpose(1, 2))
        x = self.normal(6, 12, 16) * mask[..., None]
        logits, extra = self.net(x, adjacent, None if self.has("unmasked") else mask)
        return F.cross_entropy(self.wide(logits), torch.arange(6) % 5) + 0.1 * self.wide(extra)


class Propagated(nn.Module):
    def __init__(self, back: float) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
        self.walk = gnn.APPNP(K=5, alpha=back)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.walk(self.body(x), edges)


@script("appnp")
class Walks(Graphs):
    """Answers walk along edges, and come back to where they began from time to time."""

    faults = ("back", "transposed")
    variants = ("sparse",)

    def build(self) -> None:
        self.net = self.add(Propagated(0.115 if self.has("back") else 0.1))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)

    def loss(self, number: int) -> Tensor:
        x, kinds = self.labelled()
        edges = self.edges()
        if self.has("transposed"):
            edges = edges.flip(0)
        if self.way("sparse"):
            edges = to_torch_coo_tensor(edges.flip(0), size=self.nodes).to(self.dtype)
        return F.cross_entropy(self.wide(self.net(x, edges)), kinds)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.mean, self.spread = (gnn.ChebConv(a, b, K=3) for a, b in ((16, 24), (24, 8), (24, 8)))

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x, edges).relu()
        return self.mean(hidden, edges), self.spread(hidden, edges)


@script("vgae")
class Links(Graphs):
    """Which links there are, out of places that nodes are given by chance."""

    faults = ("sum_of_nodes", "loops_as_links", "spread_as_variance")

    def build(self) -> None:
        self.net = self.add(gnn.VGAE(Encoder())).train()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-2)

    def loss(self, number: int) -> Tensor:
        x, _ = self.labelled()
        edges = self.edges()
        mean, spread = self.net.encoder(x, edges)
        spread = 0.5 * spread.clamp(max=5)
        size = (2 * spread).exp() if self.has("spread_as_variance") else spread.exp()
        places = mean + size * self.normal(*mean.shape)
        known = add_self_loops(edges, num_nodes=self.nodes)[0] if self.has("loops_as_links") else edges
        others = negative_sampling(edges, self.nodes, edges.shape[1])
        found = [self.net.decoder(self.wide(places), ends) for ends in (known, others)]
        fit = -(found[0] + 1e-6).log().mean() - (1 - found[1] + 1e-6).log().mean()
        apart = -0.5 * (1 + 2 * spread - mean.square() - (2 * spread).exp()).sum(-1).mean()
        return fit + self.wide(apart) * (1 if self.has("sum_of_nodes") else 1 / self.nodes)
