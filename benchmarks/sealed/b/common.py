"""What all scripts share: settings of a run, precision, deterministic data, kernels that lie."""
import argparse
import contextlib
import os
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

DTYPES = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16, "bf16": torch.bfloat16, "fp16": torch.float16}


class Config:
    def __init__(self, model, precision="fp32", fault=None, variant=None, steps=2):
        self.model, self.precision, self.fault, self.variant, self.steps = model, precision, fault, variant, steps
        self.losses = []

    def amp(self):
        if self.precision.endswith("autocast"):
            return torch.autocast("cpu", dtype=DTYPES[self.precision])
        return contextlib.nullcontext()

    @property
    def dtype(self):
        """Of weights and of inputs."""
        return DTYPES[self.precision] if self.precision in ("bf16", "fp16") else torch.float32

    def scaler(self, init_scale=2.0**10):
        return torch.amp.GradScaler("cpu", init_scale=init_scale, enabled=self.precision == "fp16-autocast")

    def log(self, step, loss, **more):
        loss = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
        self.losses.append(loss)
        print(f"step {step} loss {loss:.6f}", *(f"{k} {v.item() if isinstance(v, torch.Tensor) else v:.6f}" for k, v in more.items()), flush=True)


def seed_all(seed=0):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def gen(seed):
    return torch.Generator().manual_seed(seed)


class LyingKernel(TorchDispatchMode):
    """Every aten kernel for which `when(func, args, nth)` holds gives `alter(out, args)` instead of what it computed."""

    def __init__(self, op, alter, when=None):
        super().__init__()
        self.op, self.alter, self.when, self.count = op, alter, when, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in self.op:
            if self.when is None or self.when(args, out, self.count):
                out = self.alter(out, args)
            self.count += 1
        return out


def parse(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--precision", default="fp32", choices=["fp32", "bf16-autocast", "fp16-autocast", "bf16", "fp16"])
    p.add_argument("--fault")
    p.add_argument("--variant")
    p.add_argument("--steps", type=int, default=2)
    a = p.parse_args(argv)
    return Config(a.model, a.precision, a.fault, a.variant, a.steps)
