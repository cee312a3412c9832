"""Summaries at memory speed: by what the system's compiler makes here, else by numba's kernels, else by the reference.

The first takes a second to compile; numba's takes five and is five times slower; the reference is a hundred times
slower. What is compiled is kept on disk, so that only a first run compiles. numba is imported where there is no
compiler, and not before the first summary.

What the system's compiler makes also copies memory that nobody reads again soon.
"""

import contextlib
import ctypes
import platform
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES, Dtype, DtypeKind, Floats, float8_values
from ulpscope.numerics.machine_code import NotCompiledError, cache_directory, compile_library, identity_of
from ulpscope.numerics.summaries import constants, summary
from ulpscope.numerics.summaries.constants import BLOCK_ELEMENTS, ROW_LENGTH
from ulpscope.numerics.summaries.summary import digest_keys, sum_signs

AnyArray = NDArray[np.generic]

Summarizer = Callable[[int, int, int], None]
"""Address of the elements, their count, and the address of the row to write."""


@cache
def _kernels() -> ModuleType | None:
    try:
        from ulpscope.numerics.summaries import kernels

        return kernels
    except Exception:  # an absent or broken numba (wrong numpy, no LLVM for this machine) must not stop a run
        return None


def _agrees(summarizer: Summarizer, dtype: Dtype) -> bool:
    """Whether a kernel does as the reference: numba's cache does not notice constants that have changed."""
    sample = _sample(dtype)
    rows = np.zeros((2, ROW_LENGTH))
    try:
        summarizer(sample.ctypes.data, sample.size, rows.ctypes.data)
    except Exception:  # a broken numba, as above
        return False
    summary.summarize_into(sample, dtype.name, rows[1])
    return bool(rows[0].tobytes() == rows[1].tobytes())


def _sample(dtype: Dtype) -> AnyArray:
    """Elements of this type, as integers with their bits: small numbers, whose sums are exact."""
    numbers = np.arange(2 * BLOCK_ELEMENTS) % 31
    if not dtype.has_sketch:
        return numbers.astype(_integer(dtype))
    if dtype.name.startswith("float8"):
        codes = np.flatnonzero(np.isin(float8_values(dtype.name), (1.0, 2.0, 4.0, 8.0)))
        return np.resize(codes, numbers.size).astype(np.uint8).view(np.int8)
    if dtype.name == "bfloat16":
        return (numbers.astype(np.float32).view(np.int32) >> 16).astype(np.int16)
    return numbers.astype(dtype.name).view(f"i{dtype.item_size}")


class Found(Enum):
    """How compiled summaries were come by."""

    KEPT = "kept by an earlier run"
    COMPILED = "compiled just now"
    NONE = "nothing can compile them here"


def find_compiled() -> Found:
    """Compiles, or loads, the kernel of float32."""
    kept = _library().exists()
    summarizer = _compiled_summarizer(DTYPES["float32"])
    if summarizer is None:
        return Found.NONE
    kernels = summarizer.args[0] if isinstance(summarizer, partial) else None
    if isinstance(kernels, ModuleType):
        kept = kernels.were_kept()
    return Found.KEPT if kept else Found.COMPILED


def _compiled_summarizer(dtype: Dtype) -> Summarizer | None:
    return next((summarizer for summarizer in _compiled_here(dtype) if _agrees(summarizer, dtype)), None)


def _compiled_here(dtype: Dtype) -> Iterator[Summarizer]:
    """The fastest first; each is made when it is asked for."""
    with contextlib.suppress(NotCompiledError):
        yield _native_summarizer(dtype)
    kernels = _kernels()
    if kernels is not None:
        yield partial(_by_numba, kernels, dtype)


def _native_summarizer(dtype: Dtype) -> Summarizer:
    if not dtype.name.startswith("float8"):
        return entry(dtype.name if dtype.has_sketch else _integer(dtype).name, _ADDRESS, _COUNT, _ADDRESS)
    # First the address of what the 256 bytes stand for, and the bits of the smallest normal one. The table is kept.
    table, normal = float8_values(dtype.name), int(np.float32(dtype.smallest_normal).view(np.int32))
    return partial(entry("float8", _ADDRESS, _COUNT, _ADDRESS, _COUNT, _ADDRESS), table.ctypes.data, normal)


