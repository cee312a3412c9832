"""What about this process affects its numbers: versions, devices, switches, variables, seeds."""

import hashlib
import os
import platform
import random
import socket
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

PACKAGES = ("torch", "torch_npu", "triton", "numpy", "transformers", "accelerate", "deepspeed", "apex", "ulpscope")

VARIABLE_PREFIXES = (
    "CUDA_",
    "CUBLAS_",
    "CUDNN_",
    "NVIDIA_",
    "NCCL_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "PYTORCH_",
    "OMP_",
    "MKL_",
    "ONEDNN_",
    "DNNL_",
    "KMP_",
    "ASCEND_",
    "HCCL_",
    "NPU_",
    "ATB_",
)
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PYTHONHASHSEED", "MASTER_ADDR")


@cache
def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def framework() -> dict[str, Any]:
    return {
        "name": "torch",
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
    }


def devices() -> tuple[str, ...]:
    """The processor, and what accelerators torch sees."""
    names = [f"cpu: {platform.processor() or platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"]
    kind = _accelerator()
    if kind is not None:
        module = torch.get_device_module(kind)
        names += [f"{kind}:{index}: {module.get_device_name(index)}" for index in range(module.device_count())]
    return tuple(names)


def environment() -> dict[str, Any]:
    chosen = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLE_PREFIXES) or name in VARIABLES
    }
    return {"variables": chosen, "switches": _switches()}


def seeds() -> dict[str, Any]:
    """The seed of torch's generator, and digests of every generator's state."""
    found: dict[str, Any] = {
        "torch_initial_seed": str(torch.initial_seed()),
        "torch_state": _digest(torch.get_rng_state().numpy().tobytes()),
        "python_state": _digest(repr(random.getstate()).encode()),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy_state"] = _digest(repr(numpy.random.get_state()).encode())
    return found


def process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "interpreter": sys.executable,
        "command": list(sys.orig_argv),
        "directory": os.getcwd(),
    }


def _switches() -> dict[str, Any]:
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "num_threads": torch.get_num_threads(),
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "flash_sdp": torch.backends.cuda.flash_sdp_enabled(),
        "mem_efficient_sdp": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "math_sdp": torch.backends.cuda.math_sdp_enabled(),
    }


def _accelerator() -> str | None:
    if hasattr(torch, "accelerator"):
        found = torch.accelerator.current_accelerator()
        return None if found is None else found.type
    return "cuda" if torch.cuda.is_available() else None


def _digest(state: bytes) -> str:
    return hashlib.blake2b(state, digest_size=8).hexdigest()
