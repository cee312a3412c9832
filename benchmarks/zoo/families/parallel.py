"""Trains a model in several processes, started by torchrun: gradients averaged by hand or by DDP, or layers split."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd import Function
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from training import Trainer, flavour, load_weights, parse, precision

INPUTS, WIDTH, CLASSES, DEPTH, BATCH = 24, 48, 10, 3, 8
FAULTS = (
    "reduce_missing",
    "reduce_one_missing",
    "not_divided",
    "reduce_max",
    "group_of_one",
    "split_reduce_missing",
    "split_gradient_missing",
    "rank_eps",
    "rank_data",
    "rank_weights",
    "rank_gradient",
)


class Gather(Function):
    """Adds up what the ranks computed; its backward is the identity."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Spread(Function):
    """The identity, whose backward adds up the gradients of the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone()
        distributed.all_reduce(total)
        return total


class Split(nn.Module):
    """A feed-forward layer whose hidden units are spread over the ranks."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.fault == "split_gradient_missing" else Spread.apply(x)
        part = self.down(functional.gelu(self.up(x)))
        return part if self.fault == "split_reduce_missing" else Gather.apply(part)


class Block(nn.Module):
    def __init__(self, fault: str, *, split: bool) -> None:
        super().__init__()
        wrong = fault == "rank_eps" and int(os.environ["RANK"]) == 1
        self.norm = nn.LayerNorm(WIDTH, eps=1e-1 if wrong else 1e-5)
        plain = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.mlp = Split(fault) if split else plain

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class Network(nn.Module):
    def __init__(self, fault: str, *, split: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(INPUTS, WIDTH)
        self.blocks = nn.ModuleList([Block(fault if i == 1 else "none", split=split) for i in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def exchange(model: nn.Module, fault: str, group: distributed.ProcessGroup | None) -> None:
    """Averages the gradients over the ranks."""
    ranks, rank = distributed.get_world_size(), distributed.get_rank()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None
        if fault == "reduce_missing" or (fault == "reduce_one_missing" and name == "blocks.1.mlp.0.weight"):
            continue
        if fault == "rank_gradient" and rank == 1 and name == "blocks.2.mlp.2.weight":
            gradient.mul_(1.5)
        how = distributed.ReduceOp.MAX if fault == "reduce_max" else distributed.ReduceOp.SUM
        distributed.all_reduce(gradient, op=how, group=group)
        if fault != "not_divided":
            gradient.div_(ranks)


def batch_at(options: argparse.Namespace, step: int, rank: int) -> tuple[Tensor, Tensor]:
    source = 0 if options.mode == "split" else rank
    if options.fault == "rank_data" and rank == 1:
        source = 0
    generator = torch.Generator().manual_seed(100 * step + source)
    return torch.randn(BATCH, INPUTS, generator=generator), torch.randint(0, CLASSES, (BATCH,), generator=generator)


def prepared(options: argparse.Namespace, rank: int) -> Network:
    model = Network(options.fault, split=options.mode == "split")
    load_weights(model)
    with torch.no_grad():
        if options.mode == "split":
            for block in model.blocks:
                block.mlp.down.weight.mul_(1 + rank)
        if options.fault == "rank_weights" and rank == 1:
            model.blocks[0].mlp[2].weight.copy_(torch.randn(WIDTH, 2 * WIDTH) * 0.1)
    return model


def main() -> None:
    options = parse(__doc__, FAULTS, mode=("manual", "ddp", "split"))
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    alone = [distributed.new_group([member]) for member in range(distributed.get_world_size())]
    group = alone[rank] if options.fault == "group_of_one" else None
    model = prepared(options, rank)
    together = DistributedDataParallel(model) if options.mode == "ddp" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **flavour(options))
    trainer = Trainer(options, model, optimizer, max_norm=None)
    for step in range(options.steps):
        x, labels = batch_at(options, step, rank)
        with precision(options):
            loss = functional.cross_entropy(together(x).float(), labels)
        trainer.zero_grad()
        trainer.backward(loss)
        if options.mode == "manual":
            exchange(model, options.fault, group)
        trainer.step()
        print(f"rank {rank} step {step} loss {loss.item():.9f}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
