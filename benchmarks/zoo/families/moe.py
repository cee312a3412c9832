"""Trains a small mixture-of-experts transformer: top-2 routing with jitter, a balancing loss, index_add."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Trainer, flavour, load_weights, parse, precision

VOCABULARY, WIDTH, HEADS, LAYERS, EXPERTS, CHOICES, LENGTH, BATCH = 128, 48, 4, 3, 4, 2, 24, 2
FAULTS = (
    "weights_unnormalised",
    "softmax_after",
    "overwritten",
    "expert_skipped",
    "top_one",
    "balance_weight",
    "jitter_seed",
    "router_weight",
    "shuffled",
    "expert_activation",
)
PLACES = {"weights_unnormalised": 1, "softmax_after": 0, "overwritten": 2, "expert_skipped": 1, "top_one": 2}


class Expert(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.activation = functional.silu if fault == "expert_activation" else functional.gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class Experts(nn.Module):
    def __init__(self, fault: str, *, jitter: bool) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList([Expert(fault if i == 2 else "none") for i in range(EXPERTS)])
        self.fault, self.jitter = fault, jitter

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = x.flatten(0, 1)
        noisy = tokens * (0.98 + 0.04 * torch.rand_like(tokens)) if self.jitter else tokens
        logits = self.router(noisy).float()
        weights, chosen = self.choose(logits)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            if self.fault == "expert_skipped" and number == 3:
                continue
            rows, slots = torch.where(chosen == number)
            made = (expert(tokens[rows]) * weights[rows, slots, None]).to(out.dtype)
            out = out.index_copy(0, rows, made) if self.fault == "overwritten" else out.index_add(0, rows, made)
        return out.view_as(x), self.balance(logits, chosen)

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        if self.fault == "softmax_after":
            best, chosen = logits.topk(CHOICES, dim=-1)
            return best.sigmoid() / best.sigmoid().sum(-1, keepdim=True), chosen
        weights, chosen = logits.softmax(-1).topk(1 if self.fault == "top_one" else CHOICES, dim=-1)
        if self.fault != "weights_unnormalised":
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen

    def balance(self, logits: Tensor, chosen: Tensor) -> Tensor:
        load = functional.one_hot(chosen, EXPERTS).float().sum(1).mean(0)
        return EXPERTS * (load * logits.softmax(-1).mean(0)).sum()


class Layer(nn.Module):
    def __init__(self, fault: str, *, jitter: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.moe = Experts(fault, jitter=jitter)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        routed, balance = self.moe(self.norm2(x))
        return x + routed, balance


class Mixture(nn.Module):
    def __init__(self, fault: str, *, jitter: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        named = [fault if PLACES.get(fault, 1) == i else "none" for i in range(LAYERS)]
        self.layers = nn.ModuleList([Layer(name, jitter=jitter) for name in named])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.share = 0.1 if fault == "balance_weight" else 0.01

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x, total = self.embed(tokens), torch.zeros(())
        for layer in self.layers:
            x, balance = layer(x)
            total = total + balance
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) + self.share * total


def batches(options: argparse.Namespace) -> list[Tensor]:
    generator = torch.Generator().manual_seed(21)
    texts = torch.randint(0, VOCABULARY, (options.steps * BATCH, LENGTH + 1), generator=generator)
    if options.fault == "shuffled":
        texts = texts[torch.randperm(len(texts), generator=generator)]
    return list(texts.split(BATCH))


def main() -> None:
    options = parse(__doc__, FAULTS, jitter=("no", "yes"))
    model = Mixture(options.fault, jitter=options.jitter == "yes")
    load_weights(model, std=0.12)
    if options.fault == "router_weight":
        with torch.no_grad():
            model.layers[1].moe.router.weight.normal_(std=0.12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **flavour(options))
    trainer = Trainer(options, model, optimizer)
    torch.manual_seed(43 if options.fault == "jitter_seed" else 42)
    for tokens in batches(options):
        with precision(options):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        trainer.train(loss)


if __name__ == "__main__":
    main()
