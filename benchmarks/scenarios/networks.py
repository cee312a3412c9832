"""Networks, trained and evaluated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models import Results, Setting, Tensors, collect, make_gpt, scenario, train


@scenario()
def gpt(setting: Setting) -> Results:
    model, tokens, targets = make_gpt(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = train(optimizer, setting.steps, lambda: model(tokens, targets))
    with torch.no_grad():
        after = model.eval()(tokens)
    return collect(model, losses, after=after)


@scenario(trains=False)
def gpt_no_grad(setting: Setting) -> Results:
    model, tokens, _ = make_gpt(setting)
    with torch.no_grad():
        return collect(model, [], logits=model.eval()(tokens))


@scenario(trains=False)
def gpt_inference(setting: Setting) -> Results:
    model, tokens, _ = make_gpt(setting)
    with torch.inference_mode():
        model.eval()
        for _ in range(setting.steps):
            tokens = torch.cat([tokens[:, 1:], model(tokens)[:, -1:].argmax(-1)], dim=1)
        return collect(model, [], tokens=tokens, logits=model(tokens))


@scenario()
def cnn(setting: Setting) -> Results:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, groups=2),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    ).to(setting.device)
    images = torch.randn(4, 3, 12, 12).to(setting.device, memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (4,)).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = train(optimizer, setting.steps, lambda: functional.cross_entropy(model(images), labels))
    model.eval()
    with torch.no_grad():
        return collect(model, losses, after=model(images))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 12)
        self.lstm = nn.LSTM(12, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(16, 8, batch_first=True)
        self.tags = nn.Linear(8, 5)

    def forward(self, words: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.words(words))
        hidden, _ = self.gru(hidden)
        return self.tags(hidden)


@scenario()
def lstm(setting: Setting) -> Results:
    model = Tagger().to(setting.device)
    words, tags = torch.randint(0, 20, (3, 7)).to(setting.device), torch.randint(0, 5, (3, 7)).to(setting.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = train(
        optimizer, setting.steps, lambda: functional.cross_entropy(model(words).flatten(0, 1), tags.flatten())
    )
    with torch.inference_mode():
        return collect(model, losses, after=model.eval()(words))


def make_encoder(setting: Setting) -> tuple[nn.TransformerEncoder, Tensor, Tensor]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0, activation="gelu")
    model = nn.TransformerEncoder(layer, 2).to(setting.device)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = padding[2, 2:] = True
    return model, torch.randn(3, 6, 32).to(setting.device), padding.to(setting.device)


@scenario()
def encoder_training(setting: Setting) -> Results:
    model, x, padding = make_encoder(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return collect(
        model, train(optimizer, setting.steps, lambda: model(x, src_key_padding_mask=padding).square().mean())
    )


@contextlib.contextmanager
def slow_path() -> Iterator[None]:
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def both_paths(run: Callable[[], Tensor]) -> Tensors:
    """What the fast path gives and what the slow one gives; they round differently, or one of them was not taken."""
    fast = run()
    with slow_path():
        slow = run()
    if torch.equal(fast, slow):
        raise AssertionError("the fast path was not taken: it gave the same bits as the slow one")
    return {"fast": fast, "slow": slow}


def evaluate_encoder(setting: Setting) -> Results:
    model, x, padding = make_encoder(setting)
    model.eval()
    plain = both_paths(lambda: model(x))
    padded = both_paths(lambda: model(x, src_key_padding_mask=padding))
    return collect(model, [], **plain, **{f"padded_{path}": output for path, output in padded.items()})


@scenario(trains=False)
def encoder_no_grad(setting: Setting) -> Results:
    with torch.no_grad():
        return evaluate_encoder(setting)


@scenario(trains=False)
def encoder_inference(setting: Setting) -> Results:
    with torch.inference_mode():
        return evaluate_encoder(setting)


def make_attention(setting: Setting) -> tuple[nn.MultiheadAttention, Tensor]:
    return nn.MultiheadAttention(32, 4, batch_first=True).to(setting.device), torch.randn(3, 6, 32).to(setting.device)


@scenario()
def attention_training(setting: Setting) -> Results:
    model, x = make_attention(setting)
    memory = torch.randn(3, 5, 32).to(setting.device).requires_grad_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of() -> Tensor:
        own, weights = model(x, x, x)
        crossed, _ = model(own, memory, memory, need_weights=False)
        return crossed.square().mean() + weights.square().mean()

    return collect(model, train(optimizer, setting.steps, loss_of), memory_gradient=memory.grad)


@scenario(trains=False)
def attention_eval(setting: Setting) -> Results:
    model, x = make_attention(setting)
    model.eval()
    with torch.no_grad():
        quiet = both_paths(lambda: model(x, x, x, need_weights=False)[0])
    with torch.inference_mode():
        inference = both_paths(lambda: model(x, x, x, need_weights=False)[0])
    return collect(model, [], **quiet, **{f"inference_{path}": output for path, output in inference.items()})


class Experts(nn.Module):
    """Routes each row to its best two experts, with every way of indexing."""

    def __init__(self, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(experts)])
        self.register_buffer("load", torch.zeros(experts))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == number)
            share = weights[rows, slot].unsqueeze(-1)
            mixed.index_add_(0, rows, expert(x.index_select(0, rows)) * share)
            self.load[number] += rows.numel()
        strong = weights[:, 0] > 0.6
        boosted = mixed.clone()
        boosted[strong] = mixed[strong] * 2
        boosted[:, 0] = x[:, 0]
        boosted[:, 1:3] *= 0.5
        return torch.where(strong.unsqueeze(-1), boosted, mixed + x.gather(1, chosen[:, :1]))


@scenario()
def mixture_of_experts(setting: Setting) -> Results:
    model = Experts().to(setting.device)
    x = torch.randn(12, 16).to(setting.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return collect(model, train(optimizer, setting.steps, lambda: model(x).square().mean()))


@scenario()
def tied_weights(setting: Setting) -> Results:
    model, tokens, targets = make_gpt(setting)
    model.head.weight = model.tokens.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return collect(model, train(optimizer, setting.steps, lambda: model(tokens, targets)))


@dataclass
class Batch:
    features: Tensor
    labels: Tensor


@dataclass
class Scored:
    loss: Tensor
    logits: Tensor
    note: str = "scored"


class Structured(nn.Module):
    """Takes keywords and a dataclass, gives a dict that holds a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, *, batch: Batch, scale: Tensor, options: dict[str, Any]) -> dict[str, Any]:
        hidden = self.norm(batch.features) * scale
        if options["sharpen"]:
            hidden = hidden.pow(exponent=3)
        logits = self.last(input=hidden)
        return {
            "scored": Scored(functional.cross_entropy(input=logits, target=batch.labels), logits),
            "hidden": [hidden],
        }


