"""What all training scripts share: options, seeds, precision, synthetic data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRECISIONS = ["fp32", "fp64", "bf16-autocast", "fp16-autocast", "bf16", "fp16"]
AUTOCAST = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}
WEIGHTS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


@dataclass(frozen=True)
class Options:
    """One run of one model."""

    model: str
    precision: str
    fault: str | None
    variant: str | None
    steps: int

    @property
    def dtype(self) -> torch.dtype:
        """The element type of the weights."""
        return WEIGHTS.get(self.precision, torch.float32)


@dataclass(frozen=True)
class Recipe:
    """A training script and what it can be asked for."""

    run: Callable[[Options], None]
    faults: tuple[str, ...]
    variants: tuple[str, ...]


RECIPES: dict[str, Recipe] = {}


def recipe(name: str, faults: tuple[str, ...] = (), variants: tuple[str, ...] = ()) -> Callable[..., Any]:
    """Registers a training script under the name of its model."""

    def register(run: Callable[[Options], None]) -> Callable[[Options], None]:
        RECIPES[name] = Recipe(run, faults, variants)
        return run

    return register


def autocast(options: Options) -> AbstractContextManager[Any]:
    """Autocast where the precision asks for it."""
    dtype = AUTOCAST.get(options.precision)
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def scaler_for(options: Options) -> torch.amp.GradScaler:
    """A gradient scaler that does something under fp16 autocast only."""
    return torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=options.precision == "fp16-autocast")


def report(step: int, loss: torch.Tensor | float) -> None:
    """The line that every script prints once a step."""
    print(f"step {step} loss {float(loss):.9g}", flush=True)


def generator(seed: int) -> torch.Generator:
    """Random numbers for data, apart from those for weights."""
    return torch.Generator().manual_seed(seed)


def token_batch(
    vocab: int, batch: int, length: int, seed: int, pad: int = 0, shortest: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids of several lengths, padded on the right, and their attention mask."""
    source = generator(seed)
    ids = torch.randint(4, vocab, (batch, length), generator=source)
    lengths = torch.randint(shortest or length // 2, length + 1, (batch,), generator=source)
    lengths[0] = length
    mask = (torch.arange(length)[None, :] < lengths[:, None]).long()
    return ids.masked_fill(mask == 0, pad), mask


class OffKernel(TorchDispatchMode):
    """A matrix product whose result, for weights of one shape, is off by a factor."""

    def __init__(self, shape: tuple[int, ...], factor: float) -> None:
        super().__init__()
        self.shape = shape
        self.factor = factor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default, torch.ops.aten.linear.default):
            weight = args[2] if func is torch.ops.aten.addmm.default else args[1]
            if tuple(weight.shape) == self.shape:
                return out * self.factor
        return out
