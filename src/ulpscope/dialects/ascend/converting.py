"""One dump file as files that other programs read, named as msaccucmp names them.

Relu.fc1_Relu.21.0.1767225600021123.output.0.npy               as the data lies on the device
Relu.fc1_Relu.21.0.1767225600021123.output.0.2x40.npy          in another layout, with its shape
Relu.fc1_Relu.21.0.1767225600021123.output.0.768.float16.FRACTAL_NZ.bin

npy, txt and bin have numbers that any reader knows: bfloat16 and smaller floats become float32.
"""

import json
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
from numpy.lib import format as npy

from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.dialects.ascend.dump_file.records import (
    AnyArray,
    DumpFile,
    DumpTensor,
    Side,
    array_type,
    plain_type,
    widened,
)
from ulpscope.dialects.ascend.logical import Preferred, in_layout, preferred_layouts
from ulpscope.dialects.ascend.overflow_records import read_overflow_record, record_json
from ulpscope.dialects.files.torch_files import save_pt
from ulpscope.numerics.dtypes import DTYPES, Shape
from ulpscope.numerics.layouts import Converters
from ulpscope.records.errors import UlpscopeError

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
    described = npy.dtype_to_descr(np.dtype(written_type(kind, FileKind.NPY)))
    with open(path, "wb") as file:
        npy.write_array_header_1_0(file, {"descr": described, "fortran_order": False, "shape": array.shape})
        _write_elements(file, array, kind)


def _write_bin(path: Path, array: AnyArray, kind: str) -> None:
    with open(path, "wb") as file:
        _write_elements(file, array, kind)


def _write_elements(file: IO[bytes], array: AnyArray, kind: str) -> None:
    elements = np.ascontiguousarray(array).reshape(-1)
    for start in range(0, len(elements), _CHUNK):
        widened(elements[start : start + _CHUNK], kind).tofile(file)


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

LONGEST_NAME = 254
"""Bytes; msaccucmp replaces names of 255 characters and more."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to make of each dump file."""

    kind: FileKind
    layout: str | None = None
    shape: Shape | None = None
    """In the order of `layout`; none takes the original shape that the dump states."""
    side: Side | None = None
    index: int | None = None
    """Of one tensor; none takes all, and the buffers."""


@dataclass(slots=True)
class Written:
    """What became of one dump file."""

    files: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    """Names that were too long, by what stands for them."""
    as_they_were: list[str] = field(default_factory=list)
    """Tensors for which the wanted layout does not exist, in their own."""
    without_data: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What is wrong with the tensors that could not be written; the others are."""


def convert_dump(path: Path, wanted: Wanted, folder: Path, *, record: bool, own: Converters) -> Written:
    """Write what is wanted of a dump file into a folder; `record` says that it is an overflow record."""
    dump, written = read_dump(path), Written()

    def save(end: str, write: Callable[[Path], object]) -> None:
        save_whole(folder, f"{path.name}.{end}", write, written)

    if record and wanted.side is None:
        text = json.dumps(record_json(read_overflow_record(dump)), indent=4)
        save("output.0.json", lambda file: file.write_bytes(f"{text}\n".encode()))
        return written
    layouts = preferred_layouts(dump.tensors), own
    for tensor in _chosen(dump, wanted):
        try:
            if tensor.content.size == 0:
                written.without_data.append(tensor.name)
            else:
                save(*_file_of(tensor, wanted, layouts, written))
        except (UlpscopeError, OSError, MemoryError) as error:
            problem = error.seen if isinstance(error, UlpscopeError) else f"{tensor.name}: {error}"
            written.failures.append(problem if str(path) in problem else f"{path}: {problem}")
    if wanted.side is None:
        for word, blocks in (("l1buffer", dump.buffers), ("space", dump.spaces)):
            for index, block in enumerate(blocks):
                save(f"{word}.{index}.bin", block.content.read().tofile)
    return written


def _chosen(dump: DumpFile, wanted: Wanted) -> tuple[DumpTensor, ...]:
    if wanted.side is None:
        return dump.tensors
    tensors = dump.inputs if wanted.side is Side.INPUT else dump.outputs
    if wanted.index is None or not 0 <= wanted.index < len(tensors):
        raise UlpscopeError(
            f"{dump.path} has no {wanted.side.value} {wanted.index}",
            expected=f"a number below {len(tensors)}",
            next_step=f"see what it holds: ulpscope show {dump.path}",
        )
    return (tensors[wanted.index],)


_Layouts: TypeAlias = tuple[Preferred, Converters]
"""Those that most tensors of the dump have, and how the user's own converters make others."""


def _file_of(
    tensor: DumpTensor, wanted: Wanted, layouts: _Layouts, written: Written
) -> tuple[str, Callable[[Path], object]]:
    """How the name of a tensor's file ends, and what writes it."""
    kind, file_kind = tensor.element_type, wanted.kind
    if kind is None and file_kind is FileKind.BIN:
        described = f"{tensor.content.size}.{tensor.type_name.lower()}.{tensor.format_name}"
        return f"{tensor.name}.{described}.bin", tensor.content.read().tofile
    array, layout = _laid_out(tensor, wanted, layouts, written)
    assert kind is not None
    end = _end_of_name(tensor.format_name, array, kind, file_kind, layout)
    return f"{tensor.name}{end}", lambda file: write_array(file, array, kind, file_kind)


def _laid_out(tensor: DumpTensor, wanted: Wanted, layouts: _Layouts, written: Written) -> tuple[AnyArray, str | None]:
    """The elements, and the layout that they were brought to."""
    array, (preferred, own) = tensor.array(), layouts
    if wanted.layout is None:
        return array, None
    try:
        return in_layout(tensor, wanted.layout, shape=wanted.shape, preferred=preferred, own=own), wanted.layout
    except UlpscopeError:
        # One tensor that was asked for must be as asked; among all of them, some have no such axes. A converter
        # of the user's own that fails is no such reason.
        if wanted.side is not None or (tensor.format_name, wanted.layout) in own:
            raise
    written.as_they_were.append(tensor.name)
    return array, None


def save_whole(folder: Path, name: str, write: Callable[[Path], object], written: Written) -> None:
    """A file that is whole, or none; a name that is too long for a file gets another one."""
    long = len(os.fsencode(name)) > LONGEST_NAME
    file = f"{uuid.uuid3(uuid.NAMESPACE_DNS, name).hex}{Path(name).suffix}" if long else name
    try:
        write(folder / file)
    except BaseException:
        (folder / file).unlink(missing_ok=True)
        raise
    written.files.append(file)
    if long:
        written.renamed[file] = name


def _end_of_name(device_layout: str, array: AnyArray, kind: str, file_kind: FileKind, layout: str | None) -> str:
    """What follows `output.0`; a scalar has no lengths to tell."""
    sizes = [] if layout is None else [str(size) for size in array.shape]
    if file_kind is FileKind.BIN:
        length = "_".join(sizes) or str(array.size)
        return f".{length}.{written_type(kind, file_kind)}.{layout or device_layout}.bin"
    return f"{'.' if sizes else ''}{'x'.join(sizes)}.{file_kind.value}"
