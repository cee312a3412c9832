"""Adapters of peft, and loops of accelerate and lightning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from common import Script, script
from lightning.fabric import Fabric
from peft import AdaLoraConfig, LoHaConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Answer:
    loss: Tensor
    logits: Tensor


class Reader(nn.Module):
    """Attention and a pooled answer, as others have trained it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(60, 32)
        self.places = nn.Embedding(20, 32)
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.out = nn.Linear(32, 4)

    def forward(self, ids: Tensor, labels: Tensor) -> Answer:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (4, 8)).transpose(1, 2) for f in (self.query, self.key, self.value))
        shares = torch.softmax(q @ k.mT / math.sqrt(8), dim=-1)
        x = x + (shares @ v).transpose(1, 2).flatten(2)
        x = x + self.down(F.silu(self.up(self.norm2(x))))
        logits = self.out(x.mean(1))
        wide = logits.double() if logits.dtype == torch.float64 else logits.float()
        return Answer(F.cross_entropy(wide, labels), logits)


@script("ranks")
class Ranks(Script):
    """AdaLoRA: ranks are shared out while it trains."""

    faults = ("double_alpha",)

    def build(self) -> None:
        config = AdaLoraConfig(
            target_modules=["query", "value", "down"],
            init_r=6,
            target_r=3,
            lora_alpha=16 if self.has("double_alpha") else 8,
            lora_dropout=0.0,
            tinit=0,
            tfinal=1,
            deltaT=1,
            total_step=6,
        )
        net = get_peft_model(Reader(), config)
        for name, parameter in net.named_parameters():
            if "lora_E" in name:
                nn.init.normal_(parameter, std=0.3)
            elif "lora_A" in name or "lora_B" in name:
                nn.init.normal_(parameter, std=0.2)
        self.net = self.add(net)
        self.optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)
        self.ids, self.labels = self.integers(0, 60, 4, 12), self.integers(0, 4, 4)

    def step(self, number: int) -> float:
        with self.autocast():
            loss = self.net(self.ids, self.labels).loss
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.net.base_model.update_and_allocate(number)
        self.optimizer.zero_grad()
        return float(loss.detach())


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 4, stride=4)
        self.across, self.back = nn.Linear(16, 32), nn.Linear(32, 16)
        self.wide, self.narrow = nn.Linear(24, 48), nn.Linear(48, 24)
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(3))
        self.out = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).mT
        x = x + self.back(F.gelu(self.across(self.norms[0](x).mT))).mT
        x = x + self.narrow(F.gelu(self.wide(self.norms[1](x))))
        return self.out(self.norms[2](x).mean(1))


@script("hadamard")
class Hadamard(Script):
    """LoHa on a mixer; evaluated after every step, on copies that have it merged or not."""

    faults = ("forgotten_target", "loud_alpha")
    variants = ("merged",)

    def build(self) -> None:
        targets = ["across", "back", "wide"] + ([] if self.has("forgotten_target") else ["narrow"])
        config = LoHaConfig(
            r=3, alpha=4 if self.has("loud_alpha") else 3, target_modules=targets, modules_to_save=["out"]
        )
        net = get_peft_model(Mixer(), config)
        for name, parameter in net.named_parameters():
            if "hada_w2_a" in name:
                nn.init.normal_(parameter, std=0.3)
        self.net = self.add(net)
        self.optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3)
        self.pictures, self.labels = self.normal(4, 3, 16, 16), self.integers(0, 6, 4)

    def loss(self, number: int) -> Tensor:
        return F.cross_entropy(self.wide(self.net(self.pictures)), self.labels)

    def step(self, number: int) -> float:
        value = super().step(number)
        self.net.eval()
        if self.way("merged"):
            self.net.merge_adapter()
        with torch.no_grad(), self.autocast():
            value += float(self.loss(number))
        if self.way("merged"):
            self.net.unmerge_adapter()
        self.net.train()
        return value


