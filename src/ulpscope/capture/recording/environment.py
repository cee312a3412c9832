"""What about a process affects its numbers, whatever the framework: versions, variables, seeds."""

import hashlib
import os
import platform
import random
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

VARIABLE_PREFIXES = tuple(
    """CUDA_ CUBLAS_ CUDNN_ NVIDIA_ NCCL_ TORCH_ TORCHINDUCTOR_ PYTORCH_ OMP_ MKL_ ONEDNN_ DNNL_ KMP_ ASCEND_ HCCL_ NPU_
    ATB_""".split()
)
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PYTHONHASHSEED", "MASTER_ADDR")


@dataclass(frozen=True, slots=True)
class About:
    """What a framework tells about itself."""

    framework: dict[str, Any]
    """Its `name`, its `version` and those of what it was built with."""
    packages: tuple[str, ...]
    """Whose versions matter."""
    devices: tuple[str, ...] = ()
    """Its accelerators, and how the processor is called where that is known better than by Python."""
    switches: dict[str, Any] = field(default_factory=dict)
    """Settings of it that affect numbers."""


@cache
def versions(packages: Sequence[str]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in (*packages, "ulpscope"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def variables() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLE_PREFIXES) or name in VARIABLES
    }


def seeds() -> dict[str, Any]:
    """Digests of the state of Python's and numpy's generators."""
    found = {"python_state": state_digest(repr(random.getstate()).encode())}
    # Loaded by numpy when it is first asked for: whoever has not asked has drawn nothing, and loading it in the middle
    # of a run swallows what a signal's handler raises there.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        found["numpy_state"] = state_digest(repr(numpy_random.get_state()).encode())
    return found


def process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "interpreter": sys.executable,
        "command": list(sys.orig_argv),
        "directory": os.getcwd(),
    }


def state_digest(state: bytes) -> str:
    return hashlib.blake2b(state, digest_size=8).hexdigest()
