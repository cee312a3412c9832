"""Runs a script of the opened sets e and g on an accelerator: `python on_device.py cuda GROUP MODEL [options]`.

The scripts compute on the CPU. Here their models, batches, autocast and loss scales are on the device; weights and data
are drawn as before.
"""

import runpy
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent


def to_device(value: Any, device: str) -> Any:
    if isinstance(value, dict):
        return {key: to_device(each, device) for key, each in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value


def replaced(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Put a function in the place of one, which is given that first."""
    original = getattr(owner, name)
    setattr(owner, name, wraps(original)(lambda *args, **kwargs: change(original, *args, **kwargs)))


def computes_on(device: str) -> None:
    def elsewhere(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        moved = {name: device if value == "cpu" else value for name, value in kwargs.items()}
        return original(*(device if isinstance(value, str) and value == "cpu" else value for value in args), **moved)

    replaced(torch.autocast, "__init__", elsewhere)
    replaced(torch.amp.GradScaler, "__init__", elsewhere)
    from accelerate import Accelerator
    from transformers import TrainingArguments

    replaced(Accelerator, "__init__", lambda made, self, *_, cpu=False, **more: made(self, **more))
    replaced(TrainingArguments, "__init__", lambda made, self, *args, use_cpu=False, **more: made(self, *args, **more))


def moves(group: str, device: str) -> None:
    import common

    if group == "g":
        replaced(common.Task, "prepare", lambda made, self, model: made(self, model.to(device)))
        replaced(common.Task, "cast", lambda made, self, batch: to_device(made(self, batch), device))
        return
    replaced(common.Task, "batch_of", lambda made, *args, **more: to_device(made(*args, **more), device))

    def built(register: Callable[..., Any], name: str) -> Callable[..., Any]:
        def moved(cls: type) -> Any:
            replaced(cls, "build", lambda made, self, s: made(self, s).to(device))
            return register(name)(cls)

        return moved

    replaced(common, "task", built)


def main() -> None:
    device, group, *arguments = sys.argv[1:]
    sys.path.insert(0, str(HERE / group))
    computes_on(device)
    moves(group, device)
    sys.argv = ["train.py", *arguments]
    runpy.run_path(str(HERE / group / "train.py"), run_name="__main__")


if __name__ == "__main__":
    main()
