"""What all tasks have: random data, initial weights, precisions, and a register of tasks."""

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

TASKS = {}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


def task(name):
    def register(cls):
        TASKS[name] = cls()
        return cls

    return register


class Task:
    """setup_X runs before the model is built, fault_X and variant_X when it is there; options are of the loop."""

    style = "plain"
    options: ClassVar = {}

    def settings(self, name, precision, steps):
        values = {
            "name": name,
            "precision": precision,
            "steps": steps,
            "lr": 1e-3,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "decay": 0.05,
            "momentum": 0.9,
            "optimizer": "adamw",
            "how": {},
            "clip": 1.0,
            "clipping": "norm",
            "micro": 2,
            "averaged": "loss",
            "unscale": True,
            "decayed": lambda name, p: p.ndim >= 2,
            "smoothing": 0.0,
            "attn": "sdpa",
            "log": False,
            "evaluates": False,
            "workers": 0,
            "prepare": [],
            "generate": {},
            "checkpoint": False,
            "schedule": True,
        }
        return SimpleNamespace(**{**values, **self.options})

    def cast(self, s, value):
        if torch.is_tensor(value) and value.is_floating_point():
            return value.to(DTYPES.get(s.precision, torch.float32))
        return value

    def batch_of(self, s, step, micro=0):
        batch = self.batch(step, micro)
        for prepare in s.prepare:
            batch = prepare(batch)
        return {k: self.cast(s, v) for k, v in batch.items()}

    def loss(self, s, model, batch):
        return model(**batch).loss

    def variant_foreach(self, model, s):
        s.how["foreach"] = True

    def variant_single(self, model, s):
        s.how["foreach"] = False

    def variant_fused(self, model, s):
        s.how["fused"] = True

    def variant_log(self, model, s):
        s.log = True

    def variant_evaluates(self, model, s):
        s.evaluates = True

    def variant_workers(self, model, s):
        s.workers = 2

    def setup_eager(self, s):
        s.attn = "eager"

    def setup_sdpa(self, s):
        s.attn = "sdpa"

    def variant_checkpoint(self, model, s):
        s.checkpoint = True
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def variant_channels_last(self, model, s):
        model.to(memory_format=torch.channels_last)

        def prepare(batch):
            return {
                k: v.contiguous(memory_format=torch.channels_last) if torch.is_tensor(v) and v.ndim == 4 else v
                for k, v in batch.items()
            }

        s.prepare.append(prepare)


def rng(step, micro=0, salt=0):
    return torch.Generator().manual_seed(1_000_003 * salt + 1009 * step + 17 * micro + 5)


def randn(*shape, step=0, micro=0, salt=0):
    return torch.randn(*shape, generator=rng(step, micro, salt))


def randint(low, high, shape, step=0, micro=0, salt=0):
    return torch.randint(low, high, shape, generator=rng(step, micro, salt))


def autocast(s):
    kind = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}.get(s.precision)
    return torch.autocast("cpu", dtype=kind) if kind else nullcontext()


@torch.no_grad()
def spread(model, gain=1.0, embedding=0.5, seed=3):
    """Weights as after some training: matrices that keep the scale, norms near one, biases that are not zero."""
    g = torch.Generator().manual_seed(seed)
    seen = set()

    def normal(p, std):
        p.copy_(torch.randn(p.shape, generator=g) * std)

    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            if id(p) in seen:
                continue
            seen.add(id(p))
            kind = type(module).__name__
            if isinstance(module, nn.Embedding):
                normal(p, embedding)
                if module.padding_idx is not None:
                    p[module.padding_idx] = 0
            elif isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)) and name == "weight":
                normal(p, gain / math.sqrt(p[0].numel()))
            elif kind == "Conv1D" and name == "weight":
                normal(p, gain / math.sqrt(p.shape[0]))
            elif name == "bias":
                normal(p, 0.05)
            elif "Norm" in kind and p.ndim == 1:
                p.add_(torch.randn(p.shape, generator=g) * 0.1)
    return model


def token_loss(logits, labels, smoothing=0.0):
    return F.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), label_smoothing=smoothing)


def bound(module, function):
    module.forward = function.__get__(module)
