"""CUDA's driver: loads kernels and launches them."""

import ctypes
from functools import cache
from typing import Any, NamedTuple

import torch

_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
"""Of CUfunction_attribute."""
_USUAL_SHARED_BYTES = 48 * 1024
"""A program gets more shared memory only on demand."""
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
"""Of CUlaunchAttributeID: a kernel may be set up while the one before it ends, and waits for it by itself."""
SET_UP_EARLY = (9, 0)
"""Devices that can do so, from this compute capability on."""


class Kernel(NamedTuple):
    """A kernel as it is launched."""

    function: int
    threads: int
    shared_bytes: int
    at_once: int
    """Programs of it that run at once on the device."""
    early: bool
    """Whether it waits for the kernel before it by itself."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("number", ctypes.c_int64), ("value", ctypes.c_int32), ("_rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


_EARLY = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 1)


@cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def can_launch() -> bool:
    """Whether the driver is there, and not older than CUDA 11.8."""
    try:
        return hasattr(driver(), "cuLaunchKernelEx")
    except OSError:
        return False


def launch_address() -> int:
    """Of the function that launches, for those who call it from C."""
    address = ctypes.cast(driver().cuLaunchKernelEx, ctypes.c_void_p).value
    assert address is not None
    return address


def load_kernel(
    image: bytes, name: str, threads: int, shared_bytes: int, device: torch.device, *, waits: bool
) -> Kernel:
    """Load machine code into the context of the current device, where it stays."""
    module, function, programs = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    _call("cuModuleLoadData", ctypes.byref(module), image)
    _call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    if shared_bytes > _USUAL_SHARED_BYTES:
        _call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
    _call(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        ctypes.byref(programs),
        function,
        threads,
        ctypes.c_size_t(shared_bytes),
    )
    assert function.value is not None
    if programs.value == 0:
        raise RuntimeError(f"kernel {name} needs {shared_bytes} bytes of shared memory, more than {device} has")
    at_once = programs.value * torch.cuda.get_device_properties(device).multi_processor_count
    early = waits and torch.cuda.get_device_capability(device) >= SET_UP_EARLY
    return Kernel(function.value, threads, shared_bytes, at_once, early)


def launch(kernel: Kernel, programs: int, slices: int, stream: int, argument: Any) -> None:
    """Launch a kernel with its one argument, of which a copy is made."""
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    config = _Config(
        (programs, slices, 1),
        (kernel.threads, 1, 1),
        kernel.shared_bytes,
        stream,
        ctypes.pointer(_EARLY),
        int(kernel.early),
    )
    _call("cuLaunchKernelEx", ctypes.byref(config), ctypes.c_void_p(kernel.function), arguments, None)


def _call(name: str, *arguments: Any) -> None:
    code = getattr(driver(), name)(*arguments)
    if code:
        raise RuntimeError(f"{name} gave {code}")