class Lines(nn.Module):
    """Columns of a picture of a word, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.memory = nn.LSTM(64, 24, bidirectional=True, batch_first=True)
        self.out = nn.Linear(48, 11)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.norm(self.conv2(x))), (2, 1))
        states, _ = self.memory(x.permute(0, 3, 1, 2).flatten(2))
        return self.out(states)


@script("lines")
class WrittenLines(Script):
    faults = ("never_clipped", "schedule_twice")
    variants = ("whole",)

    def build(self) -> None:
        AcceleratorState._reset_state(True)
        self.parts = 1 if self.way("whole") else 2
        mixed = "bf16" if self.precision == "bf16-autocast" else "no"
        self.accelerator = Accelerator(cpu=True, mixed_precision=mixed, gradient_accumulation_steps=self.parts)
        net = self.add(Lines())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        self.net, self.optimizer = self.accelerator.prepare(net, optimizer)
        self.schedule = schedule
        self.pictures, self.words = self.normal(4, 1, 16, 24), self.integers(1, 11, 4, 4)

    def step(self, number: int) -> float:
        total = 0.0
        for pictures, words in zip(self.pictures.chunk(self.parts), self.words.chunk(self.parts), strict=True):
            with self.accelerator.accumulate(self.net):
                logits = self.net(pictures)
                chances = F.log_softmax(self.wide(logits), -1).transpose(0, 1)
                count = len(pictures)
                lengths = torch.full((count,), chances.shape[0]), torch.full((count,), 4)
                loss = F.ctc_loss(chances, words, *lengths)
                total += float(loss.detach()) / self.parts
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients and not self.has("never_clipped"):
                    self.accelerator.clip_grad_norm_(self.net.parameters(), 0.5)
                self.optimizer.step()
                self.optimizer.zero_grad()
            if self.accelerator.sync_gradients or self.has("schedule_twice"):
                self.schedule.step()
        return total


class Experts(nn.Module):
    """Two tasks, each with its gate to shared experts."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(4))
        self.gates = nn.ModuleList(nn.Linear(20, 4) for _ in range(2))
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(2))
        self.doubt = nn.Parameter(torch.tensor([0.3, -0.2]))

    def forward(self, x: Tensor) -> list[Tensor]:
        known = torch.stack([expert(x) for expert in self.experts], dim=1)
        return [
            tower((torch.softmax(gate(x), -1)[..., None] * known).sum(1)).squeeze(-1)
            for gate, tower in zip(self.gates, self.towers, strict=True)
        ]


class BatchedExperts(nn.Module):
    """The same, the experts one matrix of three axes."""

    def __init__(self, like: Experts) -> None:
        super().__init__()
        by_place = zip(*(e.parameters() for e in like.experts), strict=True)
        stacks = [torch.stack([p.detach() for p in of]) for of in by_place]
        self.first, self.first_bias, self.second, self.second_bias = (nn.Parameter(s) for s in stacks)
        self.choice, self.heads, self.doubt = like.gates, like.towers, like.doubt

    def forward(self, x: Tensor) -> list[Tensor]:
        hidden = torch.relu(torch.einsum("bi,eoi->beo", x, self.first) + self.first_bias)
        known = torch.einsum("bei,eoi->beo", hidden, self.second) + self.second_bias
        return [
            head(torch.einsum("be,beo->bo", torch.softmax(gate(x), -1), known)).squeeze(-1)
            for gate, head in zip(self.choice, self.heads, strict=True)
        ]


@script("tasks")
class Tasks(Script):
    faults = ("doubt_once", "swapped_gates")
    variants = ("batched",)

    def build(self) -> None:
        kinds = {"bf16-autocast": "bf16-mixed", "bf16": "bf16-true", "fp64": "64-true"}
        self.fabric = Fabric(accelerator="cpu", devices=1, precision=kinds.get(self.precision, "32-true"))
        net: Any = Experts()
        if self.way("batched"):
            net = BatchedExperts(net)
        if self.has("swapped_gates"):
            net.gates = nn.ModuleList(reversed(net.gates))
        net = self.add(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
        self.net, self.optimizer = self.fabric.setup(net, optimizer)
        self.x = self.normal(16, 20)
        self.clicks, self.prices = self.integers(0, 2, 16), self.normal(16)

    def step(self, number: int) -> float:
        click, price = (self.wide(answer) for answer in self.net(self.x))
        losses = (
            F.binary_cross_entropy_with_logits(click, self.clicks.to(click.dtype)),
            F.mse_loss(price, self.prices.to(price.dtype)),
        )
        doubt = self.net.module.doubt
        loss = click.new_zeros(())
        for i, each in enumerate(losses):
            loss = loss + torch.exp(-doubt[i]) * each + (0 if self.has("doubt_once") else 0.5 * doubt[i])
        self.fabric.backward(loss)
        self.fabric.clip_gradients(self.net, self.optimizer, max_norm=5.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return float(loss.detach())
