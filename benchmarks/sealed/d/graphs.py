"""Graphs: molecules with energies and forces, and relations between entities."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Options, generator, integers, normal, show, spread, uniform
from torch import Tensor, nn

# --- SchNet of torch_geometric: energies, and forces as their derivative ---


def neighbours(cutoff: float) -> nn.Module:
    class Neighbours(nn.Module):
        """All pairs of atoms of one molecule that are nearer than the cutoff."""

        def forward(self, positions: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
            near = (positions[:, None] - positions[None]).detach().float().norm(dim=-1) < cutoff
            near &= (batch[:, None] == batch[None]) & ~torch.eye(len(batch), dtype=torch.bool)
            edges = near.nonzero().T
            return edges, (positions[edges[0]] - positions[edges[1]]).norm(dim=-1)

    return Neighbours()


def build_schnet() -> nn.Module:
    from torch_geometric.nn import SchNet

    torch.manual_seed(31)
    model = SchNet(
        hidden_channels=48,
        num_filters=48,
        num_interactions=3,
        num_gaussians=20,
        cutoff=4.0,
        interaction_graph=neighbours(4.0),
    )
    spread(model, 0.02)
    return model


def molecules(options: Options, seed: int, count: int = 4, atoms: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    grid = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0), torch.arange(1.0)) * 1.5
    positions = (grid.repeat(count, 1) + 0.25 * normal(seed, count * atoms, 3)).reshape(-1, 3)
    kinds = torch.tensor([1, 6, 7, 8])[integers(seed + 1, 4, count * atoms)]
    return options.cast(positions), kinds, torch.arange(count).repeat_interleave(atoms)


def train_schnet(options: Options) -> None:
    model = options.place(build_schnet())
    if options.fault == "mean_messages":
        from torch_geometric.nn.aggr import MeanAggregation

        model.interactions[1].conv.aggr_module = MeanAggregation()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
    for step in range(options.steps):
        positions, kinds, batch = molecules(options, 900 + 10 * step)
        energies, forces = options.cast(normal(905 + 10 * step, 4)), options.cast(normal(906 + 10 * step, 36, 3))
        positions.requires_grad_(True)
        with options.autocast():
            energy = model(kinds, positions, batch).squeeze(-1)
            (slope,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
        energy_loss = F.mse_loss(energy.to(energies.dtype), energies)
        force_loss = F.mse_loss(-slope, forces)
        loss = 0.1 * energy_loss + force_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show(step, loss=loss, energy=energy_loss, force=force_loss)


# --- Relational graph convolution with a bilinear decoder: link prediction, validation on the side ---

ENTITIES, RELATIONS = 60, 4


class LinkPredictor(nn.Module):
    def __init__(self, width: int = 32, flipped: bool = False) -> None:
        super().__init__()
        from torch_geometric.nn import RGCNConv

        self.entities = nn.Embedding(ENTITIES, width)
        self.first = RGCNConv(width, width, 2 * RELATIONS)
        self.second = RGCNConv(width, width, 2 * RELATIONS, num_bases=3)
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.entities.weight, std=0.4)
        self.relations = nn.Parameter(torch.randn(RELATIONS, width) * 0.5)
        self.flipped = flipped

    def encode(self, edges: Tensor, kinds: Tensor) -> Tensor:
        x = self.entities.weight
        x = F.elu(self.first(x, edges, kinds))
        x = self.norm(x)
        return self.second(x, edges.flip(0) if self.flipped else edges, kinds)

    def forward(self, edges: Tensor, kinds: Tensor, triples: Tensor) -> Tensor:
        x = self.encode(edges, kinds)
        head, relation, tail = triples
        return (x[head] * self.relations[relation] * x[tail]).sum(dim=-1)


def knowledge(seed: int, count: int = 240) -> Tensor:
    """Head, relation and tail of every known fact."""
    return torch.stack(
        [integers(seed, ENTITIES, count), integers(seed + 1, RELATIONS, count), integers(seed + 2, ENTITIES, count)]
    )


def train_rgcn(options: Options) -> None:
    torch.manual_seed(32)
    model = LinkPredictor(flipped=options.fault == "flipped")
    if options.fault == "swapped_relations":
        with torch.no_grad():
            model.first.weight[[1, 2]] = model.first.weight[[2, 1]]
    options.place(model)
    facts = knowledge(950)
    edges = torch.cat([facts[[0, 2]], facts[[2, 0]]], dim=1)
    inverse = facts[1] + RELATIONS
    kinds = torch.cat([facts[1], inverse])
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    scaler = options.scaler()
    for step in range(options.steps):
        noise = generator(960 + step)
        wrong = facts.clone()
        wrong[2] = torch.randint(ENTITIES, (facts.shape[1],), generator=noise)
        triples = torch.cat([facts, wrong], dim=1)
        labels = torch.cat([torch.ones(facts.shape[1]), torch.zeros(facts.shape[1])])
        with options.autocast():
            scores = model(edges, kinds, triples)
        loss = F.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype))
        loss = loss + 1e-2 * model.relations.square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        show(step, loss=loss)
        if options.variant == "validation":
            model.eval()
            with torch.no_grad():
                ranks = (scores[: facts.shape[1], None] < scores[None, facts.shape[1] :]).sum(dim=1)
                held_out = model(edges, kinds, knowledge(990, 50))
            print(f"  rank {ranks.float().mean():.4g}  held out {held_out.float().mean():.6g}")
            model.train()


# --- A graph transformer of torch_geometric on molecules-like graphs: GINE layers beside attention ---


class GraphTransformer(nn.Module):
    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        from torch_geometric.nn import GINEConv, GPSConv

        self.nodes = nn.Embedding(8, width)
        self.edges = nn.Embedding(4, width)
        self.position = nn.Linear(6, width)
        self.layers = nn.ModuleList(
            GPSConv(
                width,
                GINEConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))),
                heads=4,
                norm="layer_norm",
            )
            for _ in range(depth)
        )
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, nodes: Tensor, walks: Tensor, edges: Tensor, kinds: Tensor, batch: Tensor) -> Tensor:
        from torch_geometric.nn import global_add_pool

        x = self.nodes(nodes) + self.position(walks)
        for layer in self.layers:
            x = layer(x, edges, batch, edge_attr=self.edges(kinds))
        return self.head(global_add_pool(x, batch)).squeeze(-1)


def train_gps(options: Options) -> None:
    torch.manual_seed(33)
    model = GraphTransformer()
    if options.fault == "unmasked":
        attention = model.layers[1].attn
        masked = attention.forward
        attention.forward = lambda q, k, v, key_padding_mask, **rest: masked(q, k, v, **rest)
    options.place(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sizes = torch.tensor([7, 12, 5, 9])
    batch = torch.arange(4).repeat_interleave(sizes)
    for step in range(options.steps):
        inside = batch[:, None] == batch[None]
        some = uniform(970 + step, len(batch), len(batch)) < 0.35
        edges = (inside & some).nonzero().T
        nodes, kinds = integers(971 + step, 8, len(batch)), integers(972 + step, 4, edges.shape[1])
        walks, wanted = options.cast(uniform(973 + step, len(batch), 6)), options.cast(normal(974 + step, 4))
        with options.autocast():
            predicted = model(nodes, walks, edges, kinds, batch)
            loss = F.l1_loss(predicted, wanted.to(predicted.dtype))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show(step, loss=loss)
