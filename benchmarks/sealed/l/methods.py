"""Ways to train, as they are written by hand."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from common import Script, script
from torch import Tensor, nn
from torch.nn import functional as F


class Glance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.conv2, self.norm2 = nn.Conv2d(12, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.leaky_relu(self.norm1(self.conv1(x)), 0.1), 2)
        x = F.leaky_relu(self.norm2(self.conv2(x)), 0.1)
        return self.head(x.mean((2, 3)))


@script("teacher")
class Teacher(Script):
    """A student agrees with the running mean of itself on pictures without labels."""

    faults = ("quick_mean", "mean_without_statistics", "odds")
    variants = ("lerp",)

    def build(self) -> None:
        net = Glance()
        self.teacher = copy.deepcopy(net).requires_grad_(False).eval()
        self.net = self.add(net)
        self.add(self.teacher)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        self.pictures, self.labels = self.normal(8, 3, 8, 8), self.integers(0, 5, 3)
        self.noise = 0.2 * self.normal(2, 8, 3, 8, 8)

    def loss(self, number: int) -> Tensor:
        answers = self.wide(self.net(self.pictures + self.noise[0]))
        with torch.no_grad():
            wanted = self.wide(self.teacher(self.pictures + self.noise[1]))
        agree = F.mse_loss(answers, wanted) if self.has("odds") else F.mse_loss(answers.softmax(1), wanted.softmax(1))
        return F.cross_entropy(answers[:3], self.labels) + (number + 1) * 2.0 * agree

    def step(self, number: int) -> float:
        value = super().step(number)
        rate = 0.5 if self.has("quick_mean") else 0.05
        with torch.no_grad():
            for old, new in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                if self.way("lerp"):
                    old.lerp_(new, rate)
                else:
                    old.copy_((1 - rate) * old + rate * new)
            if not self.has("mean_without_statistics"):
                for old, new in zip(self.teacher.buffers(), self.net.buffers(), strict=True):
                    old.copy_(new)
        return value


class Undone(torch.autograd.Function):
    """Blocks whose inputs are found again from their outputs."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Tensor, blocks: Any, wrong: str, *parameters: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        with torch.no_grad():
            for first, second in blocks:
                a = a + first(b)
                b = b + second(a)
        y = torch.cat([a, b], -1)
        ctx.save_for_backward(y)
        ctx.blocks, ctx.wrong, ctx.parameters = blocks, wrong, parameters
        return y

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b = ctx.saved_tensors[0].chunk(2, -1)
        da, db = grad.chunk(2, -1)
        found: dict[int, Tensor] = {}

        def learn(block: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                y = block(x)
            dx, *dw = torch.autograd.grad(y, [x, *block.parameters()], dy)
            found.update({id(p): d for p, d in zip(block.parameters(), dw, strict=True)})
            return y.detach(), dx

        for first, second in reversed(ctx.blocks):
            y, dx = learn(second, a, db)
            b = b if ctx.wrong == "not_undone" else b - y
            da = da if ctx.wrong == "path_lost" else da + dx
            y, dx = learn(first, b, da)
            a, db = a - y, db + dx
        return torch.cat([da, db], -1), None, None, *(found[id(p)] for p in ctx.parameters)


class Reversible(nn.Module):
    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.first, self.second = (nn.ModuleList(self.block() for _ in range(3)) for _ in range(2))

    @staticmethod
    def block() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))

    def forward(self, x: Tensor) -> Tensor:
        blocks = [*zip(self.first, self.second, strict=True)]
        if self.script.way("kept"):
            a, b = x.chunk(2, -1)
            for first, second in blocks:
                a = a + first(b)
                b = b + second(a)
            return torch.cat([a, b], -1)
        return Undone.apply(x, blocks, self.script.options.fault, *self.parameters())


class Deep(nn.Module):
    def __init__(self, script: Script) -> None:
        super().__init__()
        self.stem, self.body, self.last = nn.Linear(12, 32), Reversible(script), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self.stem(x)))


