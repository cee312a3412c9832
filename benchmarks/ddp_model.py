"""What two processes compute together; started by torchrun.

torchrun --standalone --nproc-per-node 2 benchmarks/ddp_model.py --kind ddp --out DIR [--trace TRACE --level api]

Writes DIR/rankN.pt: what rank N computed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import torch  # noqa: E402
import torch.distributed.nn.functional as differentiable  # noqa: E402
from torch import distributed  # noqa: E402
from torch.distributed._functional_collectives import all_reduce  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from models import Results, Setting, Tensors, collect, make_gpt, train  # noqa: E402


def train_ddp(setting: Setting) -> Results:
    """Each step accumulates once without and once with exchange of gradients."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    model, tokens, targets = make_gpt(setting)
    together = DistributedDataParallel(model, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, averages = [], []
    for _ in range(setting.steps):
        optimizer.zero_grad()
        with together.no_sync():
            together(targets[rank::ranks], tokens[rank::ranks]).backward()
        loss = together(tokens[rank::ranks], targets[rank::ranks])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        averages.append(average(loss))
    return collect(model, losses, averages=torch.stack(averages))


def train_ddp_hooked(setting: Setting) -> Results:
    """Gradients are views of buckets that are exchanged in fp16; a static graph; clipping."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    model, tokens, targets = make_gpt(setting)
    together = DistributedDataParallel(model, bucket_cap_mb=1, gradient_as_bucket_view=True, static_graph=True)
    together.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(setting.steps):
        optimizer.zero_grad()
        loss = together(tokens[rank::ranks], targets[rank::ranks])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return collect(model, losses)


def train_fsdp(setting: Setting) -> Results:
    """Every rank holds a part of each weight, which is gathered for as long as it is used."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    model, tokens, targets = make_gpt(setting)
    mesh = init_device_mesh(setting.device, (ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(setting.steps):
        optimizer.zero_grad()
        loss = model(tokens[rank::ranks], targets[rank::ranks])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    results = collect(model, losses)
    for part in (results.gradients, results.weights):
        part.update({name: tensor.full_tensor() for name, tensor in part.items() if isinstance(tensor, DTensor)})
    return results


def train_tensor_parallel(setting: Setting) -> Results:
    """A feed-forward layer split by columns, then by rows; its tensors are DTensors."""
    mesh = init_device_mesh(setting.device, (distributed.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(setting.device)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(6, 8).to(setting.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    losses = train(optimizer, setting.steps, lambda: model(x).square().mean())
    results = collect(model, losses)
    for part in (results.gradients, results.weights):
        part.update({name: tensor.full_tensor() for name, tensor in part.items() if isinstance(tensor, DTensor)})
    return results


def exchange(setting: Setting) -> Results:
    """Every collective, in place and functional, some under autograd, some not waited for at once."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(setting.seed + rank)
    weight = torch.randn(4, 4).to(setting.device).requires_grad_()
    outputs = {}
    for step in range(setting.steps):
        weight.grad = None
        total = differentiable.all_reduce(weight * (rank + 1))
        parts = differentiable.all_gather(weight.tanh())
        functional = all_reduce(weight.detach() * step, "sum", list(range(ranks)))
        (total.square().sum() + torch.stack(list(parts)).sin().sum() + functional.sum()).backward()
        sent = weight.detach() + step
        distributed.broadcast(sent, src=0)
        mixed = torch.empty_like(sent)
        distributed.all_to_all_single(mixed, sent * (rank + 2))
        slow = mixed.clone()
        work = distributed.all_reduce(slow, async_op=True)
        meanwhile = mixed.square()
        work.wait()
        pairs = [torch.empty_like(sent), sent * 3]
        requests = [distributed.isend(pairs[1], 1 - rank), distributed.irecv(pairs[0], 1 - rank)]
        for request in requests:
            request.wait()
        objects: list[object] = [None] * ranks
        distributed.all_gather_object(objects, {"rank": rank, "sum": float(sent.sum())})
        distributed.barrier()
        outputs.update({f"{step} slow": slow, f"{step} meanwhile": meanwhile, f"{step} received": pairs[0]})
        outputs[f"{step} gradient"] = weight.grad.clone()
        weight.data.sub_(weight.grad, alpha=0.1)
    return Results(weights={"weight": weight.detach()}, outputs=outputs)


KINDS = {
    "ddp": train_ddp,
    "ddp_hooked": train_ddp_hooked,
    "fsdp": train_fsdp,
    "tensor_parallel": train_tensor_parallel,
    "collectives": exchange,
}


def average(loss: torch.Tensor) -> torch.Tensor:
    total = loss.detach().clone()
    work = distributed.all_reduce(total, async_op=True)
    if work is not None:
        work.wait()
    everyone = [torch.zeros_like(total) for _ in range(distributed.get_world_size())]
    distributed.all_gather(everyone, total)
    return torch.stack(everyone).mean() / distributed.get_world_size()


def run(kind: str, setting: Setting) -> Tensors:
    distributed.init_process_group("gloo")
    torch.manual_seed(setting.seed)
    try:
        return {**KINDS[kind](setting).flat(), "random torch": torch.get_rng_state()}
    finally:
        distributed.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default="ddp")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--level", default="api")
    parser.add_argument("--save", default="stats")
    parser.add_argument("--verify", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with capturing(options):
        results = run(options.kind, Setting(seed=options.seed, steps=options.steps))
    torch.save(results, options.out / f"rank{os.environ['RANK']}.pt")
    return 0


def capturing(options: argparse.Namespace) -> contextlib.AbstractContextManager[object]:
    if options.trace is None:
        return contextlib.nullcontext()
    from ulpscope.workflows.run.python_capture import capture

    return capture(options.trace, level=options.level, save=options.save, verify=options.verify, overwrite=True)


if __name__ == "__main__":
    sys.exit(main())