def _by_numba(kernels: ModuleType, dtype: Dtype, address: int, count: int, place: int) -> None:
    kernels.summarize_into(_memory(address, count * dtype.item_size), dtype, _memory(place, 8 * ROW_LENGTH).view("f8"))


def _by_numpy(dtype: Dtype, address: int, count: int, place: int) -> None:
    element = np.dtype(f"i{dtype.item_size}") if dtype.has_sketch else _integer(dtype)
    elements = _memory(address, count * dtype.item_size).view(element)
    summary.summarize_into(elements, dtype.name, _memory(place, 8 * ROW_LENGTH).view(np.float64))


def _memory(address: int, size: int) -> NDArray[np.uint8]:
    return np.frombuffer(memoryview((ctypes.c_char * size).from_address(address)), dtype=np.uint8)


def _integer(dtype: Dtype) -> np.dtype[np.generic]:
    return np.dtype(np.uint8 if dtype.kind is DtypeKind.BOOL else dtype.name)


@cache
def summarizer_of(dtype_name: str) -> Summarizer:
    """Reads elements of that type once, one behind the other, and writes their row. The address may be odd.

    Elements of a complex type are its parts: real, imaginary, real, ...
    """
    dtype = DTYPES[dtype_name]
    dtype = DTYPES[dtype.real or dtype.name]
    return _compiled_summarizer(dtype) or partial(_by_numpy, dtype)


@dataclass(frozen=True, slots=True)
class NativeSummarizer:
    """What the system's compiler made for one type, for other compiled code to call."""

    kernel: int
    """Its address. It takes what a Summarizer takes; where there is a table, that and the next come first."""
    table: int | None
    smallest_normal: int


def native_summarizer(dtype_name: str) -> NativeSummarizer | None:
    """The same function that `summarizer_of` gives; none if no compiler made it."""
    function: Any = summarizer_of(dtype_name)
    table, smallest_normal = None, 0
    if isinstance(function, partial) and hasattr(function.func, "argtypes"):
        table, smallest_normal = function.args
        function = function.func
    kernel = ctypes.cast(function, ctypes.c_void_p).value if hasattr(function, "argtypes") else None
    return NativeSummarizer(kernel, table, smallest_normal) if kernel else None


def summarize_into(flat: AnyArray, dtype_name: str, row: Floats) -> None:
    """The same of a contiguous 1-D array. It holds elements of that type or integers with their bits."""
    summarizer_of(dtype_name)(flat.__array_interface__["data"][0], flat.size, row.__array_interface__["data"][0])


# Nothing that lets a compiler reorder or fuse sums: they are the same bits on every machine.
_ARITHMETIC = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
_LANGUAGE = ("-std=c++17", "-fno-strict-aliasing", "-fno-exceptions", "-fvisibility=hidden", "-w")
FLAGS = (*_ARITHMETIC, *_LANGUAGE, "-shared", "-fPIC")
# Of -O3 the vectors alone are wanted: the rest takes as long again to compile, and gains nothing.
TUNED = ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-march=native")
UNTUNED = ("-O3",)
"""For a compiler that does not know one of these."""

LANES = 128
"""A row's elements, filled up to a whole number of vectors."""

_SOURCES = Path(__file__).parent / "cpp"
_ADDRESS, _COUNT = ctypes.c_void_p, ctypes.c_int64


def streamer() -> Callable[[int, int, int], None]:
    """Copies bytes past the caches to an address that is a multiple of 64: target, source, how many."""
    return entry("stream", _ADDRESS, _ADDRESS, _COUNT)


def entry(name: str, *types: type) -> Callable[..., None]:
    """A function of the library that the system's compiler made, with the types of what it takes."""
    function = getattr(load(), name)
    function.argtypes, function.restype = types, None
    return function  # type: ignore[no-any-return]


@cache
def load() -> ctypes.CDLL:
    library = _library()
    try:
        return _loaded(library)
    except OSError:  # nothing can be kept there
        with tempfile.TemporaryDirectory(prefix="ulpscope-") as scratch:
            return _loaded(Path(scratch) / library.name)


