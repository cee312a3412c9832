"""Healthy trainings of small models, each with something that a watch must not take for a fault.

training = HEALTHY["writer"]()
training.step(0)

Those that are HELD_OUT were not looked at when limits were set.
"""

import functools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler

import overflow_zoo

STEPS = 120
"""Of a training: schedules are made for it."""
WORDS, WIDTH, LENGTH, BATCH = 40, 24, 10, 8

Step = Callable[[int], None]


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inward(x).chunk(3, -1)
        mask = torch.full((x.shape[1], x.shape[1]), -math.inf, dtype=x.dtype).triu(1)
        scores = query @ key.transpose(-2, -1) / math.sqrt(x.shape[-1]) + mask
        return self.out(scores.softmax(-1) @ value)  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, width: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.drop = Attention(width), nn.Dropout(dropout)
        self.rise, self.act, self.fall = nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.fall(self.act(self.rise(self.norm2(x)))))  # type: ignore[no-any-return]


class Writer(nn.Module):
    """A language model."""

    def __init__(self, *, layers: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block(WIDTH, dropout=dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def text(batches: torch.Generator, *, length: int = LENGTH) -> Tensor:
    """Words that can be guessed from those before: runs that count up, with noise."""
    begin = torch.randint(WORDS, (BATCH, 1), generator=batches)
    counted = (begin + torch.arange(length)) % WORDS
    noise = torch.randint(WORDS, (BATCH, length), generator=batches)
    return torch.where(torch.rand(BATCH, length, generator=batches) < 0.1, noise, counted)


def guess_loss(scores: Tensor, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(scores[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


@dataclass
class Training:
    """A training that a fault may be planted in."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    step: Step
    change: dict[str, Any]
    """What a fault may set: `batch` is called with inputs, `gradients` before the update."""


def updated(training: Training, loss: Tensor) -> None:
    for optimizer in training.optimizers:
        optimizer.zero_grad()
    loss.backward()
    training.change.get("gradients", lambda: None)()
    for optimizer in training.optimizers:
        optimizer.step()


def writer(*, dtype: torch.dtype | None = None, dropout: float = 0.1) -> Training:
    """AdamW, warm-up, then a cosine."""
    model = Writer(dropout=dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    warm = lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))
    )
    batches, training = torch.Generator().manual_seed(1), Training(model, [optimizer], lambda _: None, {})

    def step(_: int) -> None:
        tokens = training.change.get("batch", lambda one: one)(text(batches))
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            scores = model(tokens)
        updated(training, guess_loss(scores, tokens))
        warm.step()

    training.step = step
    return training


def writer_scaled() -> Training:
    """float16 under a GradScaler whose scale grows every 15 steps, until it overflows and is halved."""
    training = writer(dropout=0.0)
    model, (optimizer,) = training.model, training.optimizers
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15, growth_interval=7)
    batches = torch.Generator().manual_seed(2)

    def step(_: int) -> None:
        tokens = text(batches)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            scores = model(tokens)
        scaler.scale(guess_loss(scores, tokens)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    training.step = step
    return training


def viewer(optimizer: str = "sgd") -> Training:
    """Convolutions with batch norm; the learning rate falls to a tenth twice."""
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 12, 3, stride=2), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Flatten(), nn.Linear(12 * 9, 32), nn.ReLU(), nn.Linear(32, 5),
    )  # fmt: skip
    chosen: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        if optimizer == "sgd"
        else torch.optim.RMSprop(model.parameters(), lr=1e-3)
    )
    steps = lr_scheduler.MultiStepLR(chosen, [45, 80], gamma=0.1)
    batches, training = torch.Generator().manual_seed(3), Training(model, [chosen], lambda _: None, {})
    patterns = torch.randn(5, 3, 8, 8, generator=batches)

    def step(_: int) -> None:
        labels = torch.randint(5, (16,), generator=batches)
        images = patterns[labels] + torch.randn(16, 3, 8, 8, generator=batches)
        images = training.change.get("batch", lambda one: one)(images)
        updated(training, functional.cross_entropy(model(images), labels))
        steps.step()

    training.step = step
    return training


def adversaries() -> Training:
    """Two models with an optimizer each, which take turns in a step."""
    maker = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    judge = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    both = nn.ModuleDict({"maker": maker, "judge": judge})
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.99)),
        torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.99)),
    ]
    batches = torch.Generator().manual_seed(4)

    def step(_: int) -> None:
        real, noise = torch.randn(24, 4, generator=batches) * 2 + 1, torch.randn(24, 6, generator=batches)
        made = maker(noise)
        optimizers[1].zero_grad()
        loss = functional.softplus(-judge(real)).mean() + functional.softplus(judge(made.detach())).mean()
        loss.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        functional.softplus(-judge(made)).mean().backward()
        optimizers[0].step()

    return Training(both, optimizers, step, {})


def recurrent() -> Training:
    """An LSTM with clipped gradients, and RMSprop."""
    words, cell, head = nn.Embedding(WORDS, 16), nn.LSTM(16, 24, batch_first=True), nn.Linear(24, WORDS)
    model = nn.ModuleDict({"words": words, "cell": cell, "head": head})
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    batches, training = torch.Generator().manual_seed(5), Training(model, [optimizer], lambda _: None, {})
    training.change["gradients"] = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    def step(_: int) -> None:
        tokens = text(batches)
        updated(training, guess_loss(head(cell(words(tokens))[0]), tokens))

    training.step = step
    return training


def perceptron() -> Training:
    """A plain regression with Adam; the learning rate rises tenfold at step 50."""
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    jump = lr_scheduler.LambdaLR(optimizer, lambda step: 10.0 if step >= 50 else 1.0)
    batches, training = torch.Generator().manual_seed(6), Training(model, [optimizer], lambda _: None, {})

    def step(_: int) -> None:
        x = training.change.get("batch", lambda one: one)(torch.randn(16, 10, generator=batches))
        updated(training, (model(x)[:, 0] - x[:, 0] * x[:, 1] - x[:, 2]).square().mean())
        jump.step()

    training.step = step
    return training


def one_cycle() -> Training:
    """Encoder layers of torch's own, SGD with Nesterov's momentum, one cycle of the learning rate."""
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Linear(6, WIDTH), nn.TransformerEncoder(layer, 2), nn.Linear(WIDTH, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    cycle = lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=STEPS + 1)
    batches = torch.Generator().manual_seed(7)

    def step(_: int) -> None:
        x = torch.randn(12, 7, 6, generator=batches)
        loss = functional.cross_entropy(model(x).mean(1), x.sum(2).mean(1).sign().long() + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()

    return Training(model, [optimizer], step, {})


def accumulated() -> Training:
    """Residual blocks; four forwards and backwards an update, the last batch of each round is smaller."""
    blocks = nn.ModuleList(
        nn.Sequential(nn.LayerNorm(20), nn.Linear(20, 40), nn.GELU(), nn.Linear(40, 20)) for _ in range(4)
    )
    model = nn.ModuleDict({"blocks": blocks, "head": nn.Linear(20, 4)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(8)

    def step(number: int) -> None:
        optimizer.zero_grad()
        for micro in range(4):
            x = torch.randn(3 if micro == 3 and number % 7 == 0 else 8, 20, generator=batches)
            labels = x[:, :4].argmax(1)
            for block in blocks:
                x = x + block(x)
            (functional.cross_entropy(model["head"](x), labels) / 4).backward()
        optimizer.step()

    return Training(model, [optimizer], step, {})


def variational() -> Training:
    """Noise in the middle, a loss of two parts of which one is weighed more and more."""
    down, up = (
        nn.Sequential(nn.Linear(16, 32), nn.ELU(), nn.Linear(32, 8)),
        nn.Sequential(nn.Linear(4, 32), nn.ELU(), nn.Linear(32, 16)),
    )
    model = nn.ModuleDict({"down": down, "up": up})
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    batches = torch.Generator().manual_seed(9)

    def step(number: int) -> None:
        x = torch.randn(20, 4, generator=batches) @ torch.ones(4, 16) + torch.randn(20, 16, generator=batches)
        mean, spread = down(x).chunk(2, -1)
        code = mean + torch.randn(mean.shape, generator=batches) * (spread / 2).exp()
        apart = (mean.square() + spread.exp() - spread - 1).sum(1).mean() / 2
        loss = (up(code) - x).square().sum(1).mean() + min(1.0, number / 60) * apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, [optimizer], step, {})


class Experts(nn.Module):
    """Each token goes to one of eight experts; some get none in a step, then they are not called."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.router = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 8)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 48), nn.ReLU(), nn.Linear(48, WIDTH)) for _ in range(8)
        )
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inward(x)
        share, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * share[rows, None])
        return self.head(x + out)  # type: ignore[no-any-return]


def moe() -> Training:
    model = Experts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = torch.Generator().manual_seed(10)

    def step(_: int) -> None:
        x = torch.randn(24, 6, generator=batches)
        loss = functional.cross_entropy(model(x), (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, [optimizer], step, {})


def recommender() -> Training:
    """Rare rows of large embeddings, Adagrad."""
    users, items, head = (
        nn.Embedding(500, 12),
        nn.Embedding(300, 12),
        nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 1)),
    )
    model = nn.ModuleDict({"user": users, "item": items, "head": head})
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    batches = torch.Generator().manual_seed(11)

    def step(_: int) -> None:
        user = (torch.rand(16, generator=batches).square() * 500).long()
        item = (torch.rand(16, generator=batches).square() * 300).long()
        score = head(torch.cat([users(user), items(item)], -1))[:, 0]
        loss = functional.binary_cross_entropy_with_logits(score, ((user + item) % 3 == 0).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, [optimizer], step, {})


def policy() -> Training:
    """A loss around zero, of any sign, and noisy: rewards of drawn actions; entropy beside it."""
    model = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = torch.Generator().manual_seed(12)

    def step(_: int) -> None:
        seen = torch.randn(20, 4, generator=batches)
        logs = model(seen).log_softmax(-1)
        action = torch.multinomial(logs.detach().exp(), 1, generator=batches)[:, 0]
        reward = (action == seen[:, :3].argmax(1)).float() + 0.3 * torch.randn(20, generator=batches)
        gain = reward - reward.mean()
        loss = -(gain * logs[torch.arange(20), action]).mean() + 0.01 * (logs.exp() * logs).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training(model, [optimizer], step, {})


def bfloat16_weights() -> Training:
    """Weights, gradients and moments in bfloat16; every tenth step a validation in between."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = nn.Sequential(
            nn.Linear(12, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)
        )
    finally:
        torch.set_default_dtype(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = torch.Generator().manual_seed(13)

    def step(number: int) -> None:
        x = torch.randn(16, 12, generator=batches).bfloat16()
        loss = functional.cross_entropy(model(x).float(), x[:, :4].float().argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 10 == 9:
            model.eval()
            with torch.no_grad():
                model(torch.randn(64, 12, generator=batches).bfloat16())
            model.train()

    return Training(model, [optimizer], step, {})


def warm_restarts() -> Training:
    """The learning rate falls to a hundredth and is set back, three times; lengths of sentences vary."""
    model = Writer(layers=2, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 40, eta_min=3e-5)
    batches = torch.Generator().manual_seed(14)

    def step(number: int) -> None:
        tokens = text(batches, length=5 + number * 7 % 9)
        optimizer.zero_grad()
        guess_loss(model(tokens), tokens).backward()
        optimizer.step()
        schedule.step()

    return Training(model, [optimizer], step, {})


def adapted() -> Training:
    """A frozen model with low-rank additions that begin as zeros."""

    class Adapter(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.down, self.up = (
                nn.Linear(layer.in_features, 4, bias=False),
                nn.Linear(4, layer.out_features, bias=False),
            )
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + self.up(self.down(x))  # type: ignore[no-any-return]

    model = nn.Sequential(
        Adapter(nn.Linear(10, 32)), nn.ReLU(), Adapter(nn.Linear(32, 32)), nn.ReLU(), Adapter(nn.Linear(32, 3))
    )
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
    batches = torch.Generator().manual_seed(15)

    def step(_: int) -> None:
        x = torch.randn(16, 10, generator=batches)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()

    return Training(model, [optimizer], step, {})


HEALTHY: dict[str, Callable[[], Training]] = {
    "writer": writer,
    "writer_bf16": lambda: writer(dtype=torch.bfloat16),
    "writer_scaled": writer_scaled,
    "viewer": viewer,
    "adversaries": adversaries,
    "recurrent": recurrent,
    "perceptron": perceptron,
    "one_cycle": one_cycle,
    "accumulated": accumulated,
    "variational": variational,
    "moe": moe,
    "recommender": recommender,
    "policy": policy,
    "bfloat16_weights": bfloat16_weights,
    "warm_restarts": warm_restarts,
    "adapted": adapted,
}


def _of_zoo(make: Callable[[], Any]) -> Training:
    """A healthy training of the overflow zoo, whose attention has masks of -inf."""
    known = make()
    batches = torch.Generator().manual_seed(1)

    def step(_: int) -> None:
        tokens = torch.randint(overflow_zoo.WORDS, (overflow_zoo.BATCH, overflow_zoo.LENGTH), generator=batches)
        known.step(tokens, tokens.roll(-1, 1))

    return Training(known.model, [known.optimizer], step, {})


OF_ZOO = {f"zoo: {name}": make for name, make in overflow_zoo.healthy_trainings()}
HEALTHY |= {name: functools.partial(_of_zoo, make) for name, make in OF_ZOO.items()}
HELD_OUT = (
    *OF_ZOO,
    "one_cycle",
    "accumulated",
    "variational",
    "moe",
    "recommender",
    "policy",
    "bfloat16_weights",
    "warm_restarts",
    "adapted",
)
