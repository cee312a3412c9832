"""What is sold, read, watched, and for how long one stays: tables and recommendations by hand."""

from __future__ import annotations

import torch
from common import Script, script
from torch import Tensor, nn
from torch.nn import functional as F


class Interest(nn.Module):
    """What was bought before, weighed by the thing on offer."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.things = nn.Embedding(50, 16)
        self.weigh = nn.Sequential(nn.Linear(64, 24), nn.PReLU(), nn.Linear(24, 1))
        self.out = nn.Sequential(nn.Linear(48, 32), nn.PReLU(), nn.Linear(32, 1))

    def forward(self, bought: Tensor, lengths: Tensor, offer: Tensor) -> Tensor:
        past, new = self.things(bought), self.things(offer)
        beside = new[:, None].expand_as(past)
        told = torch.cat([past, beside, past - beside, past * beside], dim=-1)
        weights = self.weigh(told).squeeze(-1)
        real = torch.arange(bought.shape[1]) < lengths[:, None]
        if not self.script.has("padding_counts"):
            weights = weights.masked_fill(~real, 0.0)
        wanted = (weights[..., None] * past).sum(1) / lengths[:, None].to(past.dtype)
        return self.out(torch.cat([wanted, new, wanted * new], dim=-1)).squeeze(-1)


@script("interest")
class Interests(Script):
    faults = ("padding_counts", "soft_labels")

    def build(self) -> None:
        net = Interest(self)
        nn.init.normal_(net.things.weight, std=0.7)
        self.net = self.add(net)
        self.optimizer = torch.optim.Adagrad(self.net.parameters(), lr=0.02)
        self.lengths = torch.tensor([8, 7, 8, 6, 8, 7])
        self.bought = self.integers(0, 50, 6, 8)
        self.offers, self.labels = self.integers(0, 50, 6), self.integers(0, 2, 6)

    def loss(self, number: int) -> Tensor:
        answers = self.wide(self.net(self.bought, self.lengths, self.offers))
        labels = self.labels.to(answers.dtype)
        if self.has("soft_labels"):
            labels = labels * 0.9 + 0.05
        return F.binary_cross_entropy_with_logits(answers, labels)


class Tastes(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.people = nn.Embedding(20, 12, sparse=sparse)
        self.things = nn.Embedding(40, 12, sparse=sparse)
        self.liked = nn.Embedding(40, 1, sparse=sparse)

    def forward(self, person: Tensor, thing: Tensor) -> Tensor:
        return (self.people(person) * self.things(thing)).sum(-1) + self.liked(thing).squeeze(-1)


@script("tastes")
class Pairwise(Script):
    """What was watched ranks before what was not."""

    faults = ("next_thing", "others_detached", "decay_of_all")
    variants = ("sparse",)

    def build(self) -> None:
        self.net = self.add(Tastes(self.way("sparse")))
        self.optimizer = torch.optim.Adagrad(self.net.parameters(), lr=0.1)
        self.people, self.watched = self.integers(0, 20, 24), self.integers(0, 40, 24)
        self.others = self.integers(0, 39, 24)

    def loss(self, number: int) -> Tensor:
        others = self.others + 1 if self.has("next_thing") else self.others
        better, worse = self.net(self.people, self.watched), self.net(self.people, others)
        if self.has("others_detached"):
            worse = worse.detach()
        loss = -F.logsigmoid(self.wide(better - worse)).mean()
        if self.has("decay_of_all"):
            size = sum(p.square().sum() for p in self.net.parameters())
        else:
            told = self.net.people(self.people), self.net.things(self.watched), self.net.things(others)
            size = sum(self.wide(t).square().sum() for t in told)
        return loss + 0.01 * size / 24


class Shelf(nn.Module):
    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.drop = nn.Dropout(0.5)
        self.inner = nn.Sequential(nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 2 * 8))
        self.outer = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 48))

    def forward(self, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        if self.script.has("dropped_before"):
            x = F.normalize(self.drop(seen), dim=-1)
        else:
            x = self.drop(F.normalize(seen, dim=-1))
        mean, spread = self.inner(x).chunk(2, -1)
        spread = 0.3 * spread
        noisy = mean + torch.exp(spread if self.script.has("variance") else 0.5 * spread) * noise
        mean, spread = self.script.wide(mean), self.script.wide(spread)
        far = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(-1)
        return self.outer(noisy), far


@script("shelf")
class ShelfScript(Script):
    """Everything that somebody watched, from a few numbers; their cost grows slowly."""

    faults = ("dropped_before", "variance", "full_cost", "mean_of_things")

    def build(self) -> None:
        self.net = self.add(Shelf(self))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=3e-3)
        self.seen = (torch.rand(10, 48, generator=self.random) < 0.3).to(self.dtype)
        self.noise = self.normal(10, 8)

    def loss(self, number: int) -> Tensor:
        logits, far = self.net(self.seen, self.noise)
        chances = F.log_softmax(self.wide(logits), -1) * self.wide(self.seen)
        missed = -(chances.mean(-1) if self.has("mean_of_things") else chances.sum(-1)).mean()
        cost = 0.2 if self.has("full_cost") else min(0.2, 0.02 * (number + 1))
        return missed + cost * far.mean()


class Shapes(nn.Module):
    """A curve for each column, and their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.curves = nn.ModuleList(
            nn.Sequential(nn.Linear(1, 12), nn.ReLU(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 1)) for _ in range(7)
        )
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        parts = torch.cat([curve(x[:, i : i + 1]) for i, curve in enumerate(self.curves)], dim=-1)
        return parts.sum(-1) + self.bias, parts