@script("reversible")
class ReversibleScript(Script):
    faults = ("not_undone", "path_lost")
    variants = ("kept",)

    def build(self) -> None:
        self.net = self.add(Deep(self))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=2e-3)
        self.x, self.labels = self.normal(12, 12), self.integers(0, 6, 12)

    def loss(self, number: int) -> Tensor:
        return F.cross_entropy(self.wide(self.net(self.x)), self.labels)


class Choice(nn.Module):
    """Several operations, of which the best is to be found."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.options = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.GroupNorm(2, 8)),
                nn.Sequential(nn.Conv2d(8, 8, 3, padding=2, dilation=2, bias=False), nn.GroupNorm(2, 8)),
                nn.AvgPool2d(3, 1, padding=1, count_include_pad=script.has("padding_in_mean")),
                nn.Identity(),
            ]
        )

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        made = [option(F.relu(x)) for option in self.options]
        if self.script.way("stacked"):
            return torch.einsum("o,obchw->bchw", weights.to(made[0].dtype), torch.stack(made))
        return sum(w * m for w, m in zip(weights, made, strict=True))


class Cellwise(nn.Module):
    def __init__(self, script: Script) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.cells = nn.ModuleList(Choice(script) for _ in range(2))
        self.out = nn.Linear(8, 5)
        self.design = nn.Parameter(0.1 * torch.randn(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for cell, weights in zip(self.cells, self.design.softmax(-1), strict=True):
            x = cell(x, weights)
        return self.out(x.mean((2, 3)))


@script("design")
class Design(Script):
    """Weights are learned from one half, the design from the other."""

    faults = ("padding_in_mean", "design_of_training", "left_over")
    variants = ("stacked",)

    def build(self) -> None:
        self.net = self.add(Cellwise(self))
        weights = [p for n, p in self.net.named_parameters() if n != "design"]
        self.optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=3e-4)
        self.architect = torch.optim.Adam([self.net.design], lr=0.01, betas=(0.5, 0.999), weight_decay=1e-3)
        self.pictures, self.labels = self.normal(2, 4, 3, 8, 8), self.integers(0, 5, 2, 4)

    def half(self, which: int) -> Tensor:
        with self.autocast():
            return F.cross_entropy(self.wide(self.net(self.pictures[which])), self.labels[which])

    def step(self, number: int) -> float:
        found = self.half(0 if self.has("design_of_training") else 1)
        self.scaler.scale(found).backward()
        self.scaler.step(self.architect)
        if not self.has("left_over"):
            self.net.zero_grad()
        learned = self.half(0)
        self.scaler.scale(learned).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.net.zero_grad()
        return float(learned.detach()) + float(found.detach())


class Curved(torch.optim.Optimizer):
    """Steps divided by a running mean of the squared diagonal of second derivatives."""

    def __init__(self, parameters: Any, wrong: Callable[[str], bool], lr: float = 0.02) -> None:
        super().__init__(parameters, {"lr": lr, "mean": 0.9, "square": 0.99, "eps": 1e-4})
        self.wrong = wrong

    @torch.no_grad()
    def step(self, curvature: list[Tensor]) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p, h in zip(group["params"], curvature, strict=True):
                state = self.state[p]
                if not state:
                    state.update(count=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
                state["count"] += 1
                if p.ndim == 2 and not self.wrong("no_average"):
                    h = h.abs().mean(1, keepdim=True).expand_as(p)
                state["mean"].mul_(group["mean"]).add_(p.grad, alpha=1 - group["mean"])
                state["square"].mul_(group["square"]).addcmul_(h, h, value=1 - group["square"])
                size = state["square"] / (1 - group["square"] ** state["count"])
                if self.wrong("no_correction"):
                    size = state["square"]
                mean = state["mean"] / (1 - group["mean"] ** state["count"])
                p.sub_(group["lr"] * mean / (size.sqrt() + group["eps"]))


@script("curved")
class CurvedScript(Script):
    faults = ("no_average", "no_correction", "same_sign")
    variants = ("dotted",)

    def build(self) -> None:
        self.net = self.add(nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1)))
        self.optimizer = Curved(self.net.parameters(), self.has)
        self.x, self.y = self.normal(20, 8), self.normal(20, 1)
        self.signs = [
            [2.0 * self.integers(0, 2, *p.shape).to(self.dtype) - 1 for p in self.net.parameters()] for _ in range(3)
        ]

    def step(self, number: int) -> float:
        with self.autocast():
            loss = F.mse_loss(self.wide(self.net(self.x)), self.wide(self.y))
        weights = [*self.net.parameters()]
        slopes = torch.autograd.grad(loss, weights, create_graph=True)
        signs = self.signs[number]
        if self.has("same_sign"):
            signs = [torch.ones_like(s) for s in signs]
        if self.way("dotted"):
            dot = sum((g * s).sum() for g, s in zip(slopes, signs, strict=True))
            turned = torch.autograd.grad(dot, weights)
        else:
            turned = torch.autograd.grad(slopes, weights, grad_outputs=signs)
        for weight, slope in zip(weights, slopes, strict=True):
            weight.grad = slope.detach()
        self.optimizer.step([s * t for s, t in zip(signs, turned, strict=True)])
        self.optimizer.zero_grad()
        return float(loss.detach())


class Arcs(nn.Module):
    """Which word each word depends on."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.words = nn.Embedding(60, 24)
        self.memory = nn.LSTM(24, 20, num_layers=2, bidirectional=True, batch_first=True)
        self.head, self.child = nn.Linear(40, 20), nn.Linear(40, 20)
        self.arc = nn.Parameter(0.3 * torch.randn(21, 20))

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.memory(self.words(ids))
        head, child = F.leaky_relu(self.head(states), 0.1), F.leaky_relu(self.child(states), 0.1)
        if self.script.has("swapped"):
            head, child = child, head
        one = torch.ones_like(child[..., :1])
        child = torch.cat([child, 0 * one if self.script.has("no_bias") else one], dim=-1)
        if self.script.way("einsum"):
            return torch.einsum("bci,ij,bhj->bch", child, self.arc.to(child.dtype), head)
        return child @ self.arc @ head.mT


