"""What all scripts share: the command line, the precision of a run, and data with fixed seeds."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

WEIGHTS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
AUTOCAST = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}
PRECISIONS = ["fp32", *AUTOCAST, *WEIGHTS]


@dataclass(frozen=True)
class Options:
    """One run, as the command line asks for it."""

    model: str
    precision: str = "fp32"
    fault: str = ""
    variant: str = ""
    steps: int = 2

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and inputs."""
        return WEIGHTS.get(self.precision, torch.float32)

    def place(self, module: nn.Module) -> nn.Module:
        """Weights in the precision of the run."""
        return module.to(self.dtype)

    def cast(self, value: Tensor) -> Tensor:
        """An input in the precision of the run."""
        return value.to(self.dtype) if value.is_floating_point() else value

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """Mixed precision, where the run asks for it."""
        if self.precision in AUTOCAST:
            with torch.autocast("cpu", dtype=AUTOCAST[self.precision]):
                yield
        else:
            yield

    def scaler(self) -> torch.amp.GradScaler:
        """Loss scaling for float16, nothing otherwise."""
        return torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=self.precision == "fp16-autocast")


def parse(models: list[str]) -> Options:
    parser = argparse.ArgumentParser(description="Train one of the models for a few steps.")
    parser.add_argument("model", choices=models)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--fault", default="")
    parser.add_argument("--variant", default="")
    parser.add_argument("--steps", type=int, default=2)
    return Options(**vars(parser.parse_args()))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def uniform(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator(seed))


def integers(seed: int, high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=generator(seed))


def spread(module: nn.Module, scale: float, seed: int = 3) -> None:
    """Moves every parameter a little, so that biases, gates and norms are not zeros and ones."""
    noise = generator(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=noise))


def show(step: int, **values: Tensor | float) -> None:
    numbers = {name: value.item() if isinstance(value, Tensor) else value for name, value in values.items()}
    print(f"step {step}:", "  ".join(f"{name} {value:.9g}" for name, value in numbers.items()), flush=True)