@scenario()
def structured(setting: Setting) -> Results:
    model = Structured().to(setting.device)
    batch = Batch(torch.randn(6, 8).to(setting.device), torch.randint(0, 3, (6,)).to(setting.device))
    scale = torch.tensor(0.5, device=setting.device, requires_grad=True)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def loss_of() -> Tensor:
        made = model(batch=batch, scale=scale, options={"sharpen": True, "names": ["a", "b"]})
        return made["scored"].loss + made["hidden"][0].abs().mean()

    return collect(model, train(optimizer, setting.steps, loss_of), scale_gradient=scale.grad)


@scenario()
def dropout(setting: Setting) -> Results:
    layers = [nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 3), nn.Dropout(0.1, inplace=True)]
    model = nn.Sequential(*layers).to(setting.device)
    x = torch.randn(10, 8).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = train(optimizer, setting.steps, lambda: (model(x) + torch.rand_like(x[:, :3])).square().mean())
    return collect(model, losses, noise=torch.randn(3, device=setting.device))


@scenario()
def embedding_max_norm(setting: Setting) -> Results:
    model = nn.Sequential(nn.Embedding(10, 6, max_norm=1.0), nn.Linear(6, 3)).to(setting.device)
    words = torch.randint(0, 10, (4, 5)).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return collect(model, train(optimizer, setting.steps, lambda: model(words).square().sum()))
