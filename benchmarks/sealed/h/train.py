"""Trains or evaluates a small model: python train.py MODEL [--precision P] [--fault F] [--variant V,W] [--steps N]."""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import audio
import backbones
import dense
import diffusion
import selfsup
import torch
from common import AUTOCAST, DTYPES, TASKS, Options

__all__ = ["audio", "backbones", "dense", "diffusion", "main", "selfsup"]


def main(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=sorted(TASKS))
    parser.add_argument("--precision", default="float32", choices=["float32", *DTYPES, *AUTOCAST])
    parser.add_argument("--fault", default="")
    parser.add_argument("--variant", default="")
    parser.add_argument("--steps", type=int, default=2)
    given = parser.parse_args(arguments)
    variants = tuple(v for v in given.variant.split(",") if v)
    options = Options(given.model, given.precision, given.fault, variants, given.steps)
    torch.set_num_threads(2 if "threads" in variants else 1)
    torch.manual_seed(0)
    TASKS[given.model](options).run()
    return options


if __name__ == "__main__":
    main()
