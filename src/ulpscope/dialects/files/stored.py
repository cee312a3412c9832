"""One tensor of another tool's file: what it is before its data is read.

Such tensors come of .npy, .npz and safetensors files, mapped where they lie uncompressed; nothing is ever unpickled.
"""

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES, numpy_dtype
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.files import map_bytes, open_file, parse_json

AnyArray: TypeAlias = NDArray[Any]

# numpy has no complex number of two halves; a trace gives such elements in the same form.
COMPLEX32 = np.dtype([("real", np.float16), ("imag", np.float16)])


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file. Its data is mapped where the format allows it, and read-only."""

    dtype: str
    """A name of numerics.dtypes.DTYPES, or the file's own word for a type that cannot be compared."""
    shape: tuple[int, ...]
    read: Callable[[], AnyArray]

    def array(self) -> AnyArray:
        """The elements; UlpscopeError if they cannot be had."""
        array = self.read().view()
        array.setflags(write=False)
        return array


TensorFile: TypeAlias = Mapping[str, StoredTensor]


class PartlyRead(dict[str, StoredTensor]):
    """The tensors of a file that holds more than tensors."""

    def __init__(self, tensors: Mapping[str, StoredTensor], refused: Mapping[str, str]) -> None:
        super().__init__(tensors)
        self.refused = dict(refused)
        """What was left out, by place: the class or function that the file names. Nothing of it was executed."""


def refused_of(tensors: TensorFile) -> Mapping[str, str]:
    """What was left out of a file, if anything was."""
    return tensors.refused if isinstance(tensors, PartlyRead) else {}


def unreadable(path: Path, problem: str, *, expected: str, next_step: str = "") -> UlpscopeError:
    """A file that is not what its name says."""
    return UlpscopeError(
        f"{path}: {problem}", expected=expected, next_step=next_step or "copy or write the file again, and repeat"
    )


def unsupported(path: Path, key: str, *, dtype: str, shape: tuple[int, ...]) -> StoredTensor:
    """A tensor whose elements are of no type that ulpscope compares: listed, but without data."""

    def refuse() -> AnyArray:
        named = f"tensor {key!r} of {path}" if key else str(path)
        raise UlpscopeError(
            f"{named} holds {dtype}",
            expected="floating point (float64 to float8), complex, integer or bool elements",
            next_step="convert it to one of these before comparing",
        )

    return StoredTensor(dtype, shape, refuse)


# numpy writes ml_dtypes' elements as bytes without a name. Of those with two bytes there is only one.
_NAMELESS = {"V2": "bfloat16"}
_ZIP_LOCAL_HEADER = 30
DAMAGED_ARCHIVE = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, struct.error,
    EOFError, KeyError, OverflowError, RuntimeError, ValueError,
)  # fmt: skip
"""What Python's archives raise for one that is damaged, or packed or protected as they do not know."""

_HEADER_LIMIT = 1 << 20
"""numpy's own limit is 10,000 characters, but it reads the whole header first: 4 GB, if its length says so."""

_UNPACKED = 4, 2**30
"""Bytes that a compressed array may have: so many times those of its file, and so many besides. Only what is almost
constant is packed a hundredfold; a file of some kilobytes must not fill the memory."""

MOST_ELEMENTS = 2**56
"""What numpy can address, whatever their size, also of an array that has none because one axis is 0."""


class _Limited:
    """A file of which only the header may be read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        if size > _HEADER_LIMIT:
            raise ValueError(f"it claims {size:,} bytes")
        return self._file.read(size)


def read_npy(path: Path) -> dict[str, StoredTensor]:
    """The one array of a .npy file, under the key ''."""
    with open_file(path) as file:
        return {"": _describe(path, file, key="", start=0)}


def read_npz(path: Path) -> dict[str, StoredTensor]:
    """The arrays of a .npz file by name."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
            return {entry.filename[:-4]: _describe_entry(path, archive, entry) for entry in entries}
    except DAMAGED_ARCHIVE as error:
        raise unreadable(
            path, f"not a complete .npz file ({error})", expected="an archive that numpy.savez wrote"
        ) from error


