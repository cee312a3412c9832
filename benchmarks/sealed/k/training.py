"""Ways of training: by tasks, by clients, by rewards, against each other; optimizers and frameworks."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from common import Script, script
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def layers(*sizes: int, act: Any = nn.ReLU) -> nn.Sequential:
    parts = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), act())]
    return nn.Sequential(*parts[:-1])


class Rows(Script):
    """Rows of numbers in kinds; each domain turns them in its own way."""

    width, kinds, batch = 12, 5, 32

    def rows(self, turn: float = 0.0, batch: int = 0) -> tuple[Tensor, Tensor]:
        x = self.normal(batch or self.batch, self.width)
        kinds = (2 * self.wide(x[:, 0] + 0.5 * x[:, 1] * x[:, 2]) + 2.5).long().clamp(0, self.kinds - 1)
        return (1 + turn) * x + turn * x.roll(1, -1), kinds


@script("reptile")
class Reptile(Script):
    """Waves learnt in a few steps each; the start of learning moves towards where learning ends."""

    faults = ("no_reset", "whole_way", "moments_kept")
    variants = ("lerp", "gradient")

    def build(self) -> None:
        self.net = self.add(layers(1, 32, 32, 1, act=nn.Tanh))
        self.optimizer = self.inner()
        self.outer = torch.optim.SGD(self.net.parameters(), lr=0.5)

    def inner(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.net.parameters(), lr=1e-2, betas=(0.0, 0.99))

    def step(self, number: int) -> float:
        start = [p.detach().clone() for p in self.net.parameters()]
        high, late = (1 + self.uniform(1)), 3 * self.uniform(1)
        if not self.has("moments_kept"):
            self.optimizer = self.inner()
        for _ in range(3):
            x = 4 * self.uniform(16, 1) - 2
            with self.autocast():
                loss = F.mse_loss(self.wide(self.net(x)), self.wide(high * (x + late).sin()))
            last = self.optimize(loss, self.optimizer)
        self.move(start)
        return last

    @torch.no_grad()
    def move(self, start: list[Tensor]) -> None:
        share = 1.0 if self.has("whole_way") else 0.5
        for p, old in zip(self.net.parameters(), start, strict=True):
            if self.way("lerp"):
                p.copy_(old.lerp(p, share))
            elif self.way("gradient"):
                p.grad = old - p
                p.copy_(old)
            elif not self.has("no_reset"):
                p.copy_(old + share * (p - old))
        if self.way("gradient"):
            self.outer.step()
            self.outer.zero_grad()


class Process(nn.Module):
    """Guesses a function from a few of its points, which it attends to (attentive neural process)."""

    def __init__(self) -> None:
        super().__init__()
        self.points = layers(2, 32, 32)
        self.latent = nn.Linear(32, 16)
        self.key = layers(1, 32, 32)
        self.mix = nn.MultiheadAttention(32, 4, batch_first=True)
        self.decoder = layers(1 + 32 + 8, 32, 2)

    def belief(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.latent(self.points(torch.cat([x, y], -1)).mean(1)).chunk(2, -1)
        return mean, 0.1 + 0.9 * spread.sigmoid()

    def forward(self, x: Tensor, y: Tensor, where: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        values = self.points(torch.cat([x, y], -1))
        mixed, _ = self.mix(self.key(where), self.key(x), values, need_weights=False)
        told = torch.cat([where, mixed, latent[:, None].expand(-1, where.shape[1], -1)], -1)
        mean, spread = self.decoder(told).chunk(2, -1)
        return mean, 0.1 + 0.9 * F.softplus(spread)


@script("process")
class NeuralProcess(Script):
    faults = ("other_way_round", "answers_given", "prior_drawn")

    def build(self) -> None:
        self.net = self.add(Process())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=3e-3)

    def loss(self, number: int) -> Tensor:
        x = 4 * self.uniform(8, 16, 1) - 2
        y = (1 + self.uniform(8, 1, 1)) * (2 * x + 6 * self.uniform(8, 1, 1)).sin()
        known = 16 if self.has("answers_given") else 6
        prior, posterior = self.net.belief(x[:, :known], y[:, :known]), self.net.belief(x, y)
        mean, spread = prior if self.has("prior_drawn") else posterior
        latent = mean + spread * self.normal(8, 8)
        found, width = (self.wide(of) for of in self.net(x[:, :known], y[:, :known], x, latent))
        fit = torch.distributions.Normal(found, width).log_prob(self.wide(y)).mean()
        p, q = (torch.distributions.Normal(*(self.wide(v) for v in of)) for of in (posterior, prior))
        p, q = (q, p) if self.has("other_way_round") else (p, q)
        return -fit + torch.distributions.kl_divergence(p, q).sum(-1).mean() / 16


@script("grpo")
class Grpo(Script):
    """Words are rewarded by how they compare with others said to the same question."""

    faults = ("over_all", "kept_ratio", "question_trained")
    variants = ("gathered",)
    groups, each, length, asked = 4, 4, 14, 5

    def build(self) -> None:
        self.net = self.add(self.model())
        self.before = self.add(self.model()).requires_grad_(False)
        self.before.load_state_dict(self.net.state_dict())
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-3)

    def model(self) -> nn.ModuleDict:
        return nn.ModuleDict({"words": nn.Embedding(30, 32), "rnn": nn.GRU(32, 32, 1), "head": nn.Linear(32, 30)})

    def chances(self, net: Any, text: Tensor) -> Tensor:
        hidden, _ = net["rnn"](net["words"](text[:, :-1].T))
        logits = self.wide(net["head"](hidden.transpose(0, 1)))
        if self.way("gathered"):
            return logits.gather(-1, text[:, 1:, None]).squeeze(-1) - logits.logsumexp(-1)
        return -F.cross_entropy(logits.transpose(1, 2), text[:, 1:], reduction="none")

    def advantages(self, rewards: Tensor) -> Tensor:
        of = rewards.view(1, -1) if self.has("over_all") else rewards.view(self.groups, self.each)
        return ((of - of.mean(1, keepdim=True)) / (of.std(1, keepdim=True) + 1e-4)).flatten()

    def step(self, number: int) -> float:
        question = self.integers(0, 30, self.groups, self.asked).repeat_interleave(self.each, 0)
        text = torch.cat([question, self.integers(0, 30, self.groups * self.each, self.length - self.asked)], 1)
        rewards = self.wide((text[:, self.asked :] > text[:, :1]).sum(1).to(self.dtype) + self.normal(len(text)))
        gain = self.advantages(rewards)[:, None]
        mask = (torch.arange(1, self.length) >= self.asked).to(gain.dtype).expand(len(text), -1)
        mask = torch.ones_like(mask) if self.has("question_trained") else mask
        old = None
        for _ in range(2):
            with self.autocast():
                new = self.chances(self.net, text)
                with torch.no_grad():
                    start = self.chances(self.before, text)
            old = new.detach() if old is None or self.has("kept_ratio") else old
            ratio = (new - old).exp()
            best = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            far = (start - new).exp() - (start - new) - 1
            loss = ((0.1 * far - best) * mask).sum() / mask.sum()
            last = self.optimize(loss, self.optimizer, 1.0)
        return last


@script("surgery")
class Surgery(Rows):
    """Two tasks; what of the gradient of one works against the other is taken away (PCGrad)."""

    faults = ("one_after_other", "per_tensor", "added_once")
    variants = ("autograd",)

    def build(self) -> None:
        self.net = nn.ModuleDict({"body": layers(12, 32, 24), "kind": nn.Linear(24, 5), "size": nn.Linear(24, 1)})
        self.net = self.add(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        if self.way("autograd"):
            found = torch.autograd.grad(loss, list(self.net.parameters()), retain_graph=True, allow_unused=True)
            return [torch.zeros_like(p) if g is None else g for p, g in zip(self.net.parameters(), found, strict=True)]
        self.optimizer.zero_grad()
        loss.backward(retain_graph=True)
        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.net.parameters()]

    def without(self, own: list[Tensor], other: list[Tensor]) -> list[Tensor]:
        parts = [(a * b).sum() for a, b in zip(own, other, strict=True)]
        if not self.has("per_tensor"):
            parts = [torch.stack(parts).sum()] * len(parts)
        sizes = [b.square().sum() for b in other]
        if not self.has("per_tensor"):
            sizes = [torch.stack(sizes).sum()] * len(sizes)
        shares = [(part / (size + 1e-12)).clamp(max=0) for part, size in zip(parts, sizes, strict=True)]
        return [a - share * b for a, b, share in zip(own, other, shares, strict=True)]

    def step(self, number: int) -> float:
        x, kinds = self.rows()
        with self.autocast():
            hidden = self.net["body"](x).relu()
            first = F.cross_entropy(self.wide(self.net["kind"](hidden)), kinds)
            second = F.mse_loss(self.wide(self.net["size"](hidden)).squeeze(-1), self.wide(-x[:, 0] + x[:, 4]))
        a, b = self.gradients(first), self.gradients(second)
        kept = self.without(a, b)
        others = self.without(b, kept if self.has("one_after_other") else a)
        for p, g, h in zip(self.net.parameters(), kept, others, strict=True):
            p.grad = 0.5 * (g + h) if self.has("added_once") else g + h
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(first.detach() + second.detach())


@script("federated")
class Federated(Rows):
    """Clients learn alone, and their weights are averaged by how much they have; each is held near the start."""

    faults = ("unweighed", "statistics_left", "pulled_to_self")
    variants = ("foreach",)
    sizes = (48, 16, 8)

    def build(self) -> None:
        self.net = self.add(nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 5)))
        self.clients = [self.add(copy.deepcopy(self.net)) for _ in self.sizes]

    def learn(self, client: nn.Module, rows: tuple[Tensor, Tensor]) -> float:
        client.load_state_dict(self.net.state_dict())
        optimizer = torch.optim.SGD(client.parameters(), lr=0.1)
        start = client if self.has("pulled_to_self") else self.net
        for _ in range(2):
            with self.autocast():
                loss = F.cross_entropy(self.wide(client.train()(rows[0])), rows[1])
            pairs = zip(client.parameters(), start.parameters(), strict=True)
            near = torch.stack([(a - b.detach()).float().square().sum() for a, b in pairs]).sum()
            last = self.optimize(loss + 0.5 * near, optimizer)
        return last

    @torch.no_grad()
    def average(self) -> None:
        shares = [1 / 3] * 3 if self.has("unweighed") else [size / sum(self.sizes) for size in self.sizes]
        ours = self.net.state_dict()
        theirs = [client.state_dict() for client in self.clients]
        names = [name for name in ours if ours[name].is_floating_point()]
        if self.has("statistics_left"):
            names = [name for name in names if "running" not in name]
        if self.way("foreach"):
            first, *rest = (torch._foreach_mul([of[n] for n in names], s) for of, s in zip(theirs, shares, strict=True))
            for part in rest:
                torch._foreach_add_(first, part)
            torch._foreach_copy_([ours[n] for n in names], first)
            return
        for name in names:
            ours[name].copy_(sum(share * of[name] for of, share in zip(theirs, shares, strict=True)))

    def step(self, number: int) -> float:
        for number_of, (client, size) in enumerate(zip(self.clients, self.sizes, strict=True)):
            self.learn(client, self.rows(0.5 * number_of, size))
        self.average()
        x, kinds = self.rows()
        with torch.no_grad(), self.autocast():
            return float(F.cross_entropy(self.wide(self.net.eval()(x)), kinds))


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal by Newton and Schulz."""

    def __init__(self, params: Any, lr: float, rounds: int, nesterov: bool, scaled: bool) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.9, "nesterov": nesterov})
        self.rounds, self.scaled = rounds, scaled

    def orthogonal(self, x: Tensor) -> Tensor:
        turned = x.shape[0] > x.shape[1]
        x = x.T if turned else x
        x = x / (x.norm() + 1e-7)
        for _ in range(self.rounds):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        return x.T if turned else x

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                buffer = state.setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                way = p.grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
                scale = max(1.0, p.shape[0] / p.shape[1]) ** 0.5 if self.scaled else 1.0
                p.add_(self.orthogonal(way).to(p.dtype), alpha=-group["lr"] * scale)


