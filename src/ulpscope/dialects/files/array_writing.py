"""Writes a dumped tensor's elements as a file: npy, pt, txt or bin.

npy, txt and bin have numbers that any reader knows: bfloat16 and smaller floats become float32.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from ulpscope.dialects.ascend.dump_file.content import AnyArray
from ulpscope.dialects.ascend.elements import array_type, plain_type, widened
from ulpscope.dialects.files.torch_files import save_pt
from ulpscope.numerics.dtypes import DTYPES

_CHUNK = 2**22
"""Elements that are widened at a time, so that memory stays bounded."""

# Digits with which a decimal number is read as the same float again: 1 + ceil(p * log10(2)), p bits of significand.
_DIGITS = {"float16": 5, "float32": 9, "float64": 17, "complex64": 9, "complex128": 17}

_TORCH_TYPES = frozenset(DTYPES) - {"float8_e8m0fnu"}
"""Types that every torch since 2.6 has under our name."""


class FileKind(str, Enum):
    """What a tensor is written as."""

    NPY = "npy"
    PT = "pt"
    TXT = "txt"
    BIN = "bin"


def written_type(kind: str, file_kind: FileKind) -> str:
    """The type of the elements in the file."""
    if file_kind is FileKind.PT:
        return plain_type(kind) if plain_type(kind) in _TORCH_TYPES else "float32"
    return widened(np.zeros(1, array_type(kind)), kind).dtype.name


def write_array(path: Path, array: AnyArray, kind: str, file_kind: FileKind) -> None:
    """Write an array as `elements_of` gives it; `kind` is its element type."""
    _WRITERS[file_kind](path, array, kind)


def _write_npy(path: Path, array: AnyArray, kind: str) -> None:
    with open(path, "wb") as file:
        header = {
            "descr": npy.dtype_to_descr(np.dtype(written_type(kind, FileKind.NPY))),
            "fortran_order": False,
            "shape": array.shape,
        }
        npy.write_array_header_1_0(file, header)
        _write_elements(file, array, kind)


def _write_bin(path: Path, array: AnyArray, kind: str) -> None:
    with open(path, "wb") as file:
        _write_elements(file, array, kind)


def _write_elements(file: IO[bytes], array: AnyArray, kind: str) -> None:
    for part in _parts(array):
        widened(part, kind).tofile(file)


def _parts(array: AnyArray) -> Iterator[AnyArray]:
    elements = np.ascontiguousarray(array).reshape(-1)
    for start in range(0, len(elements), _CHUNK):
        yield elements[start : start + _CHUNK]


def _write_txt(path: Path, array: AnyArray, kind: str) -> None:
    """A line a row of the last axis."""
    numbers = widened(np.ascontiguousarray(array), kind)
    rows = numbers.reshape(-1, numbers.shape[-1]) if numbers.ndim and numbers.size else numbers.reshape(1, -1)
    digits = _DIGITS.get(numbers.dtype.name)
    np.savetxt(path, rows, fmt="%d" if digits is None else f"%.{digits}g")


def _write_pt(path: Path, array: AnyArray, kind: str) -> None:
    dtype = written_type(kind, FileKind.PT)
    save_pt(path, array if plain_type(kind) == dtype and kind in DTYPES else widened(array, kind), dtype)


_WRITERS: dict[FileKind, Callable[[Path, AnyArray, str], None]] = {
    FileKind.NPY: _write_npy,
    FileKind.PT: _write_pt,
    FileKind.TXT: _write_txt,
    FileKind.BIN: _write_bin,
}
