"""Tables of numbers and of facts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from common import Script, script
from torch import Tensor, nn


class Periodic(nn.Module):
    """Numbers as waves of learnt lengths, then a layer of their own each."""

    def __init__(self, columns: int, width: int, turn: float) -> None:
        super().__init__()
        self.turn = turn
        self.frequency = nn.Parameter(0.3 * torch.randn(columns, width))
        self.own = nn.Parameter(torch.randn(columns, 2 * width, width) / math.sqrt(width))

    def forward(self, x: Tensor) -> Tensor:
        angles = self.turn * self.frequency * x[..., None]
        waves = torch.cat([angles.cos(), angles.sin()], -1)
        return torch.einsum("bci,cio->bco", waves, self.own).relu()


@script("periodic")
class Numbers(Script):
    """Residual blocks upon waves of numbers; targets are made even by what is known of the training set."""

    faults = ("no_turn", "decayed_all")

    def build(self) -> None:
        turn = 1.0 if self.has("no_turn") else 2 * math.pi
        self.net = nn.Sequential(Periodic(6, 8, turn), nn.Flatten(), nn.Linear(48, 32), nn.SELU(), nn.Linear(32, 1))
        self.net = self.add(self.net)
        kept = [self.net[0].frequency]
        others = [p for p in self.net.parameters() if p is not kept[0]]
        decay = 0.5 if self.has("decayed_all") else 0.0
        groups = [{"params": kept, "weight_decay": decay}, {"params": others, "weight_decay": 0.5}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-2)

    def loss(self, number: int) -> Tensor:
        x = self.uniform(32, 6)
        truth = (6 * x[:, 0]).sin() + x[:, 1] * x[:, 2]
        return F.huber_loss(self.wide(self.net(x)).squeeze(-1), self.wide(truth))


class Turns(nn.Module):
    """Relations turn things, in as many planes as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.things = nn.Embedding(30, 32)
        self.turns = nn.Embedding(4, 16)
        nn.init.uniform_(self.things.weight, -0.3, 0.3)
        nn.init.uniform_(self.turns.weight, -math.pi, math.pi)

    def forward(self, head: Tensor, relation: Tensor, tail: Tensor, back: bool) -> Tensor:
        real, imaginary = self.things(head).chunk(2, -1)
        cos, sin = self.turns(relation).cos(), self.turns(relation).sin()
        sin = -sin if back else sin
        apart = torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], -1) - self.things(tail)
        return 6 - apart.unflatten(-1, (2, 16)).square().sum(-2).add(1e-9).sqrt().sum(-1)


@script("rotate")
class Knowledge(Script):
    """Facts and what is not known to be one; those that look true count more."""

    faults = ("weights_learn", "turned_back")

    def build(self) -> None:
        self.net = self.add(Turns())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-2)

    def loss(self, number: int) -> Tensor:
        head, relation = self.integers(0, 30, 16), self.integers(0, 4, 16)
        tail = (head * 3 + 7 * relation) % 30
        others = self.integers(0, 30, 16, 8)
        back = self.has("turned_back")
        true = self.wide(self.net(head, relation, tail, back))
        false = self.wide(self.net(head[:, None], relation[:, None], others, back))
        weights = false.softmax(-1)
        weights = weights if self.has("weights_learn") else weights.detach()
        return -(F.logsigmoid(true).mean() + (weights * F.logsigmoid(-false)).sum(-1).mean()) / 2