@script("arcs")
class Parser(Script):
    faults = ("swapped", "no_bias", "padding_is_head")
    variants = ("einsum",)
    clip = 5.0

    def build(self) -> None:
        self.net = self.add(Arcs(self))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=4e-3, betas=(0.9, 0.9))
        self.lengths = torch.tensor([9, 7, 8])
        self.ids, self.heads = self.integers(1, 60, 3, 9), self.integers(0, 7, 3, 9)
        self.real = torch.arange(9) < self.lengths[:, None]

    def loss(self, number: int) -> Tensor:
        scores = self.wide(self.net(self.ids * self.real))
        if not self.has("padding_is_head"):
            scores = scores.masked_fill(~self.real[:, None], -1e4)
        return F.cross_entropy(scores[self.real], self.heads[self.real])


class Recurrent(nn.Module):
    """Weights between states are dropped, once for the whole text; rare words share classes."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.words = nn.Embedding(80, 24)
        self.memory = nn.LSTM(24, 24, batch_first=True)
        self.out = nn.AdaptiveLogSoftmaxWithLoss(24, 80, cutoffs=[20, 50], div_value=2.0)

    def forward(self, ids: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        whole = self.memory.weight_hh_l0
        dropped = whole * kept if self.script.has("unscaled_drop") else whole * kept / 0.7
        x = self.words(ids)
        changed = {"weight_hh_l0": dropped}
        states, _ = torch.func.functional_call(self.memory, changed, (x,))
        with torch.autocast("cpu", enabled=False):
            mass = self.out(self.script.wide(states).flatten(0, 1), ids.roll(-1, 1).flatten())
        return mass.loss, states


@script("dropped")
class DroppedWeights(Script):
    faults = ("unscaled_drop", "rough_changes")
    variants = ("foreach",)
    clip = 0.25

    def build(self) -> None:
        self.net = self.add(Recurrent(self))
        if self.precision == "bf16":
            self.net.out.float()
        self.optimizer = torch.optim.ASGD(self.net.parameters(), lr=0.5, foreach=self.way("foreach"))
        self.ids = self.integers(0, 80, 3, 12)
        self.kept = (torch.rand(96, 24, generator=self.random) > 0.3).to(self.dtype)

    def loss(self, number: int) -> Tensor:
        ids = self.ids[:, : 12 - 4 * (number % 2)]
        for group in self.optimizer.param_groups:
            group["lr"] = 0.5 * ids.shape[1] / 12
        loss, states = self.net(ids, self.kept)
        states = self.wide(states)
        change = states[:, 1:] - states[:, :-1]
        size = change.abs().mean() if self.has("rough_changes") else change.square().mean()
        return loss + 2 * states.square().mean() + size


@script("lasting")
class Lasting(Script):
    """A second task, without forgetting what mattered to the first."""

    faults = ("mean_gradient", "whole_penalty")
    variants = ("mapped",)

    def build(self) -> None:
        self.net = self.add(nn.Sequential(nn.Linear(10, 24), nn.Mish(), nn.Linear(24, 24), nn.Mish(), nn.Linear(24, 4)))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.x, self.labels = self.normal(2, 12, 10), self.integers(0, 4, 2, 12)
        self.anchor: list[Tensor] = []
        self.weight: list[Tensor] = []

    def one(self, weights: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(self.wide(torch.func.functional_call(self.net, weights, (x[None],))), label[None])

    def weigh(self) -> None:
        x, labels = self.x[0], self.labels[0]
        weights = {n: p.detach() for n, p in self.net.named_parameters()}
        if self.way("mapped"):
            slopes = torch.func.vmap(torch.func.grad(self.one), in_dims=(None, 0, 0))(weights, x, labels)
            self.weight = [s.square().mean(0) for s in slopes.values()]
            return
        self.weight = [torch.zeros_like(p) for p in self.net.parameters()]
        groups = [slice(0, 12)] if self.has("mean_gradient") else [slice(i, i + 1) for i in range(12)]
        for rows in groups:
            loss = F.cross_entropy(self.wide(self.net(x[rows])), labels[rows])
            for total, slope in zip(self.weight, torch.autograd.grad(loss, [*self.net.parameters()]), strict=True):
                total += slope.square() / len(groups)

    def loss(self, number: int) -> Tensor:
        if number == 0:
            return F.cross_entropy(self.wide(self.net(self.x[0])), self.labels[0])
        if number == 1:
            self.anchor = [p.detach().clone() for p in self.net.parameters()]
            with torch.autocast("cpu", enabled=False):
                self.weigh()
        loss = F.cross_entropy(self.wide(self.net(self.x[1])), self.labels[1])
        far = sum(
            (self.wide(w) * self.wide(p - a).square()).sum()
            for w, p, a in zip(self.weight, self.net.parameters(), self.anchor, strict=True)
        )
        return loss + (1000.0 if self.has("whole_penalty") else 500.0) * far


@script("packed")
class Packed(Script):
    """Activations of the middle are packed until they are needed again."""

    faults = ("packed_small", "late_activation")
    variants = ("kept",)

    def build(self) -> None:
        self.first = nn.Sequential(nn.Conv1d(6, 16, 3, padding=1), nn.Hardswish())
        self.middle = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(4, 16), nn.Conv1d(16, 16, 3, padding=1), nn.Hardswish()) for _ in range(3)
        )
        self.net = self.add(nn.ModuleDict({"first": self.first, "middle": self.middle, "last": nn.Linear(16, 5)}))
        self.optimizer = torch.optim.Rprop(self.net.parameters(), lr=1e-3)
        self.x, self.labels = self.normal(4, 6, 20), self.integers(0, 5, 4)

    def pack(self, kept: Tensor) -> tuple[Tensor, torch.dtype]:
        small = self.has("packed_small") and kept.is_floating_point() and kept.ndim == 3 and kept.numel() > 1000
        return (kept.to(torch.bfloat16) if small else kept.clone()), kept.dtype

    def loss(self, number: int) -> Tensor:
        x = self.net["first"](self.x)
        hooks: Any = contextlib.nullcontext()
        if not self.way("kept"):
            hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda packed: packed[0].to(packed[1]))
        with hooks:
            for block in self.net["middle"]:
                x = block(x + x.roll(1, -1)) if self.has("late_activation") else x + block(x)
        return F.cross_entropy(self.wide(self.net["last"](x.mean(-1))), self.labels)
