"""Compiles the C++ of the recorder once for each version of torch and Python, and loads it."""

import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ulpscope.numerics.machine_code import (
    NotCompiledError,
    cache_directory,
    compile_beside,
    compile_library,
    identity_of,
)

MODULE = "ulpscope_host"
CHOICE = "ULPSCOPE_HOST"
"""Environment: `python` never uses the compiled part, `compiled` compiles it also without an accelerator."""
FLAGS = ("-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
LIBRARIES = ("c10", "torch_cpu", "torch_python")
SHARED = ("launch.h", "moved.h")
"""Headers of the kernels' that say what a launch is told."""

_SOURCES = Path(__file__).parent
_KERNELS = _SOURCES.parent / "summaries" / "cuda"


def is_wanted() -> bool:
    """Compiling takes half a minute. A run without an accelerator does not wait for it: an earlier one has done it."""
    choice = os.environ.get(CHOICE)
    if choice is not None:
        return choice == "compiled"
    return _has_accelerator() or is_built()


def is_missed() -> bool:
    """Whether it would be used if an earlier run had compiled it."""
    return CHOICE not in os.environ and not is_wanted()


def _has_accelerator() -> bool:
    return torch.accelerator.is_available() if hasattr(torch, "accelerator") else torch.cuda.is_available()


def build_beside() -> bool:
    """Have it compiled in idle time, for later runs; whether that was begun."""
    return compile_beside(_library(), _arguments())


def is_built() -> bool:
    return _library().exists()


@cache
def load() -> Any:
    """The module; raises NotCompiledError where there is no compiler, or torch's headers are others than expected."""
    library = _library()
    if not library.exists():
        try:
            compile_library(library, _arguments())
        except OSError as error:
            raise NotCompiledError(str(error)) from error
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(library))
    specification = importlib.util.spec_from_loader(MODULE, loader)
    assert specification is not None
    try:
        module = importlib.util.module_from_spec(specification)
        loader.exec_module(module)
    except ImportError as error:
        raise NotCompiledError(f"{library} cannot be loaded: {error}") from error
    return module


def _library() -> Path:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return cache_directory() / f"host-{_identity()}{suffix}"


def _identity() -> str:
    """A digest of everything that the compiled module depends on."""
    sources = (*sorted(_SOURCES.glob("*.h")), _SOURCES / "core.cpp", *(_KERNELS / name for name in SHARED))
    words = (torch.__version__, torch.__file__, sys.version, *FLAGS)
    return identity_of(*(source.read_bytes() for source in sources), *(word.encode() for word in words))


def _arguments() -> list[str]:
    own = Path(torch.__file__).parent
    headers = (own / "include", own / "include/torch/csrc/api/include", Path(sysconfig.get_path("include")))
    includes = (part for folder in headers for part in ("-isystem", str(folder)))
    links = (f"-L{own / 'lib'}", *(f"-l{name}" for name in LIBRARIES))
    return [*FLAGS, f"-I{_KERNELS}", *includes, str(_SOURCES / "core.cpp"), *links]
