"""Fused kernels: summaries in one read of a CUDA tensor, in C++ (cuda/) that NVRTC compiles when they are first needed.

A program is four warps. It takes some blocks of a value and leaves one partial row; `join` adds a value's partial rows
up in a fixed order, so that equal contents have equal rows. A warp has its next block brought into its own memory,
from wherever the elements lie (staging.h), while it adds up the last one. In a block, lane k owns sums k and k + 32 of
the sketch: it reads the pairs of the two columns that count into them, so that nothing crosses lanes before the end.

Blocks of floats are first read as if they were ordinary: every number below 2**29 and none so small that its square is
lost. Sums then need no selection: those of bfloat16 are made by the tensor cores (tensor_cores.h), the others lane by
lane (ordinary.h). If the sums say that something is not ordinary, the warp's blocks are read again with everything
looked at (anything.h). Doubles and integers always go that way.

Here are the numbers that they are compiled with, NVRTC, which torch brings along, and CUDA's driver. Each is compiled
once for each kind of device and element.
"""

import contextlib
import ctypes
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ulpscope.numerics.machine_code import NotCompiledError, cache_directory, identity_of, made_whole
from ulpscope.numerics.summaries import constants
from ulpscope.numerics.summaries.summary import digest_keys

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
    found, shared = ctypes.byref(programs), ctypes.c_size_t(shared_bytes)
    _call("cuOccupancyMaxActiveBlocksPerMultiprocessor", found, function, threads, shared)
    assert function.value is not None
    if programs.value == 0:
        raise RuntimeError(f"kernel {name} needs {shared_bytes} bytes of shared memory, more than {device} has")
    at_once = programs.value * torch.cuda.get_device_properties(device).multi_processor_count
    early = waits and torch.cuda.get_device_capability(device) >= SET_UP_EARLY
    return Kernel(function.value, threads, shared_bytes, at_once, early)


def launch(kernel: Kernel, programs: int, slices: int, stream: int, argument: Any) -> None:
    """Launch a kernel with its one argument, of which a copy is made."""
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    grid, block, early = (programs, slices, 1), (kernel.threads, 1, 1), ctypes.pointer(_EARLY)
    config = _Config(grid, block, kernel.shared_bytes, stream, early, int(kernel.early))
    _call("cuLaunchKernelEx", ctypes.byref(config), ctypes.c_void_p(kernel.function), arguments, None)


def _call(name: str, *arguments: Any) -> None:
    code = getattr(driver(), name)(*arguments)
    if code:
        raise RuntimeError(f"{name} gave {code}")


_SOURCES = Path(__file__).parent / "cuda"
_OPTIONS = ("-std=c++17",)


def compiled(source: str, numbers: str, capability: tuple[int, int]) -> bytes:
    """The machine code of a source file, with these numbers as its numbers.h."""
    nvrtc = _nvrtc()
    headers = {path.name: path.read_text() for path in sorted(_SOURCES.glob("*.h"))} | {"numbers.h": numbers}
    text = (_SOURCES / source).read_text()
    options = (*_OPTIONS, f"--gpu-architecture=sm_{capability[0]}{capability[1]}")
    words = (text, *headers.values(), *options, _version(nvrtc))
    identity = identity_of(*(word.encode() for word in words))
    kept = cache_directory() / f"{Path(source).stem}-{identity}.cubin"
    try:
        return kept.read_bytes()
    except OSError:
        image = _compile(nvrtc, text, headers, options)
    with contextlib.suppress(OSError), made_whole(kept) as made:  # where nothing can be kept, later runs compile again
        made.write_bytes(image)
    return image


def _compile(nvrtc: ctypes.CDLL, text: str, headers: dict[str, str], options: tuple[str, ...]) -> bytes:
    program = ctypes.c_void_p()
    names, texts = (_strings(words) for words in (headers.keys(), headers.values()))
    _check(
        nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", len(headers), texts, names)
    )
    try:
        code = nvrtc.nvrtcCompileProgram(program, len(options), _strings(options))
        if code:
            raise NotCompiledError(f"NVRTC: {_name(nvrtc, code)}: {_text(nvrtc, 'ProgramLog', program).decode()[:400]}")
        return _text(nvrtc, "CUBIN", program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    room = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, room))
    return room.raw


