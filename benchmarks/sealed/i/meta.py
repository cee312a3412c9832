"""Few shots and tasks one after another: elastic weights, Reptile, prototypes."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from common import OPTIONS, Script, dtype, fault, generator, mlp, variant
from torch import Tensor, nn


class ElasticScript(Script):
    """A first task, the Fisher information of its weights, and a second task held by it."""

    faults = ("mean_fisher", "stale_anchor")
    variants = ("vector", "fused")

    def setup(self) -> None:
        self.model = self.net(mlp(16, 48, 48, 4))
        fused = True if variant("fused") else None
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, fused=fused)
        self.first = {k: p.detach().clone() for k, p in self.model.named_parameters()}

    def batch(self, step: int, task: int = 0) -> tuple[Tensor, Tensor]:
        g = generator(600 + step + 10 * task)
        x = torch.randn(32, 16, generator=g)
        return x.to(dtype()), x[:, 4 * task : 4 * task + 4].argmax(-1)

    def fisher(self) -> dict[str, Tensor]:
        total = {k: torch.zeros_like(p) for k, p in self.model.named_parameters()}
        x, y = self.batch(5)
        if fault("mean_fisher"):
            # Of the mean gradient, not of the gradient of each sample.
            self.model.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            return {k: p.grad.detach() ** 2 for k, p in self.model.named_parameters()}
        for i in range(16):
            self.model.zero_grad()
            with self.autocast():
                loss = F.cross_entropy(self.model(x[i : i + 1]), y[i : i + 1])
            loss.backward()
            for k, p in self.model.named_parameters():
                total[k] += p.grad.detach() ** 2 / 16
        return total

    def penalty(self, fisher: dict[str, Tensor], anchor: dict[str, Tensor]) -> Tensor:
        params = dict(self.model.named_parameters())
        if variant("vector"):
            flat = torch.cat([p.flatten() for p in params.values()])
            weight = torch.cat([fisher[k].flatten() for k in params])
            centre = torch.cat([anchor[k].flatten() for k in params])
            return (weight * (flat - centre) ** 2).sum()
        return sum((fisher[k] * (p - anchor[k]) ** 2).sum() for k, p in params.items())

    def run(self) -> None:
        step = 0
        for _ in range(OPTIONS.steps):
            x, y = self.batch(step)
            with self.autocast():
                loss = F.cross_entropy(self.model(x), y)
            self.update(loss, self.optimizer)
            self.report(step, loss)
            step += 1
        fisher = self.fisher()
        anchor = {k: p.detach().clone() for k, p in self.model.named_parameters()}
        if fault("stale_anchor"):
            anchor = self.first
        for i in range(OPTIONS.steps):
            x, y = self.batch(i, 1)
            with self.autocast():
                loss = F.cross_entropy(self.model(x), y) + 50 * self.penalty(fisher, anchor)
            self.update(loss, self.optimizer)
            self.report(step, loss)
            step += 1


class ReptileScript(Script):
    faults = ("alias", "inner_momentum")
    variants = ("gradient",)

    def setup(self) -> None:
        self.model = self.net(mlp(1, 48, 48, 1, act=nn.Tanh))
        self.outer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    def task(self, step: int, number: int) -> tuple[Tensor, Tensor]:
        g = generator(700 + 10 * step + number)
        amplitude, phase = torch.rand(2, generator=g)
        x = torch.rand(24, 1, generator=g) * 6 - 3
        y = (0.5 + 2 * amplitude) * torch.sin(x + 3 * phase)
        return x.to(dtype()), y.to(dtype())

    def run(self) -> None:
        for step in range(OPTIONS.steps):
            start = self.model.state_dict()
            if not fault("alias"):
                start = copy.deepcopy(start)
            shift = {k: torch.zeros_like(v) for k, v in start.items()}
            total = 0.0
            for number in range(3):
                self.model.load_state_dict(start)
                momentum = 0.5 if fault("inner_momentum") else 0.0
                inner = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=momentum)
                x, y = self.task(step, number)
                for _ in range(3):
                    with self.autocast():
                        loss = F.mse_loss(self.model(x), y)
                    self.update(loss, inner)
                total += float(loss) / 3
                for k, v in self.model.state_dict().items():
                    shift[k] += (v - start[k]) / 3
            self.model.load_state_dict(start)
            if variant("gradient"):
                for k, p in self.model.named_parameters():
                    p.grad = -shift[k]
                self.outer.step()
            else:
                with torch.no_grad():
                    for k, p in self.model.named_parameters():
                        p.add_(shift[k], alpha=0.5)
            self.report(step, total)


class ConvBlock(nn.Module):
    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, dim, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(dim)

    def forward(self, x: Tensor) -> Tensor:
        if variant("unfold"):
            columns = F.unfold(x, 3, padding=1)
            y = (self.conv.weight.flatten(1) @ columns).view(len(x), -1, *x.shape[2:])
        else:
            y = self.conv(x)
        return F.max_pool2d(F.relu(self.bn(y)), 2)


class ProtoScript(Script):
    faults = ("root_distance", "eval_query")
    variants = ("unfold", "cdist", "channels_last")

    def setup(self) -> None:
        self.model = self.net(nn.Sequential(ConvBlock(1, 16), ConvBlock(16, 16), ConvBlock(16, 24), nn.Flatten()))
        if variant("channels_last"):
            self.model = self.model.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        g = generator(620 + step)
        base = torch.randn(5, 1, 1, 20, 20, generator=g)
        shots = base + 0.8 * torch.randn(5, 7, 1, 20, 20, generator=g)
        return shots[:, :3].to(dtype()), shots[:, 3:].to(dtype())

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        support, query = batch
        known = self.model(support.flatten(0, 1))
        if fault("eval_query"):
            self.model.eval()
        asked = self.model(query.flatten(0, 1))
        self.model.train()
        centre = known.view(5, 3, -1).mean(1)
        if fault("root_distance"):
            distance = (asked[:, None] - centre[None]).norm(dim=-1)
        elif variant("cdist"):
            a, b = asked, centre
            distance = a.pow(2).sum(-1, keepdim=True) - 2 * a @ b.T + b.pow(2).sum(-1)
        else:
            distance = (asked[:, None] - centre[None]).pow(2).sum(-1)
        return F.cross_entropy(-distance / 20, torch.arange(5).repeat_interleave(4))


SCRIPTS = {"elastic": ElasticScript, "reptile": ReptileScript, "proto": ProtoScript}
