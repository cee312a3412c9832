"""What the training scripts of this folder share: options, weights, precision, clipping, schedules."""

from __future__ import annotations

import argparse
import contextlib
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
COMMON_FAULTS = ("clip_norm", "clip_missing", "stale_gradients", "flipped_gradient")


def parse(description: str | None, faults: Sequence[str], **choices: Sequence[str]) -> argparse.Namespace:
    """Every keyword becomes an option with these choices, the first of them its default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--fault", choices=["none", *faults, *COMMON_FAULTS], default="none")
    parser.add_argument("--autocast", choices=["none", *DTYPES], default="none")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="of the weights")
    parser.add_argument("--update", choices=["default", "single", "foreach", "fused"], default="default")
    parser.add_argument("--scaler", action="store_true", help="scale the loss against underflow")
    parser.add_argument("--metrics", action="store_true", help="compute metrics beside the training")
    parser.add_argument("--flipped", action="store_true", help="each batch in reverse order")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    for name, values in choices.items():
        parser.add_argument(f"--{name}", choices=values, default=values[0])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    return options


def load_weights(model: nn.Module, *, std: float | None = None) -> None:
    """Gives every parameter the weights that belong to its name, as a checkpoint would."""
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        with torch.no_grad():
            if parameter.dim() > 1:
                scale = std or (2.0 / parameter[0].numel()) ** 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
            else:
                parameter.copy_(1 + torch.randn(parameter.shape, generator=generator) * 0.02)


def precision(options: argparse.Namespace) -> contextlib.AbstractContextManager[object]:
    if options.autocast == "none":
        return contextlib.nullcontext()
    return torch.autocast("cpu", dtype=DTYPES[options.autocast])


def flavour(options: argparse.Namespace) -> dict[str, bool]:
    """The optimizer's implementation, as its constructor wants to hear it."""
    if options.update == "default":
        return {}
    return {"foreach": options.update == "foreach", "fused": options.update == "fused"}


def flip_bit(tensor: Tensor, *, bit: int) -> None:
    """Sets one exponent bit of one element in memory, as a failing chip would: 1 is the highest, 8 the lowest.

    Of the elements that have this bit unset it is the largest one, so that the value grows.
    """
    words = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    memory = tensor.detach().view(words).reshape(-1).numpy()
    top = 1 << (tensor.element_size() * 8 - 1)
    magnitudes = memory & (top - 1)
    memory[np.where(memory & (top >> bit), 0, magnitudes).argmax()] |= top >> bit


def warm_up(steps: int) -> Callable[[int], float]:
    return lambda step: min(1.0, (step + 1) / steps)


class Trainer:
    """Zeroes, scales, clips and steps."""

    def __init__(
        self,
        options: argparse.Namespace,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        max_norm: float | None = 1.0,
        schedule: Callable[[int], float] | None = None,
    ) -> None:
        self.fault = options.fault
        self.parameters = dict(model.named_parameters())
        self.optimizer = optimizer
        self.max_norm = {"clip_norm": 5.0, "clip_missing": None}.get(self.fault, max_norm)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule) if schedule else None
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=options.scaler)
        self.done = 0

    def zero_grad(self) -> None:
        if self.fault != "stale_gradients":
            self.optimizer.zero_grad()

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def step(self) -> None:
        self.scaler.unscale_(self.optimizer)
        if self.fault == "flipped_gradient" and self.done == 1:
            self._flip()
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters.values(), self.max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.schedule is not None:
            self.schedule.step()
        self.done += 1

    def train(self, loss: Tensor) -> None:
        self.zero_grad()
        self.backward(loss)
        self.step()
        print(f"step {self.done - 1} loss {loss.item():.9f}", flush=True)

    def _flip(self) -> None:
        gradient = list(self.parameters.values())[len(self.parameters) // 2].grad
        assert gradient is not None
        flip_bit(gradient, bit=5)
