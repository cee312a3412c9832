"""Graphs, of torch_geometric."""

from __future__ import annotations

from typing import Any

import torch
from common import Script, script
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import DeepGraphInfomax, GMMConv, HGTConv, PointTransformerConv, global_mean_pool
from torch_geometric.nn.models import AttentiveFP

KINDS = (["author", "paper"], [("author", "writes", "paper"), ("paper", "by", "author"), ("paper", "cites", "paper")])


class Papers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.author, self.paper = nn.Linear(10, 32), nn.Linear(14, 32)
        self.convs = nn.ModuleList(HGTConv(32, 32, KINDS, heads=4) for _ in range(2))
        self.out = nn.Linear(32, 4)

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> Tensor:
        x = {"author": self.author(x["author"]).relu(), "paper": self.paper(x["paper"]).relu()}
        for conv in self.convs:
            x = conv(x, edges)
        return self.out(x["paper"])


@script("papers")
class Hgt(Script):
    faults = ("half_skip", "reversed_citations")

    def build(self) -> None:
        self.net = self.add(Papers())
        if self.has("half_skip"):
            for value in self.net.convs[1].skip.values():
                nn.init.zeros_(value)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=5e-3, weight_decay=1e-3)
        self.x = {"author": self.normal(12, 10), "paper": self.normal(20, 14)}
        writes = torch.stack([self.integers(0, 12, 40), self.integers(0, 20, 40)])
        cites = torch.stack([self.integers(0, 20, 50), self.integers(0, 20, 50)])
        self.edges = {KINDS[1][0]: writes, KINDS[1][1]: writes.flip(0), KINDS[1][2]: cites}
        if self.has("reversed_citations"):
            self.edges[KINDS[1][2]] = cites.flip(0)
        self.labels = self.integers(0, 4, 20)

    def loss(self, number: int) -> Tensor:
        return F.cross_entropy(self.wide(self.net(self.x, self.edges)), self.labels)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = GMMConv(9, 24, dim=1, kernel_size=4)
        self.conv2 = GMMConv(24, 24, dim=1, kernel_size=4)
        self.act = nn.PReLU(24)

    def forward(self, x: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
        return self.conv2(self.act(self.conv1(x, edges, weights)), edges, weights)


@script("infomax")
class Infomax(Script):
    """Nodes belong to the summary of their graph, shuffled ones do not."""

    faults = ("raw_summary", "shuffled_edges")
    variants = ("metrics",)

    def build(self) -> None:
        self.x, self.edges = self.normal(18, 9), self.integers(0, 18, 2, 60)
        self.weights = self.uniform(60, 1)
        self.order = torch.randperm(18, generator=self.random)
        net = DeepGraphInfomax(24, Encoder(), self.summary, self.corruption)
        nn.init.normal_(net.weight, std=0.3)
        self.net = self.add(net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-3)

    def summary(self, z: Tensor, *_: Tensor) -> Tensor:
        return z.mean(0) if self.has("raw_summary") else z.mean(0).sigmoid()

    def corruption(self, x: Tensor, edges: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        return (x, self.order[edges], weights) if self.has("shuffled_edges") else (x[self.order], edges, weights)

    def watch(self, number: int) -> None:
        """What is plotted: how the nodes lie, how sure the answers are, how large the weights."""
        self.net.eval()
        with torch.no_grad():
            kept, shuffled, summary = self.net(self.x, self.edges, self.weights)
            sure = self.net.discriminate(kept, summary).mean() - self.net.discriminate(shuffled, summary).mean()
            near = F.cosine_similarity(kept[:, None], kept[None], dim=-1).mean()
        size = sum(float(p.detach().square().sum()) for p in self.net.parameters())
        print(f"watched {number}: sure {float(sure):.4f}, near {float(near):.4f}, weights {size:.4f}")
        self.net.train()

    def loss(self, number: int) -> Tensor:
        if self.way("metrics"):
            self.watch(number)
        return self.net.loss(*self.net(self.x, self.edges, self.weights))


class Cloud(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(3, 24)
        self.blocks = nn.ModuleList(
            PointTransformerConv(24, 24, self.places(), nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 24)))
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(2))
        self.out = nn.Linear(24, 5)

    @staticmethod
    def places() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 24))

    def forward(self, points: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        x = self.lift(points)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = x + F.relu(norm(block(x, points, edges)))
        return self.out(global_mean_pool(x, batch))


@script("cloud")
class Points(Script):
    faults = ("opposite_places", "few_neighbours")
    variants = ("other_order",)

    def build(self) -> None:
        self.net = self.add(Cloud())
        if self.has("opposite_places"):
            lin = self.net.blocks[1].pos_nn
            lin[0].register_forward_pre_hook(lambda _, args: (-args[0],))
        self.optimizer = torch.optim.Adagrad(self.net.parameters(), lr=5e-3)
        self.points = self.normal(36, 3)
        self.batch = torch.arange(3).repeat_interleave(12)
        edges = []
        for cloud in range(3):
            points = self.points[cloud * 12 : cloud * 12 + 12].double()
            near = torch.cdist(points, points).topk(4 if self.has("few_neighbours") else 6, largest=False).indices
            here = torch.arange(12).repeat_interleave(near.shape[1])
            edges.append(torch.stack([near.flatten(), here]) + cloud * 12)
        self.edges = torch.cat(edges, dim=1)
        if self.way("other_order"):
            self.edges = self.edges.flip(1)
        self.labels = self.integers(0, 5, 3)

    def loss(self, number: int) -> Tensor:
        return F.cross_entropy(self.wide(self.net(self.points, self.edges, self.batch)), self.labels)


@script("fingerprint")
class Fingerprint(Script):
    faults = ("steep_slope", "one_reading")
    variants = ("accumulate",)

    def build(self) -> None:
        readings = 1 if self.has("one_reading") else 2
        self.net = self.add(AttentiveFP(10, 32, 1, edge_dim=5, num_layers=2, num_timesteps=readings))
        if self.has("steep_slope"):
            self.net.atom_convs[0].negative_slope = 0.05
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-3, weight_decay=1e-4)
        self.molecules = []
        for size in (7, 9, 6, 8):
            edges = self.integers(0, size, 2, size * 3)
            self.molecules.append((self.normal(size, 10), edges, self.normal(size * 3, 5)))
        self.wanted = self.normal(4, 1)

    def together(self, chosen: list[int]) -> tuple[Tensor, ...]:
        sizes = torch.tensor([len(self.molecules[i][0]) for i in chosen])
        starts = torch.cumsum(sizes, 0) - sizes
        x = torch.cat([self.molecules[i][0] for i in chosen])
        edges = torch.cat([self.molecules[i][1] + s for i, s in zip(chosen, starts, strict=True)], dim=1)
        attributes = torch.cat([self.molecules[i][2] for i in chosen])
        return x, edges, attributes, torch.arange(len(chosen)).repeat_interleave(sizes)

    def step(self, number: int) -> float:
        total = 0.0
        for chosen in [[0, 1], [2, 3]] if self.way("accumulate") else [[0, 1, 2, 3]]:
            with self.autocast():
                made = self.net(*self.together(chosen))
                loss = F.mse_loss(self.wide(made), self.wide(self.wanted[chosen]), reduction="sum") / 4
            self.scaler.scale(loss).backward()
            total += float(loss.detach())
        self.apply(self.optimizer)
        return total
