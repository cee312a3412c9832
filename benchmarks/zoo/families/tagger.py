"""Trains a tagger: word embeddings, a two-way LSTM, a GRU written out; gradients of two micro-batches are added up."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Trainer, flavour, load_weights, parse, precision

WORDS, TAGS, WIDTH, LENGTH, BATCH, PARTS = 150, 12, 32, 12, 6, 2
FAULTS = (
    "reset_after",
    "state_carried",
    "ignore_index",
    "parts_undivided",
    "padding_row",
    "forget_bias",
    "update_gate",
    "optimizer_eps",
    "words_shifted",
    "mean_over_padding",
)


class GRU(nn.Module):
    """One direction, step by step; the candidate's hidden part is gated after its product, as cuDNN does."""

    def __init__(self, before: int, fault: str) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(before, 3 * WIDTH)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        gates, state, found = self.outer(x), torch.zeros(x.shape[0], WIDTH), []
        for gate in gates.unbind(1):
            state = self.advance(gate, state)
            found.append(state)
        return torch.stack(found, dim=1)

    def advance(self, gate: Tensor, state: Tensor) -> Tensor:
        reset, update, new = gate.chunk(3, dim=-1)
        reset_inner, update_inner, new_inner = self.inner(state).chunk(3, dim=-1)
        reset, update = torch.sigmoid(reset + reset_inner), torch.sigmoid(update + update_inner)
        if self.fault == "reset_after":
            weight, bias = self.inner.weight[2 * WIDTH :], self.inner.bias[2 * WIDTH :]
            new_inner, reset = functional.linear(reset * state, weight, bias), torch.ones_like(reset)
        new = torch.tanh(new + reset * new_inner)
        if self.fault == "update_gate":
            return update * new + (1 - update) * state
        return (1 - update) * new + update * state


class Tagger(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=None if fault == "padding_row" else 0)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = GRU(2 * WIDTH, fault)
        self.topic, self.tags = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, TAGS)
        self.fault, self.state = fault, None

    def forward(self, words: Tensor) -> Tensor:
        hidden, state = self.lstm(self.words(words), self.state)
        if self.fault == "state_carried":
            self.state = tuple(part.detach() for part in state)
        hidden = self.gru(hidden)
        known = (words != 0).unsqueeze(-1)
        if self.fault == "mean_over_padding":
            mean = hidden.mean(1, keepdim=True)
        else:
            mean = (hidden * known).sum(1, keepdim=True) / known.sum(1, keepdim=True)
        topic = torch.tanh(self.topic(mean)).expand_as(hidden)
        return self.tags(torch.cat((hidden, topic), dim=-1))


def batches(options: argparse.Namespace) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(13)
    found = []
    for _ in range(options.steps):
        words = torch.randint(1, WORDS, (BATCH, LENGTH), generator=generator)
        tags = torch.randint(1, TAGS, (BATCH, LENGTH), generator=generator)
        for row, length in enumerate((12, 9, 7, 12, 10, 5)):
            words[row, length:] = tags[row, length:] = 0
        if options.fault == "words_shifted":
            words = torch.where(words > 0, words % (WORDS - 1) + 1, words)
        found.append((words, tags))
    return found


def train(options: argparse.Namespace, model: Tagger, trainer: Trainer) -> None:
    ignored = -100 if options.fault == "ignore_index" else 0
    divisor = 1 if options.fault == "parts_undivided" else PARTS
    for words, tags in batches(options):
        trainer.zero_grad()
        for some_words, some_tags in zip(words.chunk(PARTS), tags.chunk(PARTS), strict=True):
            with precision(options):
                scores = model(some_words)
                loss = functional.cross_entropy(scores.flatten(0, 1).float(), some_tags.flatten(), ignore_index=ignored)
            trainer.backward(loss / divisor)
        trainer.step()
        print(f"loss {loss.item():.9f}", flush=True)


def main() -> None:
    options = parse(__doc__, FAULTS)
    model = Tagger(options.fault)
    load_weights(model)
    with torch.no_grad():
        model.words.weight[0] = 0
        for name, parameter in model.lstm.named_parameters():
            if "bias_ih" in name:
                parameter[WIDTH : 2 * WIDTH] = 0.0 if options.fault == "forget_bias" else 1.0
    eps = 1e-6 if options.fault == "optimizer_eps" else 1e-8
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=1e-3, alpha=0.95, eps=eps, **({} if options.update == "default" else flavour(options))
    )
    train(options, model, Trainer(options, model, optimizer, max_norm=0.5))


if __name__ == "__main__":
    main()
