"""A device without a GPU: the kernels' own sources, compiled by the host's compiler, read the host's memory."""

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ulpscope.capture.torch.summaries import kernels as compiling
from ulpscope.capture.torch.summaries import kernels as driver
from ulpscope.capture.torch.summaries import launching
from ulpscope.capture.torch.summaries.kernels import BFLOAT16, WARPS, Kernel, numbers_header, shape_of
from ulpscope.capture.torch.summaries.launching import FusedRows, Variant

SUMMARIZE, JOIN = "summarize", "join"
ANY_VARIANT = Variant(BFLOAT16, 2, False, 0)
OPTIONS = (
    *("-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE"),
    # A device cannot read what lies across the borders of its type.
    *("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"),
)
MESSAGE_ROOM = 1000
GRID = ("programs", "slices", "threads", "early", "copies_are_late", "backwards")


class Grid(ctypes.Structure):
    """The structure of running.h."""

    _fields_ = tuple((name, ctypes.c_int) for name in GRID)


class WrongProgramError(AssertionError):
    """A program did what no device allows."""


def compile_with(arguments: list[str]) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++")
    assert compiler is not None, "no C++ compiler was found (g++ or $CXX)"
    subprocess.run([compiler, *arguments], check=True)


class Compiled:
    """Kernels as functions of the host, each compiled when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._functions: dict[tuple[str, Variant], Any] = {}

    def function(self, name: str, variant: Variant) -> Any:
        if (name, variant) not in self._functions:
            self._functions[name, variant] = self._compile(name, variant)
        return self._functions[name, variant]

    def _compile(self, name: str, variant: Variant) -> Any:
        folder = Path(tempfile.mkdtemp(prefix=name, dir=self._folder))
        (folder / "numbers.h").write_text(numbers_header(*variant))
        library = folder / f"{name}.so"
        source = Path(__file__).parent / f"{name}.cpp"
        compile_with([*OPTIONS, f"-I{folder}", f"-I{compiling._SOURCES}", str(source), "-o", str(library)])
        function = ctypes.CDLL(str(library)).run
        function.restype = ctypes.c_int64
        return function


class CpuDevice:
    """Launches kernels at once. Copies and threads may be early or late, as on a device."""

    def __init__(self, compiled: Compiled, at_once: int, *, copies_are_late: bool = True, backwards: bool = False):
        self._compiled = compiled
        self._at_once = at_once
        self._order = (int(copies_are_late), int(backwards))
        self._functions: list[Any] = []
        self.launches: list[tuple[str, int, int]] = []
        """Of each: its name, its programs, the bytes that these have copied."""

    def summarize_kernel(self, _device: torch.device, variant: Variant) -> Kernel:
        shape = shape_of(variant.kind, variant.item)
        return Kernel(self.handle(SUMMARIZE, variant), 32 * WARPS, shape.shared_bytes, self._at_once, early=True)

    def join_kernel(self, _device: torch.device) -> Kernel:
        return Kernel(self.handle(JOIN, ANY_VARIANT), launching.JOIN_THREADS, 0, self._at_once, early=False)

    def launch(self, kernel: Kernel, programs: int, slices: int, _stream: int, argument: Any) -> None:
        name, function = self._functions[kernel.function]
        grid = Grid(programs, slices, kernel.threads, int(kernel.early), *self._order)
        message = ctypes.create_string_buffer(MESSAGE_ROOM)
        copied = function(ctypes.byref(grid), ctypes.byref(argument), kernel.shared_bytes, message, MESSAGE_ROOM)
        self.launches.append((name, programs, copied))
        if message.value:
            raise WrongProgramError(f"{name}: {message.value.decode()}")

    def handle(self, name: str, variant: Variant) -> int:
        self._functions.append((name, self._compiled.function(name, variant)))
        return len(self._functions) - 1


def host_reader(monkeypatch: pytest.MonkeyPatch, device: Any) -> FusedRows:
    """Reads values of the host, with kernels and launches of that device."""
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(launching, "_upload", copied)
    monkeypatch.setattr(launching, "summarize_kernel", device.summarize_kernel)
    monkeypatch.setattr(launching, "join_kernel", device.join_kernel)
    monkeypatch.setattr(driver, "launch", device.launch)
    stream: Any = SimpleNamespace(cuda_stream=0)
    return FusedRows(torch.device("cpu"), stream)


def copied(array: "np.ndarray[Any, Any]", _device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array.copy())