class Grouped(nn.Module):
    """All curves at once, as a convolution in groups."""

    def __init__(self, like: Shapes) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for at, (a, b) in zip((0, 2, 4), ((1, 12), (12, 6), (6, 1)), strict=True):
            layer = nn.Conv1d(7 * a, 7 * b, 1, groups=7)
            layer.weight.data = torch.cat([curve[at].weight.data for curve in like.curves])[..., None].clone()
            layer.bias.data = torch.cat([curve[at].bias.data for curve in like.curves]).clone()
            layers += [layer, nn.ReLU()]
        self.all_curves = nn.Sequential(*layers[:-1])
        self.offset = like.bias

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.all_curves(x[..., None]).squeeze(-1)
        return parts.sum(-1) + self.offset, parts


@script("curves")
class Curves(Script):
    """An additive model of a table."""

    faults = ("penalty_of_sum", "unscaled_column", "high_rate")
    variants = ("grouped",)

    def build(self) -> None:
        net = Shapes()
        for parameter in net.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.6)
        self.net = self.add(Grouped(net) if self.way("grouped") else net)
        rate = 0.04 if self.has("high_rate") else 0.02
        self.optimizer = torch.optim.Adadelta(self.net.parameters(), lr=rate)
        table = torch.randn(20, 7, generator=self.random) * torch.tensor([1, 3, 0.5, 10, 1, 2, 1])
        self.x = ((table - table.mean(0)) / table.std(0)).to(self.dtype)
        if self.has("unscaled_column"):
            self.x[:, 2] = table[:, 2].to(self.dtype)
        self.wanted = self.normal(20)

    def loss(self, number: int) -> Tensor:
        made, parts = self.net(self.x)
        made, parts = self.wide(made), self.wide(parts)
        penalty = made.square().mean() if self.has("penalty_of_sum") else parts.square().mean()
        return F.mse_loss(made, self.wide(self.wanted)) + 0.1 * penalty


class Risk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(9, 24), nn.SELU(), nn.BatchNorm1d(24), nn.Linear(24, 24), nn.SELU(), nn.Linear(24, 1, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(-1)


@script("survival")
class Survival(Script):
    """Who leaves first, among those that are still there."""

    faults = ("shortest_first", "censored_count", "all_rows")
    variants = ("matrix", "shuffled")

    def build(self) -> None:
        self.net = self.add(Risk())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
        self.x, self.times = self.normal(24, 9), torch.rand(24, generator=self.random)
        self.left = torch.rand(24, generator=self.random) < 0.7
        if self.way("shuffled"):
            order = torch.randperm(24, generator=self.random)
            self.x, self.times, self.left = self.x[order], self.times[order], self.left[order]

    def loss(self, number: int) -> Tensor:
        risk = self.wide(self.net(self.x))
        if self.way("matrix"):
            there = self.times[None] >= self.times[:, None]
            total = torch.logsumexp(risk[None].expand(24, 24).masked_fill(~there, -torch.inf), dim=1)
            left = self.left
        else:
            order = torch.argsort(self.times, descending=not self.has("shortest_first"))
            risk, left = risk[order], self.left[order]
            total = torch.logcumsumexp(risk, 0)
        missed = risk - total
        if self.has("censored_count"):
            return -missed.mean()
        return -(missed * left).sum() / (24 if self.has("all_rows") else left.sum())
