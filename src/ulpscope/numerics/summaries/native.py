"""Summaries and copies compiled by the system's C++ compiler: about a second, once, then kept in the user's cache."""

import ctypes
import platform
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from ulpscope.numerics.machine_code import NotCompiledError, cache_directory, compile_library, identity_of
from ulpscope.numerics.summaries import constants
from ulpscope.numerics.summaries.digest import digest_keys
from ulpscope.numerics.summaries.sketch import sum_signs

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


def is_built() -> bool:
    """Whether load() need not compile."""
    return _library().exists()


def summarizer(name: str) -> Callable[[int, int, int], None]:
    """Of elements of this type: address, count, and address of the row. Raises NotCompiledError, as the others do."""
    return entry(name, _ADDRESS, _COUNT, _ADDRESS)


def float8_summarizer() -> Callable[[int, int, int, int, int], None]:
    """First the address of what the 256 bytes stand for, in float32, and the bits of the smallest normal one."""
    return entry("float8", _ADDRESS, _COUNT, _ADDRESS, _COUNT, _ADDRESS)


def streamer() -> Callable[[int, int, int], None]:
    """Copies bytes past the caches to an address that is a multiple of 64: target, source, how many."""
    return entry("stream", _ADDRESS, _ADDRESS, _COUNT)


def entry(name: str, *types: type) -> Callable[..., None]:
    """A function of the library, with the types of what it takes."""
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