def _describe_entry(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> StoredTensor:
    key = entry.filename[:-4]
    start = stored_at(path, entry.header_offset) if entry.compress_type == zipfile.ZIP_STORED else None
    with archive.open(entry) as file:
        return _describe(path, file, key=key, start=start)


def stored_at(path: Path, header_offset: int) -> int:
    """Where an entry's bytes begin; the directory of a zip file does not tell, its local header does."""
    with open_file(path) as file:
        file.seek(header_offset)
        header = file.read(_ZIP_LOCAL_HEADER)
    name, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    return header_offset + _ZIP_LOCAL_HEADER + name + extra


def _describe(path: Path, file: IO[bytes], *, key: str, start: int | None) -> StoredTensor:
    shape, fortran, dtype = _header(path, file)
    name = _NAMELESS.get(dtype.str[1:], dtype.newbyteorder("=").name)
    if name not in DTYPES or dtype.hasobject or dtype.names is not None:
        return unsupported(path, key, dtype=str(dtype), shape=shape)
    if start is None:
        _check_unpacked(path, key, math.prod(shape) * dtype.itemsize)
        return StoredTensor(name, shape, lambda: _native(_load_entry(path, key), name))
    offset = start + file.tell()
    return StoredTensor(name, shape, lambda: _native(_map(path, dtype, shape, fortran=fortran, offset=offset), name))


def _check_unpacked(path: Path, key: str, size: int) -> None:
    times, besides = _UNPACKED
    if size > times * path.stat().st_size + besides:
        raise unreadable(
            path,
            f"its compressed entry {key!r} claims {size:,} bytes",
            expected="an archive whose arrays are not far larger than it",
            next_step="save what is that large uncompressed (numpy.savez), so that it need not be in memory as a whole",
        )


def _header(path: Path, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        limited: Any = _Limited(file)
        version = npy.read_magic(limited)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(limited)
    # numpy parses the header as Python, and once more by tokens: each way has errors of its own.
    except (*DAMAGED_ARCHIVE, OSError, SyntaxError, TypeError, tokenize.TokenError) as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise unreadable(
            path, f"its header cannot be read ({problem})", expected="an array that numpy.save wrote"
        ) from error
    sizes = tuple(map(int, shape))
    if min(sizes, default=0) < 0 or math.prod(size for size in sizes if size) > MOST_ELEMENTS:
        raise unreadable(path, f"its header says {list(sizes)}, which no array has", expected="an array of numpy")
    return sizes, bool(fortran), dtype


def _map(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, fortran: bool, offset: int) -> AnyArray:
    needed, held = math.prod(shape) * dtype.itemsize, path.stat().st_size - offset
    if needed > held:
        problem = f"its header says {list(shape)} {dtype}, {needed} bytes; {max(held, 0)} follow"
        raise unreadable(path, problem, expected="the whole file that numpy.save wrote")
    return _mapped(path, dtype, shape, start=offset, order="F" if fortran else "C")


def _mapped(
    path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, start: int, order: Literal["C", "F"] = "C"
) -> AnyArray:
    if 0 in shape:
        return np.empty(shape, dtype)
    raw = map_bytes(path, start=start, length=math.prod(shape) * dtype.itemsize)
    return raw.view(dtype).reshape(shape, order=order)


def _load_entry(path: Path, key: str) -> AnyArray:
    try:
        with open_file(path) as file, np.load(file, allow_pickle=False) as archive:
            array: AnyArray = archive[key]
    except (*DAMAGED_ARCHIVE, OSError) as error:
        raise unreadable(path, f"entry {key!r}: {error}", expected="an archive that numpy.savez wrote") from error
    return array


def _native(array: AnyArray, name: str) -> AnyArray:
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array.view(numpy_dtype(name))


# safetensors refuses longer headers too: a hostile length must not make us allocate.
HEADER_LIMIT = 100_000_000
DTYPE_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
EXPECTED = "a complete safetensors file"


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file by name."""
    size = path.stat().st_size
    with open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(HEADER_LIMIT, size - 8):
            raise unreadable(path, f"its header claims {length} bytes, the file has {size}", expected=EXPECTED)
        text = file.read(length)
    try:
        header = parse_json(text)
        entries = {key: entry for key, entry in header.items() if key != "__metadata__"}
        return {key: _tensor(path, key, entry, data=8 + length, size=size) for key, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(path, f"its header cannot be read ({error})", expected=EXPECTED) from error


def _tensor(path: Path, key: str, entry: dict[str, Any], *, data: int, size: int) -> StoredTensor:
    shape = tuple(int(length) for length in entry["shape"])
    begin, end = (data + int(offset) for offset in entry["data_offsets"])
    if not data <= begin <= end <= size:
        raise unreadable(path, f"tensor {key!r} ends at byte {end}, the file has {size}", expected=EXPECTED)
    dtype = DTYPE_NAMES.get(entry["dtype"])
    if dtype is None:
        return unsupported(path, key, dtype=str(entry["dtype"]), shape=shape)
    element = numpy_dtype(dtype)
    needed = math.prod(shape) * element.itemsize
    if min(shape, default=0) < 0 or needed != end - begin:
        problem = f"tensor {key!r} is {dtype} {list(shape)} and has {end - begin} bytes"
        raise unreadable(path, problem, expected=EXPECTED)
    return StoredTensor(dtype, shape, lambda: _mapped(path, element, shape, start=begin))
