"""seed_all: the same random numbers and deterministic kernels in every run."""

import functools
import os
import random
from typing import Any

from ulpscope.compat.telling import tell

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
# HCCL and LCCL sum in another order each time unless told otherwise; both read this when a group is made.
DEVICE_SWITCHES = {
    "npu": {"HCCL_DETERMINISTIC": "True", "LCCL_DETERMINISTIC": "1"},
    "cuda": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
}


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False) -> None:
    """Seed Python, numpy and torch on all devices; `mode` asks torch for deterministic algorithms."""
    import numpy as np
    import torch

    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(mode)
    _switch_devices(seed)
    if rm_dropout:
        remove_dropout()
    if is_enhanced:
        tell("seed_all: is_enhanced is ignored, random state is seeded but not fixed before every random call")


def set_reproducibility(seed: int = 1234, is_deterministic: bool = False, is_enhanced: bool = False) -> None:
    """seed_all by its newer name."""
    seed_all(seed, mode=is_deterministic, is_enhanced=is_enhanced)


def remove_dropout() -> None:
    """Every dropout of torch.nn.functional keeps all elements from now on."""
    from torch.nn import functional

    for name in DROPOUTS:
        original = getattr(functional, name)
        if not hasattr(original, "_ulpscope_keeps_all"):
            setattr(functional, name, _keeping_all(original))


def _keeping_all(original: Any) -> Any:
    @functools.wraps(original)
    def dropout(input: Any, p: float = 0.0, training: bool = True, inplace: bool = False) -> Any:
        return original(input, 0.0, training, inplace)

    dropout._ulpscope_keeps_all = True  # type: ignore[attr-defined]
    return dropout


def _switch_devices(seed: int) -> None:
    import torch

    for name, switches in DEVICE_SWITCHES.items():
        device = getattr(torch, name, None)
        if device is not None and device.is_available():
            os.environ.update(switches)
            device.manual_seed_all(seed)
    if torch.cuda.is_available():
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
