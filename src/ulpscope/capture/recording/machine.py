"""What of a machine can change numbers: its processor, drivers, compilers, libraries. Only files are read, nothing is
run: a captured process starts no others.
"""

import os
import platform
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

_CPU_INFO = Path("/proc/cpuinfo")
_MAPPED = Path("/proc/self/maps")
_FEATURES = re.compile(r"sse|ssse|avx|fma|f16c|amx|bmi|asimd|neon|sve|sme|bf16|i8mm|fphp|vsx|rvv")
"""Instructions by which sums are ordered and products rounded in another way."""
_COMPUTING = re.compile(
    r"lib(mkl|openblas|blas|blis|lapack|gomp|iomp|omp|dnnl|onednn|acl|arm_compute|sleef|svml|imf|m|mvec"
    r"|cudart|cublas|cublasLt|cudnn\w*|cufft|cusolver|cusparse|nccl|nvrtc|hipblas\w*|rocblas|MIOpen|rccl|hccl|ascendcl"
    r"|opapi|te_fusion)[-_.\d].*"
)
_DRIVERS = {
    "nvidia": Path("/proc/driver/nvidia/version"),
    "amdgpu": Path("/sys/module/amdgpu/version"),
    "ascend": Path("/usr/local/Ascend/driver/version.info"),
    "ascend_toolkit": Path("/usr/local/Ascend/ascend-toolkit/latest/version.cfg"),
    "cuda": Path("/usr/local/cuda/version.json"),
}
_COMPILERS = {"c++": ("CXX", "c++"), "nvcc": ("CUDACXX", "nvcc"), "ptxas": ("TRITON_PTXAS_PATH", "ptxas")}
_SMALLEST_NORMAL = 2.2250738585072014e-308
_LONGEST = 2000
"""Characters of a driver's own words that are kept."""


@cache
def machine() -> dict[str, Any]:
    """The processor, and what lies right above it."""
    told = _processor()
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "cpu": told.get("model name") or told.get("cpu part") or platform.processor() or platform.machine(),
        "cpu_features": _features(told),
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    }


def flushes_subnormals() -> bool:
    """Whether this thread takes numbers below the smallest normal one for zero."""
    return _SMALLEST_NORMAL / float(len("ab")) == 0.0


def _processor() -> dict[str, str]:
    """What the system tells of the first processor."""
    text = _read(_CPU_INFO).partition("\n\n")[0]
    lines = (line.partition(":") for line in text.splitlines())
    return {name.strip(): told.strip() for name, _, told in lines}


def _features(told: dict[str, str]) -> list[str]:
    names = (told.get("flags") or told.get("Features") or "").split()
    return sorted(name for name in names if _FEATURES.match(name))


@cache
def drivers() -> dict[str, str]:
    """By device, what its driver's own file says."""
    told = {name: " ".join(_read(path).split())[:_LONGEST] for name, path in _DRIVERS.items()}
    return {name: text for name, text in told.items() if text}


@cache
def compilers() -> dict[str, str]:
    """What Python was built with, and the compilers that would be asked; the names of files tell their versions."""
    found = {name: shutil.which(os.environ.get(variable) or usual) for name, (variable, usual) in _COMPILERS.items()}
    return {"python": platform.python_compiler(), **{name: os.path.realpath(at) for name, at in found.items() if at}}


def libraries() -> list[str]:
    """The libraries that compute and are loaded, by the names of their files, which tell their versions."""
    return sorted(set(_computing()))


def _computing() -> Iterator[str]:
    for line in _read(_MAPPED).splitlines():
        name = line.rpartition("/")[2]
        if ".so" in name and _COMPUTING.fullmatch(name):
            yield name


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
