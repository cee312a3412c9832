"""Two ranks of a small training, each with and without a watch; run as a script, it asserts on every rank."""

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import ulpscope
from ulpscope.trace.reader import open_trace

STEPS = 3


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def batches(rank: int) -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(rank)
    return [torch.randn(5, 4, generator=drawn) for _ in range(STEPS)]


def train(model: nn.Module, rank: int) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for x in batches(rank):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    parameters = [one.detach() for one in model.parameters()]
    return [one.to_local() if isinstance(one, DTensor) else one for one in parameters]


def local_norms(rank: int) -> dict[str, float]:
    """Of the first step's gradients, as one process would have them."""
    net = network()
    net(batches(rank)[0]).square().mean().backward()
    return {name: float(one.grad.norm()) for name, one in net.named_parameters() if one.grad is not None}


def check(out: Path, rank: int, make: Callable[[], nn.Module], prefix: str) -> None:
    unwatched = train(make(), rank)
    model = make()
    with ulpscope.watch(model, out=out, what="training"):
        watched = train(model, rank)
    assert all(torch.equal(one, other) for one, other in zip(unwatched, watched, strict=True))
    (trace,) = [each for each in open_trace(out).ranks if each.info.rank == rank]
    assert trace.info.errors == (), trace.info.errors
    assert trace.steps == (0, 1, 2)
    calls = trace.calls(0).filter(pl.col("kind") == "module_backward").select("id", "module")
    uses = trace.tensors(0).filter(pl.col("role") == "grad_input").join(calls, left_on="call", right_on="id")
    norms = trace.collect(uses.join(trace.values().select("id", "norm"), left_on="value", right_on="id"))
    for name, norm in local_norms(rank).items():
        module, _, place = f"{prefix}.{name}".rpartition(".")
        (found,) = norms.filter(pl.col("module") == module, pl.col("place") == place)["norm"]
        assert abs(found - norm) < 1e-5 * norm, (name, found, norm)


def main(out: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    check(Path(out, "ddp"), rank, lambda: nn.parallel.DistributedDataParallel(copy.deepcopy(network())), "model.module")
    check(Path(out, "fsdp"), rank, lambda: fully_shard(network()), "model")
    torch.distributed.destroy_process_group()
    print(f"rank {rank} ok", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
