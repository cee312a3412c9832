"""Compiles the observer once for each version of TensorFlow, and loads it."""

import ctypes
import sys
from functools import cache
from pathlib import Path

import tensorflow as tf

from ulpscope.capture.tensorflow.graphs import limits
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.machine_code import NotCompiledError, cache_directory, compile_library, identity_of
from ulpscope.numerics.summaries.compiled import native_summarizer
from ulpscope.numerics.summaries.constants import ROW_LENGTH

# What is shared with the framework must be laid out as there: without -march=native, and without its classes' checks.
FLAGS = ("-O1", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden", "-w")

_SOURCES = Path(__file__).parent / "cpp"
_NUMBER, _ADDRESS = ctypes.c_int64, ctypes.c_void_p
_FUNCTIONS = {
    "teach": ((ctypes.c_int, _ADDRESS, _ADDRESS, _NUMBER, _NUMBER), None),
    "limit": ((_NUMBER, _NUMBER), None),
    "want": ((ctypes.c_int,), None),
    "leave_out": ((ctypes.c_char_p,), None),
    "detach": ((), _NUMBER),
    "copy": ((_ADDRESS,), None),
    "let_go": ((_ADDRESS, _NUMBER), None),
    "dropped_rows": ((), _NUMBER),
    "dropped_data": ((), _NUMBER),
    "graphs": ((), _NUMBER),
    "graph": ((_NUMBER, ctypes.c_int, ctypes.POINTER(_NUMBER)), _ADDRESS),
}
"""What observer.cpp exports, with the types of what it takes and gives."""


@cache
def load() -> ctypes.CDLL:
    """Graphs that TensorFlow prepares from now on are observed. NotCompiledError says why they cannot be."""
    path = library_path()
    if not path.exists():
        try:
            compile_library(path, _arguments(), _text())
        except OSError as error:
            raise NotCompiledError(str(error)) from error
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NotCompiledError(f"{path} cannot be loaded: {error}") from error
    for name, (takes, gives) in _FUNCTIONS.items():
        function = getattr(library, f"ulpscope_{name}")
        function.argtypes, function.restype = takes, gives
    _prepare(library)
    return library


def library_path() -> Path:
    """Where it is kept, or will be."""
    sources = (source.read_bytes() for source in sorted(_SOURCES.iterdir()))
    words = (_text(), tf.version.VERSION, tf.version.GIT_VERSION, tf.__file__, sys.version, *FLAGS)
    return cache_directory() / f"tensorflow-{identity_of(*sources, *(word.encode() for word in words))}.so"


def _prepare(library: ctypes.CDLL) -> None:
    """Gives it the kernels that summarise, those of every other capture in host memory: rows are the same bits."""
    library.ulpscope_limit(limits.RECORDS, limits.DATA_BYTES)
    for number, name in readable_dtypes().items():
        native = native_summarizer(name)
        if native is None:
            raise NotCompiledError(f"no compiled summaries of {name}")
        library.ulpscope_teach(number, native.kernel, native.table, native.smallest_normal, DTYPES[name].parts)


@cache
def readable_dtypes() -> dict[int, str]:
    """Names of the types that are read, by TensorFlow's numbers."""
    numbers = range(1, 100)  # those from 101 on are references
    named = {number: _name(number) for number in numbers}
    return {number: name for number, name in named.items() if name in DTYPES}


def _name(number: int) -> str:
    try:
        return str(tf.dtypes.as_dtype(number).name)
    except TypeError:  # no type has that number
        return ""


def _arguments() -> list[str]:
    flags, links = tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags()
    return [*flags, *FLAGS, f"-I{_SOURCES}", "-x", "c++", "-", *links]


def _text() -> str:
    numbers = {
        "ROW_LENGTH": ROW_LENGTH,
        "MAX_DIMS": limits.MAX_DIMS,
        "KEPT_CONSTANT_BYTES": limits.KEPT_CONSTANT_BYTES,
    }
    lines = [f"constexpr int {name} = {number};" for name, number in numbers.items()]
    return "\n".join([*lines, '#include "observer.cpp"', ""])
