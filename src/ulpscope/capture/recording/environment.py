"""What about a process affects its numbers, whatever the framework: versions, variables, switches, seeds, the machine.

No secret is kept: of most variables only the name is, and tokens are masked wherever they stand.
"""

import hashlib
import importlib
import os
import platform
import random
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ulpscope.capture.recording.machine import compilers, drivers, flushes_subnormals, libraries, machine
from ulpscope.capture.recording.secrets import hints_at_secret, masked, masked_words

VARIABLE_PREFIXES = tuple(
    """CUDA_ CUBLAS_ CUBLASLT_ CUDNN_ NVIDIA_ NCCL_ TORCH_ TORCHINDUCTOR_ TORCHDYNAMO_ PYTORCH_ TRITON_ TF_ XLA_ KERAS_
    OMP_ GOMP_ KMP_ MKL_ ONEDNN_ DNNL_ OPENBLAS_ GOTO_ BLIS_ VECLIB_ NUMEXPR_ NPY_ GLOO_ HIP_ HSA_ MIOPEN_ ROCBLAS_
    HIPBLAS ASCEND_ HCCL_ NPU_ ATB_ NVTE_ FLASH_ATTENTION_ XFORMERS_ DEEPSPEED_ MEGATRON_""".split()
)
VARIABLES = tuple(
    """RANK LOCAL_RANK WORLD_SIZE PYTHONHASHSEED MASTER_ADDR GLIBC_TUNABLES LD_PRELOAD LD_LIBRARY_PATH CC CXX CFLAGS
    CXXFLAGS""".split()
)

OURS = "ULPSCOPE_"


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
    build: dict[str, str] = field(default_factory=dict)
    """What it computes with, as it was built."""


@cache
def versions(packages: Sequence[str]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in (*packages, "ulpscope"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def installed() -> dict[str, str]:
    """Every installed distribution, as the names of its records tell: to read them all would take a second."""
    found: dict[str, str] = {}
    for entry in map(Path, sys.path):
        for name in _listed(entry):
            record = _RECORD.fullmatch(name)
            if record is not None:
                found.setdefault(record["name"].lower().replace("_", "-"), record["version"])
    return dict(sorted(found.items()))


_RECORD = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info")


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those that can change numbers, or how processes talk to each other."""
    return {name: masked(value) for name, value in sorted(environ.items()) if _is_kept(name)}


def other_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The names of all others; what they hold is nobody else's business."""
    return sorted(name for name in environ if not _is_kept(name) and not name.startswith(OURS))


def _is_kept(name: str) -> bool:
    return (name.startswith(VARIABLE_PREFIXES) or name in VARIABLES) and not hints_at_secret(name)


def surroundings(about: About, configs: Mapping[str, Any]) -> dict[str, Any]:
    """What lies around a process; `configs` are the files that the user named, as they were when it began."""
    return {
        "variables": variables(),
        "other_variables": other_variables(),
        "switches": {**about.switches, "flushes_subnormals": flushes_subnormals()},
        "build": about.build,
        "packages": installed(),
        "machine": machine(),
        "drivers": drivers(),
        "compilers": compilers(),
        "libraries": libraries(),
        "configs": configs,
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


def seed_all(seed: int) -> None:
    """Python's and numpy's generators."""
    random.seed(seed)
    importlib.import_module("numpy.random").seed(seed)


def process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "interpreter": sys.executable,
        "command": masked_words(sys.orig_argv),
        "directory": os.getcwd(),
    }


def state_digest(state: bytes) -> str:
    return hashlib.blake2b(state, digest_size=8).hexdigest()
