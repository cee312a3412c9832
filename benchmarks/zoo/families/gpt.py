"""Trains a small GPT on texts of several lengths: LayerNorm, gelu, attention written out, dropout, tied head."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from training import Trainer, flavour, load_weights, parse, precision

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 200, 64, 4, 3, 32, 4
PADDING = 0
FAULTS = (
    "gelu_tanh",
    "norm_eps",
    "causal_mask",
    "padding_mask",
    "head_scale",
    "dropout_seed",
    "dropout_rate",
    "bias_dropped",
    "positions_shifted",
    "head_untied",
    "decayed_norm",
    "order_late",
    "ignore_index",
    "middle_left_out",
)
PLACES = {"gelu_tanh": 2, "norm_eps": 1, "causal_mask": 1, "head_scale": 2, "dropout_rate": 1, "bias_dropped": 1}


class Attention(nn.Module):
    def __init__(self, fault: str, options: argparse.Namespace) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.0 if options.attention == "sdpa" else options.rate)
        self.fault, self.kind = fault, options.attention

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        length = x.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool).tril(1 if self.fault == "causal_mask" else 0)
        seen = seen & padding[:, None, None, :]
        if self.kind == "sdpa":
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            mixed = self.dropout(self.weigh(q, k, seen)) @ v
        return self.proj(mixed.transpose(1, 2).reshape(x.shape))

    def weigh(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        scale = torch.full((HEADS, 1, 1), q.shape[-1] ** -0.5, dtype=q.dtype)
        if self.fault == "head_scale":
            scale[2] = q.shape[-1] ** -0.25
        return ((q @ k.transpose(-2, -1)) * scale).masked_fill(~seen, float("-inf")).softmax(-1)


class MLP(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=fault != "bias_dropped")
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.approximate = "tanh" if fault == "gelu_tanh" else "none"

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x), approximate=self.approximate))


class Block(nn.Module):
    def __init__(self, fault: str, options: argparse.Namespace) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention(fault, options)
        self.norm2, self.mlp = nn.LayerNorm(WIDTH, eps=1e-3 if fault == "norm_eps" else 1e-5), MLP(fault)
        self.dropout = nn.Dropout(2 * options.rate if fault == "dropout_rate" else options.rate)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), padding)
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        fault = options.fault
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH + 1, WIDTH)
        places = [fault if PLACES.get(fault, i) == i else "none" for i in range(LAYERS)]
        self.blocks = nn.ModuleList([Block(place, options) for place in places])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.fault, self.checkpoint = fault, options.checkpoint

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = (tokens != PADDING).sum(1)
        places = torch.arange(tokens.shape[1])
        padding = places < (lengths[:, None] - 1 if self.fault == "padding_mask" else lengths[:, None])
        if self.fault == "positions_shifted":
            places = places + 1
        x = self.tokens(tokens) + self.positions(places)
        for number, block in enumerate(self.blocks):
            if self.fault == "middle_left_out" and number == 1:
                continue
            x = self.call(block, x, padding)
        return self.head(self.norm(x))

    def call(self, block: nn.Module, x: Tensor, padding: Tensor) -> Tensor:
        if self.checkpoint == "none":
            return block(x, padding)
        return checkpoint(block, x, padding, use_reentrant=self.checkpoint == "reentrant")


class Trained(nn.Module):
    """The model with its loss, as some trainers wrap it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        return self.network(tokens)


def batches(options: argparse.Namespace) -> list[Tensor]:
    generator = torch.Generator().manual_seed(11)
    texts = torch.randint(1, VOCABULARY, (options.steps, BATCH, LENGTH + 1), generator=generator)
    for row, length in enumerate((33, 29, 20, 26)):
        texts[:, row, length:] = PADDING
    if options.fault == "order_late":
        texts[2, 0] = texts[0, 0]
    if options.flipped:
        texts = texts.flip(1)
    return list(texts)


def wrapped(model: nn.Module, how: str) -> nn.Module:
    if how == "ddp":
        store = distributed.FileStore(str(Path(tempfile.mkdtemp()) / "store"), 1)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        return DistributedDataParallel(model)
    return Trained(model) if how == "outer" else model


def make_optimizer(options: argparse.Namespace, model: GPT) -> torch.optim.Optimizer:
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.dim() > 1 or (options.fault == "decayed_norm" and name == "blocks.1.norm1.weight")
        (decayed if matrix else plain).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95), **flavour(options))


def report(logits: Tensor, targets: Tensor) -> None:
    """Metrics beside the training; nothing depends on them."""
    with torch.no_grad():
        wide = logits.detach().float()
        hits = (wide.argmax(-1) == targets).float().mean()
        entropy = -(wide.softmax(-1) * wide.log_softmax(-1)).sum(-1).mean()
        print(f"accuracy {hits.item():.3f} entropy {entropy.item():.3f}")


def main() -> None:
    kinds = {"attention": ("eager", "sdpa"), "checkpoint": ("none", "reentrant", "saved")}
    options = parse(__doc__, FAULTS, **kinds, wrap=("none", "ddp", "outer"), dropout=("no", "yes"))
    options.rate = 0.1 if options.dropout == "yes" else 0.0
    model = GPT(options)
    model.head.weight = model.tokens.weight
    load_weights(model, std=0.05)
    if options.fault == "head_untied":
        model.head.weight = nn.Parameter(model.tokens.weight.detach().clone())
    model.to(torch.bfloat16 if options.dtype == "bf16" else torch.float32)
    together = wrapped(model, options.wrap)
    trainer = Trainer(options, model, make_optimizer(options, model))
    torch.manual_seed(2 if options.fault == "dropout_seed" else 1)
    ignored = -100 if options.fault == "ignore_index" else PADDING
    for texts in batches(options):
        tokens, targets = texts[:, :-1], texts[:, 1:]
        with precision(options):
            logits = together(tokens)
            if options.metrics:
                logits = logits.float().to(logits.dtype)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=ignored)
        if options.metrics:
            report(logits, targets)
        trainer.train(loss)
    if options.wrap == "ddp":
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
