"""What all scripts share: options, precisions and the plain training loop."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

DTYPES = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
AUTOCAST = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}
PRECISIONS = ("fp32", *DTYPES, *AUTOCAST)


@dataclass
class Options:
    precision: str = "fp32"
    fault: str = ""
    variants: tuple[str, ...] = ()
    steps: int = 2


OPTIONS = Options()


def fault(name: str) -> bool:
    return OPTIONS.fault == name


def variant(name: str) -> bool:
    return name in OPTIONS.variants


def dtype() -> torch.dtype:
    return DTYPES.get(OPTIONS.precision, torch.float32)


def full(x: Tensor) -> Tensor:
    """At least float32, for what has no half precision kernel or needs the range."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed)).to(dtype())


class Script:
    """One experiment: `setup` makes networks and optimizers, `batch` the data, `loss` the objective."""

    faults: ClassVar[tuple[str, ...]] = ()
    variants: ClassVar[tuple[str, ...]] = ()
    clip = 0.0

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=OPTIONS.precision == "fp16-autocast")
        self.nets: list[nn.Module] = []
        torch.manual_seed(0)
        self.setup()

    def setup(self) -> None:
        raise NotImplementedError

    def batch(self, step: int) -> Any:
        raise NotImplementedError

    def loss(self, batch: Any) -> Tensor:
        raise NotImplementedError

    def net(self, module: nn.Module) -> Any:
        module = module.to(dtype())
        self.nets.append(module)
        return module

    def autocast(self) -> Any:
        kind = AUTOCAST.get(OPTIONS.precision)
        return nullcontext() if kind is None else torch.autocast("cpu", dtype=kind)

    def update(self, loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        for optimizer in optimizers:
            if self.clip:
                self.scaler.unscale_(optimizer)
                params = [p for group in optimizer.param_groups for p in group["params"]]
                nn.utils.clip_grad_norm_(params, self.clip)
            self.scaler.step(optimizer)
        self.scaler.update()

    def report(self, step: int, loss: Tensor | float) -> None:
        value = float(loss.detach()) if isinstance(loss, Tensor) else loss
        self.losses.append(value)
        print(f"step {step} loss {value:.9g}", flush=True)

    def run(self) -> None:
        for step in range(OPTIONS.steps):
            batch = self.batch(step)
            with self.autocast():
                loss = self.loss(batch)
            self.update(loss, self.optimizer)
            self.report(step, loss)


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers.append(nn.Linear(a, b))
        if i < len(sizes) - 2:
            layers.append(act())
    if norm:
        layers.append(nn.LayerNorm(sizes[-1]))
    return nn.Sequential(*layers)