@script("muon")
class Orthogonal(Rows):
    """Matrices and the rest have optimizers of their own."""

    faults = ("four_rounds", "no_nesterov", "unscaled", "head_too")
    variants = ("apart",)

    def build(self) -> None:
        self.net = self.add(nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 24), nn.GELU(), nn.Linear(24, 5)))
        found = [p for p in self.net.parameters() if p.ndim == 2]
        found = found if self.has("head_too") else found[:-1]
        rest = [p for p in self.net.parameters() if all(p is not q for q in found)]
        rounds = 4 if self.has("four_rounds") else 5
        self.optimizer = Muon(found, 0.05, rounds, not self.has("no_nesterov"), not self.has("unscaled"))
        self.others = torch.optim.AdamW(rest, lr=5e-3, betas=(0.9, 0.95))

    def step(self, number: int) -> float:
        self.optimizer.zero_grad()
        self.others.zero_grad()
        x, kinds = self.rows()
        total = 0.0
        for part in range(2 if self.way("apart") else 1):
            some = slice(16 * part, 16 * part + 16) if self.way("apart") else slice(None)
            with self.autocast():
                loss = F.cross_entropy(self.wide(self.net(x[some])), kinds[some]) / (2 if self.way("apart") else 1)
            self.scaler.scale(loss).backward()
            total += float(loss.detach())
        self.scaler.step(self.optimizer)
        self.scaler.step(self.others)
        self.scaler.update()
        return total