def _loaded(library: Path) -> ctypes.CDLL:
    if not library.exists():
        arguments = [*FLAGS, f"-I{_SOURCES}", "-x", "c++", "-"]
        try:
            compile_library(library, [*TUNED, *arguments], _text())
        except NotCompiledError:
            compile_library(library, [*UNTUNED, *arguments], _text())
    return ctypes.CDLL(str(library))


def _library() -> Path:
    sources = (source.read_bytes() for source in sorted(_SOURCES.iterdir()))
    words = (_text(), *FLAGS, *TUNED, *UNTUNED, platform.machine(), _instructions())
    return cache_directory() / f"kernels-{identity_of(*sources, *(word.encode() for word in words))}.so"


def _instructions() -> str:
    """What this processor can do: a home directory may be shared by machines of which not all can do the same."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), platform.processor())


@cache
def _text() -> str:
    """What is compiled: the numbers of constants.py, and the kernels."""
    names = "SKETCH_LENGTH BLOCK_ELEMENTS BLOCK_ROWS ROW_LENGTH EXPONENT_BINS EXPONENT_BIN_SHIFT EXPONENT_BIAS"
    slots = "MIN MAX SUM SUM_SQUARES ABS_SUM NAN POS_INF NEG_INF SET_ASIDE ZERO SUBNORMAL EXPONENTS SKETCH DIGEST"
    words = "SPLITMIX_GAMMA SPLITMIX_MUL_1 SPLITMIX_MUL_2 ROTATION_MUL BLOCK_SALT"
    lines = [f"constexpr int {name} = {getattr(constants, name)};" for name in (*names.split(), "SET_ASIDE_EXPONENT")]
    lines += [f"constexpr int SLOT_{name} = {getattr(constants, name)};" for name in slots.split()]
    lines += [f"constexpr uint64_t {name} = {getattr(constants, name)}ull;" for name in words.split()]
    lines += [
        f"constexpr int LANES = {LANES};",
        f"constexpr int64_t KEYS[] = {{{_listed(digest_keys(4 * constants.BLOCK_ROWS))}}};",
        f"template <class Number> struct Signs {{ static constexpr Number table[] = {{{_listed(_signs())}}}; }};",
    ]
    return "\n".join(["#include <stdint.h>", *lines, '#include "kernels.cpp"', ""])


def _signs() -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Each row of signs twice, one behind the other, so that a rotation is an offset."""
    width = constants.ROW_ELEMENTS
    signs = np.zeros((constants.BLOCK_ROWS, width + LANES), np.int64)
    signs[:, : 2 * width] = np.tile(sum_signs().reshape(constants.BLOCK_ROWS, width), 2)
    return signs.reshape(-1)


def _listed(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> str:
    return ", ".join(map(str, numbers.tolist()))


# The C library's copy reads its target first and leaves it in the caches, where the run's own data was. At 1 MiB a copy
# past them takes 60 us instead of 125; at 64 KiB there is no difference.
STREAMED_BYTES = 2**18
ALIGNMENT = 64

Copier = Callable[[int, int, int], object]
"""Addresses of target and source, and how many bytes."""


def copy_memory(target: int, source: int, nbytes: int) -> None:
    """Copies bytes; many of them past the caches, if the target's address is a multiple of ALIGNMENT."""
    if nbytes < STREAMED_BYTES or target % ALIGNMENT:
        ctypes.memmove(target, source, nbytes)
    else:
        _streamer()(target, source, nbytes)


def prepare_copies() -> None:
    """Compile what copies, which takes a second when it is done for the first time."""
    _streamer()


@cache
def _streamer() -> Copier:
    try:
        compiled = streamer()
    except NotCompiledError:
        return ctypes.memmove
    return compiled if _copies(compiled) else ctypes.memmove


def _copies(copier: Copier) -> bool:
    """Whether a copier does what it should, at all ends that a copy can have."""
    sample = np.arange(3 * ALIGNMENT + 7, dtype=np.uint8)
    memory = np.zeros(5 * ALIGNMENT, np.uint8)
    target = memory[-memory.ctypes.data % ALIGNMENT :]
    copier(target.ctypes.data, sample.ctypes.data + 1, sample.size - 1)
    return bool(np.array_equal(target[: sample.size - 1], sample[1:])) and not target[sample.size - 1 :].any()
