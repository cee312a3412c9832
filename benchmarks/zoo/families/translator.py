"""Encoder and decoder over sentences of different lengths: padding, biases that begin at zero, shared embeddings."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Trainer, flavour, parse, precision

FAULTS = ("padding_seen", "norm_eps", "label_smoothing")
WORDS, WIDTH, HEADS, LAYERS, PADDING = 60, 32, 4, 2, 0
BATCH, LENGTH = 6, 11


class Layer(nn.Module):
    """Attention to itself, to the source if there is one, and a feed-forward part, each normed behind its sum."""

    def __init__(self, *, looks_at_source: bool, eps: float = 1e-5) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.source = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) if looks_at_source else None
        self.wide, self.narrow = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, eps=eps) for _ in range(3 if looks_at_source else 2))

    def forward(
        self, x: Tensor, hidden: Tensor | None, later: Tensor | None, source: Tensor | None, unseen: Tensor | None
    ) -> Tensor:
        found = self.own(x, x, x, key_padding_mask=hidden, attn_mask=later, need_weights=False)[0]
        x = self.norms[0](x + found)
        if self.source is not None:
            x = self.norms[1](x + self.source(x, source, source, key_padding_mask=unseen, need_weights=False)[0])
        return self.norms[-1](x + self.narrow(functional.relu(self.wide(x))))


class Translator(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=PADDING)
        self.places = nn.Parameter(0.3 * torch.randn(LENGTH, WIDTH))
        self.encoder = nn.ModuleList(Layer(looks_at_source=False) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(
            Layer(looks_at_source=True, eps=1e-2 if fault == "norm_eps" and number == 1 else 1e-5)
            for number in range(LAYERS)
        )
        self.fault = fault

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding = source == PADDING
        x = self.words(source) * WIDTH**0.5 + self.places[: source.shape[1]]
        for layer in self.encoder:
            x = layer(x, padding, None, None, None)
        y = self.words(target) * WIDTH**0.5 + self.places[: target.shape[1]]
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        unseen = None if self.fault == "padding_seen" else padding
        for layer in self.decoder:
            y = layer(y, None, later, x, unseen)
        return functional.linear(y, self.words.weight)


def sentences(steps: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(31)
    found = []
    for _ in range(steps):
        source, target = (torch.randint(1, WORDS, (BATCH, LENGTH), generator=generator) for _ in range(2))
        for row, length in enumerate((11, 8, 6, 11, 9, 4)):
            source[row, length:] = target[row, length:] = PADDING
        found.append((source, target))
    return found


def train(options: argparse.Namespace, model: Translator, trainer: Trainer) -> None:
    smoothing = 0.0 if options.fault == "label_smoothing" else 0.1
    for source, target in sentences(options.steps):
        with precision(options):
            scores = model(source, target[:, :-1]).flatten(0, 1).float()
            wanted = target[:, 1:].flatten()
            loss = functional.cross_entropy(scores, wanted, ignore_index=PADDING, label_smoothing=smoothing)
        trainer.train(loss)


def main() -> None:
    options = parse(__doc__, FAULTS)
    model = Translator(options.fault)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **flavour(options))
    train(options, model, Trainer(options, model, optimizer))


if __name__ == "__main__":
    main()