class Lamb(torch.optim.Optimizer):
    """Adam whose steps are as long as the weights, layer by layer."""

    def __init__(self, params: Any, lr: float, corrected: bool, floor: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-6})
        self.corrected, self.floor = corrected, floor

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                mean = state.setdefault("mean", torch.zeros_like(p)).lerp_(p.grad, 1 - first)
                square = state.setdefault("square", torch.zeros_like(p)).lerp_(p.grad.square(), 1 - second)
                if self.corrected:
                    mean, square = mean / (1 - first ** state["step"]), square / (1 - second ** state["step"])
                way = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * p
                length = p.norm().clamp(self.floor, 10.0)
                p.sub_(group["lr"] * length * (way / way.norm() if group["trusted"] else way))


@script("lamb")
class LayerWise(Rows):
    """Matrices move by their length; the rest as in Adam, without decay."""

    faults = ("uncorrected", "all_decay")

    def build(self) -> None:
        self.net = self.add(nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.SiLU(), nn.Linear(32, 5)))
        matrices = [p for p in self.net.parameters() if p.ndim == 2]
        rest = [p for p in self.net.parameters() if p.ndim < 2]
        decay = 0.3 if self.has("all_decay") else 0.0
        groups = [
            {"params": matrices, "weight_decay": 0.3, "trusted": True},
            {"params": rest, "weight_decay": decay, "trusted": False},
        ]
        self.optimizer = Lamb(groups, 0.02, not self.has("uncorrected"), 1e-3)

    def loss(self, number: int) -> Tensor:
        x, kinds = self.rows()
        return F.cross_entropy(self.wide(self.net(x)), kinds)


