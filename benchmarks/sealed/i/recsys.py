"""Recommenders: wide and deep with FTRL, two towers, SASRec, LightGCN."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from common import OPTIONS, Script, dtype, fault, generator, mlp, noise, variant
from torch import Tensor, nn


class Ftrl(torch.optim.Optimizer):
    """FTRL-proximal, as used for the wide part."""

    def __init__(self, params: Any, lr: float = 0.1, l1: float = 1e-4, l2: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr, "l1": l1, "l2": l2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            lr = group["lr"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["n"] = torch.full_like(p, 0.1)
                    state["z"] = -p * (0.1**0.5 / lr + group["l2"])
                n, z, g = state["n"], state["z"], p.grad
                sigma = ((n + g * g).sqrt() - n.sqrt()) / lr
                z += g - sigma * p
                n += g * g
                shrunk = z.sign() * (z.abs() - group["l1"]).clamp(min=0)
                p.copy_(-shrunk / (n.sqrt() / lr + group["l2"]))


class WideDeep(nn.Module):
    def __init__(self, crosses: int = 400, ids: int = 120, fields: int = 6, dim: int = 12, dense: int = 8) -> None:
        super().__init__()
        self.wide = nn.EmbeddingBag(crosses, 1, mode="sum")
        self.bias = nn.Parameter(torch.zeros(1))
        self.embed = nn.Embedding(ids, dim)
        self.deep = mlp(fields * dim + dense, 96, 48, 1)

    def forward(self, crosses: Tensor, ids: Tensor, dense: Tensor) -> Tensor:
        wide = F.embedding(crosses, self.wide.weight).sum(1) if variant("gather") else self.wide(crosses)
        deep = self.deep(torch.cat([self.embed(ids).flatten(1), dense], -1))
        return (wide + deep + self.bias).squeeze(-1)


class WideDeepScript(Script):
    faults = ("wide_bias", "dense_stats")
    variants = ("gather", "logsigmoid")

    def setup(self) -> None:
        self.model = self.net(WideDeep())
        model = self.model
        wide = [model.wide.weight] if fault("wide_bias") else [model.wide.weight, model.bias]
        self.ftrl = Ftrl(wide)
        deep = [*model.embed.parameters(), *model.deep.parameters()]
        self.deep = torch.optim.Adagrad(deep, lr=0.01, initial_accumulator_value=0.1)
        g = generator(1)
        self.mean = torch.linspace(-2, 3, 8)
        self.std = torch.linspace(0.5, 2.5, 8)
        self.table = torch.randn(512, 8, generator=g) * self.std + self.mean

    def batch(self, step: int) -> tuple[Tensor, ...]:
        g = generator(10 + step)
        rows = torch.randint(0, 512, (64,), generator=g)
        dense = self.table[rows]
        if fault("dense_stats"):
            dense = (dense - self.table[rows].mean(0)) / self.table[rows].std(0)
        else:
            dense = (dense - self.table.mean(0)) / self.table.std(0)
        crosses = torch.randint(0, 400, (64, 5), generator=g)
        ids = torch.randint(0, 20, (64, 6), generator=g) + torch.arange(6) * 20
        label = (dense[:, 0] + dense[:, 1] > 0).float()
        return crosses, ids, dense.to(dtype()), label.to(dtype())

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        *inputs, label = batch
        logit = self.model(*inputs)
        if variant("logsigmoid"):
            return -(label * F.logsigmoid(logit) + (1 - label) * F.logsigmoid(-logit)).mean()
        return F.binary_cross_entropy_with_logits(logit, label)

    def run(self) -> None:
        for step in range(OPTIONS.steps):
            batch = self.batch(step)
            with self.autocast():
                loss = self.loss(batch)
            self.update(loss, self.ftrl, self.deep)
            self.report(step, loss)


class Tower(nn.Module):
    def __init__(self, ids: int, features: int, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(ids, dim)
        self.layers = mlp(dim + features, 64, 48)

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        return F.normalize(self.layers(torch.cat([self.embed(ids), features], -1)), dim=-1)


class TwoTower(nn.Module):
    """Retrieval with in-batch negatives, corrected for how often items are drawn."""

    def __init__(self, users: int = 200, items: int = 100) -> None:
        super().__init__()
        self.user = Tower(users, 6)
        self.item = Tower(items, 10)
        self.temperature = 0.1
        self.register_buffer("frequency", torch.rand(items, generator=generator(3)) * 0.02 + 1e-3)

    def forward(self, user: tuple[Tensor, Tensor], item: tuple[Tensor, Tensor]) -> Tensor:
        u, v = self.user(*user), self.item(*item)
        scores = torch.einsum("id,jd->ij", u, v) if variant("einsum") else u @ v.T
        scores = scores / self.temperature
        correction = self.frequency[item[0]].log()
        scores = scores + correction if fault("logq_sign") else scores - correction
        same = (item[0][:, None] == item[0][None]) & ~torch.eye(len(u), dtype=torch.bool)
        if fault("duplicates"):
            return scores
        return scores.masked_fill(same, -1e4)


class TwoTowerScript(Script):
    faults = ("logq_sign", "duplicates")
    variants = ("einsum", "nll", "accelerate")

    def setup(self) -> None:
        self.model = self.net(TwoTower())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3, weight_decay=0.01)
        if variant("accelerate"):
            from accelerate import Accelerator

            self.accelerator = Accelerator(cpu=True)
            self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)

    def batch(self, step: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        g = generator(20 + step)
        users = torch.randint(0, 200, (48,), generator=g)
        items = torch.randint(0, 100, (48,), generator=g)
        return (users, noise(48, 6, seed=step + 50)), (items, noise(48, 10, seed=step + 60))

    def loss(self, batch: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        scores = self.model(*batch)
        target = torch.arange(len(scores))
        if variant("nll"):
            return F.nll_loss(F.log_softmax(scores, -1), target)
        return F.cross_entropy(scores, target)

    def update(self, loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
        if not variant("accelerate"):
            return super().update(loss, *optimizers)
        self.optimizer.zero_grad()
        self.accelerator.backward(loss)
        self.optimizer.step()
        return None


class SasBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, eps=1e-8)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=1e-8)
        self.conv1 = nn.Conv1d(dim, dim, 1)
        self.conv2 = nn.Conv1d(dim, dim, 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n, dim = q.shape[-2:]
        if variant("sdpa"):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mask = torch.ones(n, n, dtype=torch.bool).triu(2 if fault("future") else 1)
        scores = q @ k.transpose(-1, -2) / dim**0.5
        return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        b, n, d = x.shape
        h = self.norm1(x)
        # As in the paper's code, only the query is normalised.
        q, k, v = (
            f(y).view(b, n, self.heads, -1).transpose(1, 2)
            for f, y in ((self.query, h), (self.key, x), (self.value, x))
        )
        x = h + self.attend(q, k, v).transpose(1, 2).reshape(b, n, d)
        h = self.norm2(x)
        y = self.conv2(F.relu(self.conv1(h.transpose(1, 2)))).transpose(1, 2)
        x = y if fault("ffn_residual") else y + h
        return x.masked_fill(padding[..., None], 0.0)


class SasRec(nn.Module):
    def __init__(self, items: int = 150, dim: int = 32, length: int = 24) -> None:
        super().__init__()
        self.items = nn.Embedding(items + 1, dim, padding_idx=0)
        self.positions = nn.Embedding(length + 1, dim, padding_idx=0)
        self.blocks = nn.ModuleList(SasBlock(dim, 2) for _ in range(2))
        self.norm = nn.LayerNorm(dim, eps=1e-8)

    def forward(self, seq: Tensor) -> Tensor:
        padding = seq == 0
        start = 0 if fault("position_start") else 1
        place = torch.arange(start, seq.shape[1] + start).expand_as(seq).masked_fill(padding, 0)
        x = self.items(seq) * self.items.embedding_dim**0.5 + self.positions(place)
        for block in self.blocks:
            x = block(x, padding)
        return self.norm(x)


class SasRecScript(Script):
    faults = ("future", "ffn_residual", "position_start")
    variants = ("sdpa", "permute")

    def setup(self) -> None:
        self.model = self.net(SasRec())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, betas=(0.9, 0.98))

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        g = generator(30 + step)
        seq = torch.randint(1, 151, (16, 25), generator=g)
        for row in range(16):
            seq[row, : row // 2] = 0
        negative = torch.randint(1, 151, (16, 24), generator=g)
        if variant("permute"):
            order = torch.randperm(16, generator=generator(99))
            seq, negative = seq[order], negative[order]
        return seq[:, :-1], seq[:, 1:], negative

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        seq, positive, negative = batch
        h = self.model(seq)
        up = (h * self.model.items(positive)).sum(-1)
        down = (h * self.model.items(negative)).sum(-1)
        real = positive != 0
        return (F.softplus(-up) + F.softplus(down))[real].mean()


class LightGcn(nn.Module):
    def __init__(self, users: int = 60, items: int = 90, dim: int = 24, layers: int = 3) -> None:
        super().__init__()
        self.users, self.layers = users, layers
        self.table = nn.Embedding(users + items, dim)
        nn.init.normal_(self.table.weight, std=0.1)
        g = generator(5)
        u = torch.randint(0, users, (500,), generator=g)
        i = torch.randint(0, items, (500,), generator=g) + users
        adjacency = torch.zeros(users + items, users + items)
        adjacency[u, i] = adjacency[i, u] = 1.0
        degree = adjacency.sum(1).clamp(min=1)
        if fault("row_norm"):
            adjacency = adjacency / degree[:, None]
        else:
            adjacency = degree[:, None].rsqrt() * adjacency * degree[None].rsqrt()
        self.register_buffer("adjacency", adjacency, persistent=False)

    def propagate(self, x: Tensor) -> Tensor:
        if variant("scatter"):
            row, col = self.adjacency.nonzero().T
            return torch.zeros_like(x).index_add(0, row, x[col] * self.adjacency[row, col, None])
        return self.adjacency @ x

    def forward(self) -> Tensor:
        layers = [self.table.weight]
        for _ in range(self.layers):
            layers.append(self.propagate(layers[-1]))
        if fault("layer_mean"):
            return torch.stack(layers[1:]).mean(0)
        return torch.stack([x.to(layers[0].dtype) for x in layers]).mean(0)


class LightGcnScript(Script):
    faults = ("row_norm", "layer_mean")
    variants = ("scatter", "softplus")

    def setup(self) -> None:
        self.model = self.net(LightGcn())
        self.optimizer = torch.optim.NAdam(self.model.parameters(), lr=5e-3)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        g = generator(40 + step)
        user, up, down = (torch.randint(0, n, (128,), generator=g) for n in (60, 90, 90))
        return user, up + 60, down + 60

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        user, up, down = batch
        final = self.model()
        difference = (final[user] * (final[up] - final[down])).sum(-1)
        rank = F.softplus(-difference).mean() if variant("softplus") else -F.logsigmoid(difference).mean()
        first = self.model.table(torch.cat(batch))
        return rank + 1e-3 * first.pow(2).sum() / len(user)


SCRIPTS = {
    "widedeep": WideDeepScript,
    "twotower": TwoTowerScript,
    "sasrec": SasRecScript,
    "lightgcn": LightGcnScript,
}
