"""What about torch affects a process's numbers: versions, devices, switches, seeds."""

import platform
from typing import Any

import torch

from ulpscope.capture.recording import environment
from ulpscope.capture.recording.environment import About, state_digest

PACKAGES = ("torch", "torch_npu", "triton", "numpy", "transformers", "accelerate", "deepspeed", "apex")


def about() -> About:
    return About(_framework(), PACKAGES, _devices(), _switches())


def _framework() -> dict[str, Any]:
    return {
        "name": "torch",
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
    }


def _devices() -> tuple[str, ...]:
    """The processor, and what accelerators torch sees."""
    names = [f"cpu: {platform.processor() or platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"]
    kind = _accelerator()
    if kind is not None:
        module = torch.get_device_module(kind)
        names += [f"{kind}:{index}: {module.get_device_name(index)}" for index in range(module.device_count())]
    return tuple(names)


def seeds() -> dict[str, Any]:
    """The seed of torch's generator, and digests of every generator's state."""
    return {
        "torch_initial_seed": str(torch.initial_seed()),
        "torch_state": state_digest(torch.get_rng_state().numpy().tobytes()),
        **environment.seeds(),
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