class Quantised(nn.Module):
    """A frozen matrix of eight bits, a scale for each row, and a thin one beside it that learns."""

    def __init__(self, columns: int, rows: int, one_scale: bool, floor: bool) -> None:
        super().__init__()
        weight = torch.randn(rows, columns) * (1 + torch.rand(rows, 1)) / columns**0.5
        sizes = weight.abs().amax(None if one_scale else 1, keepdim=True)
        scale = sizes / 127
        parts = weight / scale
        self.register_buffer("scale", scale)
        self.register_buffer("parts", (parts.floor() if floor else parts.round()).clamp(-127, 127).to(torch.int8))
        self.down = nn.Parameter(torch.randn(4, columns) / columns**0.5)
        self.up = nn.Parameter(0.1 * torch.randn(rows, 4))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.parts.to(x.dtype) * self.scale.to(x.dtype)
        return F.linear(x, weight) + 2 * F.linear(F.linear(x, self.down), self.up)


@script("quantised")
class QuantisedTuning(Rows):
    faults = ("one_scale", "rounded_down")

    def build(self) -> None:
        ways = (self.has("one_scale"), self.has("rounded_down"))
        parts = [Quantised(12, 64, *ways), nn.GELU(), Quantised(64, 64, *ways), nn.GELU(), Quantised(64, 5, *ways)]
        self.net = self.add(nn.Sequential(*parts))
        self.optimizer = torch.optim.RAdam(self.net.parameters(), lr=2e-2, decoupled_weight_decay=True)

    def loss(self, number: int) -> Tensor:
        x, kinds = self.rows()
        return F.cross_entropy(self.wide(self.net(x)), kinds)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return -ctx.scale * grad, None


