"""The model that two processes train together; started by torchrun.

torchrun --standalone --nproc-per-node 2 benchmarks/ddp_model.py --out DIR [--trace TRACE --level api --save stats]

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
from torch import distributed  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from models import Results, Setting, Tensors, collect, make_gpt  # noqa: E402


def train_together(setting: Setting) -> Results:
    """Each step accumulates once without and once with exchange of gradients."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(setting.seed)
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


def average(loss: torch.Tensor) -> torch.Tensor:
    total = loss.detach().clone()
    work = distributed.all_reduce(total, async_op=True)
    if work is not None:
        work.wait()
    everyone = [torch.zeros_like(total) for _ in range(distributed.get_world_size())]
    distributed.all_gather(everyone, total)
    return torch.stack(everyone).mean() / distributed.get_world_size()


def run(setting: Setting) -> Tensors:
    distributed.init_process_group("gloo")
    try:
        return {**train_together(setting).flat(), "random torch": torch.get_rng_state()}
    finally:
        distributed.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        results = run(Setting(seed=options.seed, steps=options.steps))
    torch.save(results, options.out / f"rank{os.environ['RANK']}.pt")
    return 0


def capturing(options: argparse.Namespace) -> contextlib.AbstractContextManager[object]:
    if options.trace is None:
        return contextlib.nullcontext()
    from ulpscope.workflows.capture import capture

    return capture(options.trace, level=options.level, save=options.save, verify=options.verify, overwrite=True)


if __name__ == "__main__":
    sys.exit(main())
