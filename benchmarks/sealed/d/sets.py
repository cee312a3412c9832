"""Sets and points: a set transformer, a dynamic graph network on point clouds, an ensemble under vmap."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from common import Options, integers, normal, show, spread
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

# --- Set transformer: induced attention, pooling by seeds, sets of different sizes ---


class Block(nn.Module):
    """Attention of one set to another, and a row-wise network behind it."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.rows = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.scale = 1 / math.sqrt(width // heads)
        self.fused = False

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.key(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        v = self.value(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        mask = None if mask is None else mask[:, None, None]
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)
        else:
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.scale
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            mixed = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(dim=-1), v)
        x = self.norm1(x + self.out(mixed.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.rows(x))


class Induced(nn.Module):
    def __init__(self, width: int, points: int) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, points, width) * 0.3)
        self.gather, self.scatter = Block(width), Block(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        summary = self.gather(self.points.expand(len(x), -1, -1), x, mask)
        return self.scatter(x, summary)


class SetTransformer(nn.Module):
    def __init__(self, width: int = 32, seeds: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.encoder = nn.ModuleList(Induced(width, 6) for _ in range(2))
        self.seeds = nn.Parameter(torch.randn(1, seeds, width) * 0.3)
        self.pool = Block(width)
        self.mix = Block(width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.encoder:
            x = layer(x, mask)
        x = self.pool(self.seeds.expand(len(x), -1, -1), x, mask)
        return self.head(self.mix(x, x).mean(dim=1))


def train_set_transformer(options: Options) -> None:
    torch.manual_seed(71)
    model = SetTransformer()
    spread(model, 0.03)
    for block in model.modules():
        if isinstance(block, Block):
            block.fused = options.variant == "sdpa"
    if options.fault == "scale":
        model.pool.scale = 1 / math.sqrt(32)
    options.place(model)
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    scaler = options.scaler()
    sizes = torch.tensor([20, 13, 7, 16, 9, 20])
    mask = torch.arange(20) < sizes[:, None]
    for step in range(options.steps):
        points, labels = options.cast(normal(1600 + step, 6, 20, 4)), integers(1610 + step, 5, 6)
        with options.autocast():
            loss = F.cross_entropy(model(points, mask), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        show(step, loss=loss)


# --- DGCNN: features of edges to the nearest points, graphs that follow the features ---


class EdgeConv(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, neighbours: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * fan_in, fan_out, bias=False)
        self.norm = nn.LayerNorm(fan_out)
        self.neighbours = neighbours
        self.slope = 0.2

    def nearest(self, x: Tensor) -> Tensor:
        x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        with torch.autocast("cpu", enabled=False):
            squares = x.square().sum(dim=-1)
            distances = squares[:, :, None] + squares[:, None] - 2 * x @ x.transpose(1, 2)
        return distances.topk(self.neighbours, largest=False).indices

    def forward(self, x: Tensor, graph: Tensor | None = None) -> Tensor:
        graph = self.nearest(x) if graph is None else graph
        rows = torch.arange(len(x))[:, None, None]
        others = x[rows, graph]
        centre = x.unsqueeze(2).expand_as(others)
        edges = torch.cat([others - centre, centre], dim=-1)
        return F.leaky_relu(self.norm(self.linear(edges)), self.slope).amax(dim=2)


class PointNetwork(nn.Module):
    def __init__(self, static: bool) -> None:
        super().__init__()
        self.static = static
        self.convs = nn.ModuleList(EdgeConv(a, b) for a, b in ((3, 24), (24, 32), (32, 48)))
        self.join = nn.Linear(24 + 32 + 48, 64)
        self.head = nn.Sequential(nn.Linear(128, 32), nn.LeakyReLU(0.2), nn.Linear(32, 6))

    def forward(self, points: Tensor) -> Tensor:
        graph = self.convs[0].nearest(points) if self.static else None
        x, parts = points, []
        for conv in self.convs:
            x = conv(x, graph)
            parts.append(x)
        x = F.leaky_relu(self.join(torch.cat(parts, dim=-1)), 0.2)
        return self.head(torch.cat([x.amax(dim=1), x.mean(dim=1)], dim=-1))


def train_dgcnn(options: Options) -> None:
    torch.manual_seed(72)
    model = PointNetwork(static=options.model == "dgcnn-static")
    if options.fault == "slope":
        model.convs[2].slope = 0.01
    options.place(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for step in range(options.steps):
        points, labels = options.cast(normal(1700 + step, 4, 48, 3)), integers(1710 + step, 6, 4)
        with options.autocast():
            loss = F.cross_entropy(model(points), labels, label_smoothing=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show(step, loss=loss)


# --- An ensemble of small networks, trained together under vmap ---


class Regressor(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, width), nn.SiLU(), nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU()
        )
        self.mean = nn.Linear(width, 1)
        self.spread = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        return self.mean(x).squeeze(-1), self.spread(x).squeeze(-1)


def train_ensemble(options: Options) -> None:
    torch.manual_seed(73)
    members = [options.place(Regressor()) for _ in range(5)]
    skeleton = members[0]
    parameters, buffers = stack_module_state(members)
    floor = 1e-3

    def loss_of(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        mean, raw = functional_call(skeleton, (weights, buffers), (x,))
        variance = (raw.exp() if options.fault == "variance" else F.softplus(raw)) + floor
        return 0.5 * (variance.log() + (y - mean).square() / variance).mean()

    optimizer = torch.optim.Adam(parameters.values(), lr=5e-3)
    for step in range(options.steps):
        x, y = options.cast(normal(1800 + step, 5, 24, 6)), options.cast(normal(1810 + step, 5, 24))
        with options.autocast():
            if options.variant == "loop":
                pairs = []
                for i in range(5):
                    pairs.append(grad_and_value(loss_of)({n: p[i].detach() for n, p in parameters.items()}, x[i], y[i]))
                slopes = {n: torch.stack([slope[n] for slope, _ in pairs]) for n in parameters}
                losses = torch.stack([value for _, value in pairs])
            else:
                weights = {n: p.detach() for n, p in parameters.items()}
                slopes, losses = vmap(grad_and_value(loss_of))(weights, x, y)
        for name, parameter in parameters.items():
            parameter.grad = slopes[name].to(parameter.dtype)
        optimizer.step()
        show(step, loss=losses.mean(), last=losses[-1])