class Domains(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.kind, self.domain = nn.Linear(16, 5), layers(16, 16, 1)

    def forward(self, x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.kind(hidden), self.domain(Reverse.apply(hidden, scale)).squeeze(-1)


@script("domains")
class Adversarial(Rows):
    """Kinds known in one domain are found in another, by features that do not tell where they are from."""

    faults = ("not_reversed", "target_labelled", "statistics_apart")

    def build(self) -> None:
        self.net = self.add(Domains())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)

    def loss(self, number: int) -> Tensor:
        (here, kinds), (there, _) = self.rows(), self.rows(0.5)
        scale = 0.4 + 0.3 * number
        scale = -scale if self.has("not_reversed") else scale
        if self.has("statistics_apart"):
            parts = [self.net(part, scale) for part in (here, there)]
            found, where = (torch.cat([self.wide(part[k]) for part in parts]) for k in (0, 1))
        else:
            found, where = (self.wide(of) for of in self.net(torch.cat([here, there]), scale))
        home = torch.cat([torch.ones(self.batch), torch.zeros(self.batch)]).to(where.dtype)
        if self.has("target_labelled"):
            kind = F.cross_entropy(found, kinds.repeat(2))
        else:
            kind = F.cross_entropy(found[: self.batch], kinds)
        return kind + F.binary_cross_entropy_with_logits(where, home)


class Cycle(lightning.LightningModule):
    """Two domains, two ways between them, and who tells what is made; optimized by hand."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.cut = cut
        self.there, self.back = (layers(8, 24, 8, act=nn.SiLU) for _ in range(2))
        self.judge = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16)), nn.SiLU(), nn.Linear(16, 1)
        )
        self.losses: list[float] = []

    def configure_optimizers(self) -> Any:
        makers = [*self.there.parameters(), *self.back.parameters()]
        first = torch.optim.Adam(makers, lr=2e-3, betas=(0.5, 0.999))
        return first, torch.optim.Adam(self.judge.parameters(), lr=4e-3, betas=(0.5, 0.999))

    def training_step(self, batch: list[Tensor], number: int) -> None:
        here, there = batch
        makers, judges = self.optimizers()
        self.toggle_optimizer(makers)
        made = self.there(here)
        again = self.back(made.detach() if self.cut else made)
        loss = (self.judge(made) - 1).square().float().mean() + 5 * (again - here).float().abs().mean()
        self.manual_backward(loss)
        makers.step()
        makers.zero_grad()
        self.untoggle_optimizer(makers)
        self.toggle_optimizer(judges)
        real, false = self.judge(there), self.judge(made.detach())
        doubt = 0.5 * ((real - 1).square().float().mean() + false.square().float().mean())
        self.manual_backward(doubt)
        judges.step()
        judges.zero_grad()
        self.untoggle_optimizer(judges)
        self.losses.append(float(loss.detach() + doubt.detach()))


@script("cycle")
class CycleGan(Script):
    faults = ("cut",)

    def build(self) -> None:
        self.net = self.add(Cycle(self.has("cut")))

    def run(self) -> None:
        torch.manual_seed(2)
        precision = {"fp32": "32-true", "fp64": "64-true", "bf16": "bf16-true", "bf16-autocast": "bf16-mixed"}
        trainer = lightning.Trainer(
            max_steps=2 * self.options.steps,
            accelerator="cpu",
            precision=precision[self.precision],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        rows = TensorDataset(*(self.normal(16 * self.options.steps, 8) for _ in range(2)))
        trainer.fit(self.net, DataLoader(rows, batch_size=16))
        self.losses = self.net.losses
        for number, loss in enumerate(self.losses):
            print(f"step {number} loss {loss:.9g}")
