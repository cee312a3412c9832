"""Recommenders and experts."""
import torch
import torch.nn.functional as F
from torch import nn

from common import autocast, build, cfg, fault, probe, rand, randint, randn, report, variant


def wide(tensor):
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class Bag(nn.Module):
    def __init__(self, rows, size, index):
        super().__init__()
        self.table, self.rows, self.index = nn.EmbeddingBag(rows, size, mode="mean"), rows, index
        nn.init.normal_(self.table.weight, std=0.5)

    def forward(self, ids, offsets):
        ids = ids.int() if self.index == 2 and fault("hash_overflow") else ids
        hashed = (ids * 2654435).bitwise_xor(ids >> 3).remainder(self.rows)
        probe(f"hashed.{self.index}", hashed)
        offsets = offsets.to(hashed.dtype)
        if variant("segments"):
            owner = torch.bucketize(torch.arange(len(ids)), offsets, right=True) - 1
            rows = self.table.weight[hashed]
            total = torch.zeros(len(offsets), rows.shape[1], dtype=rows.dtype).index_add_(0, owner, rows)
            return total / torch.bincount(owner, minlength=len(offsets)).to(rows.dtype)[:, None]
        return self.table(hashed, offsets)


class Interaction(nn.Module):
    def forward(self, dense, bags):
        t = torch.stack([dense, *(bag.to(dense.dtype) for bag in bags)], 1)
        dots = t @ t.transpose(1, 2)
        n = dots.shape[1]
        if fault("upper"):
            i, j = torch.triu_indices(n, n, 1)
        else:
            i, j = torch.tril_indices(n, n, -1)
        return torch.cat([dense, dots[:, i, j]], 1)


def dlrm():
    """Clicks: embedding bags, dot products, two networks."""
    class DLRM(nn.Module):
        def __init__(self, size=12):
            super().__init__()
            self.bottom = nn.Sequential(nn.Linear(7, 24), nn.ReLU(), nn.Linear(24, size), nn.ReLU())
            self.bags = nn.ModuleList(Bag(rows, size, k) for k, rows in enumerate((37, 53, 101, 29)))
            self.interaction = Interaction()
            self.top = nn.Sequential(nn.Linear(size + 10, 24), nn.ReLU(), nn.Linear(24, 1))

        def forward(self, dense, ids, offsets):
            bags = [bag(i, o) for bag, i, o in zip(self.bags, ids, offsets)]
            return self.top(self.interaction(self.bottom(dense), bags)).squeeze(1)

    net = build("net", DLRM, 1)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.02, eps=1e-8)
    for step in range(cfg.steps):
        dense = (rand(step, 32, 7) * 10).log1p()
        ids = [randint(100 * step + k, 100000, 96) for k in range(4)]
        offsets = [torch.arange(32) * 3] * 4
        clicks = (rand(20 + step, 32) < 0.3).to(cfg.dtype)
        optimizer.zero_grad()
        with autocast():
            logits = net(dense, ids, offsets)
        loss = F.binary_cross_entropy_with_logits(wide(logits), wide(clicks), pos_weight=torch.tensor(2.0).to(wide(clicks).dtype))
        loss.backward()
        optimizer.step()
        report(step, loss)


class Expert(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(size, hidden), nn.Linear(size, hidden), nn.Linear(hidden, size)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    def __init__(self, size, index, experts=4, top=2):
        super().__init__()
        self.router = nn.Linear(size, experts, bias=False)
        self.experts = nn.ModuleList(Expert(size, 2 * size) for _ in range(experts))
        self.top, self.index = top, index
        nn.init.normal_(self.router.weight, std=0.5)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            chances = F.softmax(F.linear(wide(x), wide(self.router.weight)), -1)
        weights, chosen = chances.topk(self.top, -1)
        probe("chosen", chosen)
        if not (self.index == 1 and fault("not_renormalised")):
            weights = weights / weights.sum(-1, keepdim=True)
        hot = F.one_hot(chosen, len(self.experts)).to(chances.dtype)
        if variant("dense"):
            every = torch.stack([wide(expert(x)) for expert in self.experts], 1)
            y = torch.einsum("nk,nke,ned->nd", weights, hot, every)
        else:
            y = torch.zeros_like(wide(x))
            for k, expert in enumerate(self.experts):
                token, slot = (chosen == k).nonzero(as_tuple=True)
                y.index_add_(0, token, wide(expert(x[token])) * weights[token, slot, None])
        balance = len(self.experts) * (hot.sum(1).mean(0) / self.top * chances.mean(0)).sum()
        return y.to(x.dtype), balance


class Block(nn.Module):
    def __init__(self, size, index):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.mix, self.moe = nn.Conv1d(size, size, 3, groups=size), Experts(size, index)

    def forward(self, x):
        x = x + self.mix(F.pad(self.norm1(x).transpose(1, 2), (2, 0))).transpose(1, 2)
        y, balance = self.moe(self.norm2(x).flatten(0, 1))
        return x + y.view_as(x), balance


def moe():
    """Experts by hand, two for each token, with a loss for balance."""
    class Model(nn.Module):
        def __init__(self, tokens=30, size=24):
            super().__init__()
            self.embed = nn.Embedding(tokens, size)
            self.blocks = nn.ModuleList(Block(size, k) for k in range(2))
            self.head = nn.Linear(size, tokens)

        def forward(self, x):
            x, total = self.embed(x), 0
            for block in self.blocks:
                x, balance = block(x)
                total = total + balance
            return self.head(x), total

    net = build("net", Model, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.95))
    for step in range(cfg.steps):
        text = randint(step, 30, 3, 13)
        optimizer.zero_grad()
        with autocast():
            logits, balance = net(text[:, :-1])
        loss = F.cross_entropy(wide(logits).flatten(0, 1), text[:, 1:].flatten()) + 0.05 * balance
        loss.backward()
        optimizer.step()
        report(step, loss)