def _strings(words: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [word.encode() for word in words]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def _check(nvrtc: ctypes.CDLL, code: int) -> None:
    if code:
        raise NotCompiledError(f"NVRTC: {_name(nvrtc, code)}")


def _name(nvrtc: ctypes.CDLL, code: int) -> str:
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return str(nvrtc.nvrtcGetErrorString(code).decode())


def _version(nvrtc: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(nvrtc, nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


@cache
def _nvrtc() -> ctypes.CDLL:
    tried = []
    for candidate in _candidates():
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            tried.append(str(error))
    raise NotCompiledError(f"NVRTC, which comes with torch for CUDA, was not found ({'; '.join(tried)})")


def _candidates() -> Iterator[str]:
    """First what the system finds, then where torch's packages put it."""
    name = f"libnvrtc.so.{str(torch.version.cuda).split('.', maxsplit=1)[0]}"
    yield name
    folder = Path(torch.__file__).parent
    for found in (*sorted(folder.parent.glob(f"nvidia/*/lib/{name}")), *sorted(folder.glob("lib/libnvrtc*.so*"))):
        yield str(found)


WARPS, JOIN_WARPS = 4, 32
"""Of a program that reads values, and of one that joins rows."""
BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INTEGER = range(5)
PARTIAL_LENGTH = 112
"""Of a partial row, in numbers: a row, filled up so that it begins at a border of 128 bytes."""


class Shape(NamedTuple):
    """How a kernel is launched."""

    depth: int
    """Blocks that a warp has under way."""
    programs: int
    """That a multiprocessor shall hold at once."""
    nothing_bytes: int
    warp_bytes: int

    @property
    def shared_bytes(self) -> int:
        return self.nothing_bytes + WARPS * self.warp_bytes


_KINDS = ("BFLOAT16", "FLOAT16", "FLOAT32", "FLOAT64", "INTEGER")
_SLOTS = {word: word for word in ("MIN", "MAX", "SUM", "NAN", "SUBNORMAL", "EXPONENTS", "SKETCH", "DIGEST")}
_SLOTS |= {"SQUARES": "SUM_SQUARES", "ABS": "ABS_SUM"}
COUNTER_BYTES = constants.EXPONENT_BINS * 4


def shape_of(kind: int, item: int) -> Shape:
    block = constants.BLOCK_ELEMENTS * item
    depth = 2 if item <= 4 else 1
    return Shape(depth, 4 if item <= 2 else 3, block if kind == BFLOAT16 else 0, depth * block + COUNTER_BYTES)


def numbers_header(kind: int, item: int, signed: bool, smallest_normal: int) -> str:
    shape = shape_of(kind, item)
    whole = {
        "COLUMNS": constants.SKETCH_LENGTH,
        "BLOCK": constants.BLOCK_ELEMENTS,
        "BLOCK_ROWS": constants.BLOCK_ROWS,
        "BINS": constants.EXPONENT_BINS,
        "SET_ASIDE": constants.SET_ASIDE_EXPONENT,
        "ROW_LENGTH": constants.ROW_LENGTH,
        "PARTIAL_LENGTH": PARTIAL_LENGTH,
        **{f"SLOT_{word}": getattr(constants, slot) for word, slot in _SLOTS.items()},
        **{word: number for number, word in enumerate(_KINDS)},
        "KIND": kind,
        "ITEM": item,
        "SIGNED": int(signed),
        "WARPS": WARPS,
        "JOIN_WARPS": JOIN_WARPS,
        "DEPTH": shape.depth,
        "PROGRAMS": shape.programs,
        "NOTHING_BYTES": shape.nothing_bytes,
        "STAGE_BYTES": constants.BLOCK_ELEMENTS * item,
        "WARP_BYTES": shape.warp_bytes,
    }
    words = {
        "GAMMA": constants.SPLITMIX_GAMMA,
        "MUL_1": constants.SPLITMIX_MUL_1,
        "MUL_2": constants.SPLITMIX_MUL_2,
        "ROTATION_MUL": constants.ROTATION_MUL,
        "SUM_SALT": constants.SUM_SALT,
        "BLOCK_SALT": constants.BLOCK_SALT,
        "SMALLEST_NORMAL": smallest_normal,
        "INFINITY_32": 0x7F800000,
        "INFINITY_64": 0x7FF0000000000000,
    }
    keys = ", ".join(str(int(key)) for key in digest_keys(constants.BLOCK_ROWS * max(1, item // 2)))
    lines = [f"constexpr int {name} = {number};" for name, number in whole.items()]
    lines += [f"constexpr unsigned long long {name} = {number}ull;" for name, number in words.items()]
    lines += [
        # An ordinary lane's sum of squares: no number from 2**29 up, and none that matters whose square is subnormal.
        f"constexpr float SET_ASIDE_FROM = {2.0**constants.SET_ASIDE_EXPONENT!r}f;",
        f"constexpr float SQUARES_BELOW = {2.0 ** (2 * constants.SET_ASIDE_EXPONENT)!r}f;",
        f"constexpr float SQUARES_ABOVE = {2.0**-90!r}f;",
        f"static __device__ constexpr int KEYS[] = {{{keys}}};",
    ]
    return "\n".join(["#ifndef ULPSCOPE_NUMBERS", "#define ULPSCOPE_NUMBERS", *lines, "#endif", ""])
