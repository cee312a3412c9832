"""What the scripts share: options, precision, data, and one step of an optimizer."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

PRECISIONS = ("fp32", "fp64", "bf16", "bf16-autocast", "fp16-autocast")
SCRIPTS: dict[str, type[Script]] = {}


@dataclass(frozen=True)
class Options:
    precision: str = "fp32"
    fault: str = ""
    variants: tuple[str, ...] = ()
    steps: int = 2


def script(name: str) -> Callable[[type[Script]], type[Script]]:
    def register(cls: type[Script]) -> type[Script]:
        SCRIPTS[name] = cls
        return cls

    return register


class Script:
    """Builds networks in `build`, and trains them in `step`; most have one network, one optimizer and a `loss`."""

    faults: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    clip = 0.0
    net: Any
    optimizer: torch.optim.Optimizer

    def __init__(self, options: Options) -> None:
        self.options = options
        self.precision = options.precision
        torch.set_default_dtype(torch.float64 if self.precision == "fp64" else torch.float32)
        torch.set_num_threads(2 if self.way("threads") else 1)
        torch.set_float32_matmul_precision("high" if self.way("matmul") else "highest")
        torch.manual_seed(0)
        self.random = torch.Generator().manual_seed(1)
        self.nets: list[nn.Module] = []
        self.losses: list[float] = []
        self.patches = contextlib.ExitStack()
        scaled = self.precision == "fp16-autocast"
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        self.build()

    def build(self) -> None:
        raise NotImplementedError

    def loss(self, number: int) -> Tensor:
        raise NotImplementedError

    def step(self, number: int) -> float:
        with self.autocast():
            loss = self.loss(number)
        return self.optimize(loss, self.optimizer, self.clip)

    def run(self) -> None:
        torch.manual_seed(2)
        random.seed(2)
        with self.patches:
            for number in range(self.options.steps):
                self.losses.append(float(self.step(number)))
                print(f"step {number} loss {self.losses[-1]:.9g}")

    def has(self, fault: str) -> bool:
        if fault not in self.faults:
            raise KeyError(fault)
        return self.options.fault == fault

    def way(self, variant: str) -> bool:
        return variant in self.options.variants

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else torch.get_default_dtype()

    def add(self, net: Any) -> Any:
        """In the precision of the weights; tables of frequencies stay as they are, as in from_pretrained."""
        kept = {n: b for n, b in net.named_buffers() if "inv_freq" in n}
        net.to(self.dtype)
        for name, buffer in kept.items():
            path, _, last = name.rpartition(".")
            setattr(net.get_submodule(path), last, buffer)
        self.nets.append(net)
        return net

    def wide(self, value: Tensor) -> Tensor:
        """As losses are computed: in float32 at least."""
        return value.double() if self.precision == "fp64" else value.float()

    def autocast(self) -> Any:
        kinds = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}
        if self.precision not in kinds:
            return contextlib.nullcontext()
        return torch.autocast("cpu", kinds[self.precision])

    def optimize(self, loss: Tensor, optimizer: torch.optim.Optimizer, clip: float = 0.0) -> float:
        self.scaler.scale(loss).backward()
        self.apply(optimizer, clip)
        return float(loss.detach())

    def apply(self, optimizer: torch.optim.Optimizer, clip: float = 0.0) -> None:
        if clip:
            self.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_((p for g in optimizer.param_groups for p in g["params"]), clip)
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad()

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random).to(self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.random).to(self.dtype)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.random)


def modules_of(net: nn.Module, kind: Any) -> Iterable[tuple[str, nn.Module]]:
    return [(name, module) for name, module in net.named_modules() if isinstance(module, kind)]


def replace(net: nn.Module, name: str, module: nn.Module) -> None:
    path, _, last = name.rpartition(".")
    setattr(net.get_submodule(path), last, module)
