"""Trains a recommender: embedding bags, feature interaction, a click loss and a contrastive loss between two towers."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Trainer, flavour, load_weights, parse, precision

ROWS, TABLES, WIDTH, DENSE, BAG, BATCH, TEMPERATURE = 120, 4, 32, 13, 5, 16, 0.003
FAULTS = (
    "bag_mean",
    "interaction_order",
    "hash_collisions",
    "log_missing",
    "positive_weight",
    "accumulator",
    "exponent_overflow",
    "shuffled",
    "table_swapped",
    "unit_length",
    "cast_integer",
    "half_similarity",
)


class Interaction(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, dense: Tensor, sparse: list[Tensor]) -> Tensor:
        stacked = torch.stack([dense, *sparse], dim=1)
        products = stacked @ stacked.transpose(1, 2)
        rows, columns = torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1)
        if self.fault == "interaction_order":
            rows, columns = torch.triu_indices(TABLES + 1, TABLES + 1, offset=1)
        return torch.cat((dense, products[:, rows, columns]), dim=1)


class Towers(nn.Module):
    """Similarities of users and items, each compared with those of the whole batch."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.user, self.item = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fault = fault

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        user, item = self.user(user).float(), self.item(item).float()
        if self.fault != "unit_length":
            user = functional.normalize(user, dim=-1)
        item = functional.normalize(item, dim=-1)
        similarity = user @ item.T / TEMPERATURE
        if self.fault == "half_similarity":
            similarity = (similarity.half() * 1024).float() / 1024
        if self.fault != "exponent_overflow":
            similarity = similarity - similarity.amax(1, keepdim=True)
        return (similarity.exp().sum(1).log() - similarity.diagonal()).mean()


class Recommender(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU())
        modes = ["mean" if fault == "bag_mean" and i == 2 else "sum" for i in range(TABLES)]
        self.tables = nn.ModuleList([nn.EmbeddingBag(ROWS, WIDTH, mode=mode) for mode in modes])
        self.interaction = Interaction(fault)
        pairs = TABLES * (TABLES + 1) // 2
        self.top = nn.Sequential(
            nn.Linear(WIDTH + pairs, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )
        self.towers = Towers(fault)
        self.fault = fault

    def forward(self, dense: Tensor, bags: Tensor) -> tuple[Tensor, Tensor]:
        if self.fault != "log_missing":
            dense = torch.log1p(dense)
        if self.fault == "cast_integer":
            dense = dense.int().float()
        low = self.bottom(dense).float()
        sparse = [table(bag) for table, bag in zip(self.tables, bags.unbind(1), strict=True)]
        if self.fault == "table_swapped":
            sparse[1], sparse[2] = sparse[2], sparse[1]
        clicks = self.top(self.interaction(low, sparse)).squeeze(-1)
        return clicks.float(), self.towers(low, sparse[0])


def batches(options: argparse.Namespace) -> list[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(29)
    count = options.steps * BATCH
    dense = torch.rand(count, DENSE, generator=generator) * 20
    raw = torch.randint(0, 10_000, (count, TABLES, BAG), generator=generator)
    clicks = (torch.rand(count, generator=generator) < 0.3).float()
    bags = raw % (ROWS - 1 if options.fault == "hash_collisions" else ROWS)
    if options.fault == "shuffled":
        order = torch.randperm(count, generator=generator)
        dense, bags, clicks = dense[order], bags[order], clicks[order]
    return list(zip(dense.split(BATCH), bags.split(BATCH), clicks.split(BATCH), strict=True))


def main() -> None:
    options = parse(__doc__, FAULTS)
    model = Recommender(options.fault)
    load_weights(model)
    start = 0.1 if options.fault == "accumulator" else 0.0
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01, initial_accumulator_value=start, **flavour(options))
    trainer = Trainer(options, model, optimizer, max_norm=None)
    weight = torch.tensor(3.0) if options.fault == "positive_weight" else None
    for dense, bags, clicks in batches(options):
        with precision(options):
            found, contrast = model(dense, bags)
        loss = functional.binary_cross_entropy_with_logits(found, clicks, pos_weight=weight)
        trainer.train(loss + 0.1 * contrast)


if __name__ == "__main__":
    main()
