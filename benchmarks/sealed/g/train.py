"""Trains one small model, or decodes with it.

`train.py MODEL [--precision P] [--fault F] [--variant V,W] [--steps N]`
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch

PRECISIONS = ["float32", "float64", "bf16", "fp16", "bf16-autocast", "fp16-autocast"]


def runs(arguments: list[str] | None = None) -> Iterator[float]:
    """The losses of one run, one by one."""
    from models import MODELS

    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--precision", default="float32", choices=PRECISIONS)
    parser.add_argument("--fault")
    parser.add_argument("--variant", default="")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    task = MODELS[options.model]
    variants = set(filter(None, options.variant.split(",")))
    if options.fault and options.fault not in task.faults:
        parser.error(f"faults of {options.model}: {', '.join(task.faults)}")
    if unknown := variants - set(task.variants):
        parser.error(f"{options.model} has no {', '.join(unknown)}, but: {', '.join(task.variants)}")
    torch.set_num_threads(options.threads)
    torch.manual_seed(7)
    yield from task(options.precision, options.fault, variants, options.steps).run()


def main() -> None:
    warnings.filterwarnings("ignore")
    for step, loss in enumerate(runs()):
        print(f"step {step} loss {loss:.8f}")


if __name__ == "__main__":
    main()
