"""What about torch affects a process's numbers: versions, devices, switches, what it was built with."""

import platform
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ulpscope.capture.recording.environment import About

PACKAGES = ("torch", "torch_npu", "triton", "numpy", "transformers", "accelerate", "deepspeed", "apex")
_BUILT = ("GCC", "Clang", "MSVC", "MKL-DNN", "Math Kernel Library", "OpenMP", "LAPACK", "CPU capability")


def about_torch() -> About:
    return About(_framework(), PACKAGES, _devices(), _switches(), _build())


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
    if hasattr(torch, "accelerator"):
        found = torch.accelerator.current_accelerator()
        kind = None if found is None else found.type
    else:
        kind = "cuda" if torch.cuda.is_available() else None
    if kind is not None:
        module = torch.get_device_module(kind)
        names += [f"{kind}:{index}: {module.get_device_name(index)}" for index in range(module.device_count())]
    return tuple(names)


def _switches() -> dict[str, Any]:
    return {name: _asked(ask) for name, ask in _SWITCHES.items()} | _reduced()


def _asked(ask: Callable[[], Any]) -> Any:
    """torch refuses to say what of a switch its older form cannot express."""
    try:
        return ask()
    except RuntimeError:
        return "mixed"


_SWITCHES: dict[str, Callable[[], Any]] = {
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
    "fill_uninitialized_memory": lambda: getattr(torch.utils.deterministic, "fill_uninitialized_memory", None),
    "default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "num_threads": torch.get_num_threads,
    "num_interop_threads": torch.get_num_interop_threads,
    "cudnn_allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
    "flash_sdp": torch.backends.cuda.flash_sdp_enabled,
    "mem_efficient_sdp": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math_sdp": torch.backends.cuda.math_sdp_enabled,
    "onednn": lambda: torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
}
_REDUCED = tuple(
    """allow_fp16_accumulation allow_fp16_reduced_precision_reduction allow_bf16_reduced_precision_reduction
    fp32_precision""".split()
)


def _reduced() -> dict[str, Any]:
    """Where products may be multiplied or summed in fewer bits; versions of torch know different ones of these."""
    places = {
        "cuda_matmul": torch.backends.cuda.matmul,
        "cudnn_conv": getattr(torch.backends.cudnn, "conv", None),
        "onednn_matmul": getattr(torch.backends.mkldnn, "matmul", None),
    }
    asked = {
        f"{place}_{name}": partial(getattr, module, name, None) for place, module in places.items() for name in _REDUCED
    }
    found = {name: _asked(ask) for name, ask in asked.items()}
    return {name: switch for name, switch in found.items() if switch is not None}


def _build() -> dict[str, str]:
    """The compiler and the libraries of mathematics, out of what torch says of itself."""
    lines = [line.strip(" -") for line in torch.__config__.show().splitlines()]
    parts = {name: next((line for line in lines if name in line), "") for name in _BUILT}
    return {name: line for name, line in parts.items() if line}
