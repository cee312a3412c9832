"""What the training scripts of this folder share: options, weights, precision. Imported before TensorFlow is."""

from __future__ import annotations

import argparse
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

POLICIES = {"none": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


def parse(description: str | None, faults: Sequence[str], **choices: Sequence[str]) -> argparse.Namespace:
    """Every keyword becomes an option with these choices, the first of them its default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--fault", choices=["none", *faults], default="none")
    parser.add_argument("--autocast", choices=list(POLICIES), default="none", help="Keras' mixed precision")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="of the weights")
    parser.add_argument("--mode", choices=["graph", "eager"], default="graph")
    parser.add_argument("--onednn", choices=["on", "off"], default="on")
    parser.add_argument("--jit", choices=["off", "on"], default="off", help="XLA compiles the step")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    for name, values in choices.items():
        parser.add_argument(f"--{name}", choices=values, default=values[0])
    options = parser.parse_args()
    if options.onednn == "off":
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # read when TensorFlow is imported
    return options


def begin(options: argparse.Namespace) -> None:
    """Seeds and precision of Keras."""
    import keras

    keras.utils.set_random_seed(options.seed)
    policy = "bfloat16" if options.dtype == "bf16" else POLICIES[options.autocast]
    keras.mixed_precision.set_global_policy(policy)


def weight(name: str, shape: Iterable[int], *, std: float | None = None) -> np.ndarray:
    """The weights that belong to a name, as a checkpoint would have them."""
    shape = tuple(shape)
    random = np.random.default_rng(zlib.crc32(name.encode()))
    numbers = random.standard_normal(shape).astype(np.float32)
    if len(shape) > 1:
        return numbers * np.float32(std or (1.0 / np.prod(shape[:-1])) ** 0.5)
    is_shift = name.rpartition(" ")[2] in ("bias", "beta", "moving_mean")
    return numbers * np.float32(0.02) + np.float32(0 if is_shift else 1)


def load_weights(model: Any, *, changed: Callable[[dict[str, np.ndarray]], None] | None = None) -> None:
    """Gives every variable the weights that belong to its place; `changed` may put in something else."""
    names = [f"{place} {variable.name}" for place, variable in enumerate(model.weights)]
    found = {name: weight(name, one.shape) for name, one in zip(names, model.weights, strict=True)}
    is_seed = [one.dtype in ("uint32", "int32", "int64") for one in model.weights]
    if changed is not None:
        changed(found)
    for one, numbers, skipped in zip(model.weights, found.values(), is_seed, strict=True):
        if not skipped:
            one.assign(numbers)


def named(weights: dict[str, np.ndarray], word: str, place: int) -> str:
    """The name of the weight of this word, the place-th of them."""
    return [name for name in weights if name.endswith(f" {word}")][place]
