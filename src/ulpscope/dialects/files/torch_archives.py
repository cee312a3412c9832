"""What torch.save wrote, read without torch and without its pickle being executed: an archive with a pickle that names
tensors, and one entry for each of their storages, which is mapped.

Read so are files that torch's own safe reader refuses because they hold more than tensors, and those of checkpoints
that several ranks wrote into one file. What is neither a tensor nor a plain value is named, and left out.
"""

import io
import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ulpscope.dialects.files.pickles import Made, Named, Outside, PickleError, leaves, opened, read_pickle
from ulpscope.dialects.files.stored import (
    DAMAGED_ARCHIVE,
    MOST_ELEMENTS,
    AnyArray,
    PartlyRead,
    StoredTensor,
    stored_at,
    unreadable,
    unsupported,
)
from ulpscope.numerics.dtypes import DTYPES, numpy_dtype
from ulpscope.trace.files import check_file, map_bytes, open_file

EXPECTED = "an archive that torch.save wrote"
LARGEST_PICKLE = 2**30
"""Bytes; that of a state dict with 100,000 tensors has ten million."""
LARGEST_PACKED = 2**26
"""Bytes of one that is packed, as torch packs none: a small file may hold a large one."""
LARGEST_ORDER = 100
"""Bytes of the word that tells the order of bytes."""
_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}  # fmt: skip
_BYTES = "torch.storage.UntypedStorage"
_NUMBERS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_WRAPPERS = frozenset(f"torch._utils._rebuild_{name}" for name in ("parameter", "parameter_with_state"))
_TENSOR = "torch._utils._rebuild_tensor"
_OF_A_TYPE = "torch._tensor._rebuild_from_type_v2"
_DEEPEST_WRAPPING = 8
MOST_AXES = 32
"""What every version of numpy can hold."""
_SAID_NOTHING = frozenset((str, bytes, bytearray, type(None)))
"""Plain values without a number."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some bytes of a file that are an archive: all of it, or one item of many."""

    path: Path
    start: int = 0
    length: int | None = None


def is_archive(path: Path) -> bool:
    with open_file(path) as file:
        return file.read(4) == b"PK\x03\x04"


def read_archive(part: Part) -> PartlyRead:
    """The tensors and numbers of an archive by their places, and the names of what was left out."""
    try:
        with open_file(part.path) as file, zipfile.ZipFile(_Window(file, part)) as archive:
            reader = _Reader.of(part, archive)
        return reader.tensors(list(leaves(reader.content)))
    except (*DAMAGED_ARCHIVE, OSError, TypeError, IndexError, AttributeError) as error:
        raise unreadable(part.path, f"it cannot be read ({error})", expected=EXPECTED) from error


class _Window(io.RawIOBase):
    """An item of a file as a file of its own."""

    def __init__(self, file: BinaryIO, part: Part) -> None:
        self._file, self._start = file, part.start
        self._length = file.seek(0, io.SEEK_END) - part.start if part.length is None else part.length
        self._place = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._length}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._length - self._place, 0)
        self._file.seek(self._start + self._place)
        found = self._file.read(left if size is None or size < 0 else min(size, left))
        self._place += len(found)
        return found


@dataclass(frozen=True, slots=True)
class _Storage:
    """Where the bytes of a storage lie."""

    start: int
    length: int
    mapped: bool
    """Not packed: they are taken as they lie."""


@dataclass(frozen=True, slots=True)
class _Reader:
    part: Part
    content: Any
    storages: dict[str, _Storage]
    little: bool

    @classmethod
    def of(cls, part: Part, archive: zipfile.ZipFile) -> "_Reader":
        entries = {entry.filename: entry for entry in archive.infolist()}
        top = next((name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")), None)
        if top is None:
            raise PickleError("it has no data.pkl")
        folder = top.removesuffix("data.pkl")
        order = entries.get(f"{folder}byteorder")
        is_packed = entries[top].compress_type != zipfile.ZIP_STORED
        for entry, largest in ((entries[top], LARGEST_PACKED if is_packed else LARGEST_PICKLE), (order, LARGEST_ORDER)):
            if entry is not None and entry.file_size > largest:
                raise PickleError(f"its {entry.filename} has {entry.file_size:,} bytes")
        is_little = order is None or archive.read(order) == b"little"
        data = f"{folder}data/"
        storages = {
            name.removeprefix(data): _Storage(
                stored_at(part.path, part.start + entry.header_offset),
                entry.file_size,
                entry.compress_type == zipfile.ZIP_STORED,
            )
            for name, entry in entries.items()
            if name.startswith(data)
        }
        if any(held.start + held.length > check_file(part.path) for held in storages.values()):
            raise PickleError("its data reaches beyond the file")
        return cls(part, read_pickle(archive.read(top)), storages, is_little)

    def tensors(self, found: Sequence[tuple[str, Any]]) -> PartlyRead:
        read, refused = {}, {}
        for place, leaf in found:
            if type(leaf) in _NUMBERS:
                read[place] = self._number(place, leaf)
            elif isinstance(leaf, Made) and (tensor := self._made(place, leaf)) is not None:
                read[place] = tensor
            elif type(leaf) not in _SAID_NOTHING:
                refused[place] = leaf.name if isinstance(leaf, Made | Named) else type(leaf).__name__
        return PartlyRead(read, refused)

    def _number(self, place: str, number: Any) -> StoredTensor:
        dtype = _NUMBERS[type(number)]
        if type(number) is int and not -(2**63) <= number < 2**63:
            return unsupported(self.part.path, place, dtype="an integer of more than 64 bits", shape=())
        return StoredTensor(dtype, (), lambda: np.array(number, dtype=dtype))

    def _made(self, place: str, made: Made, depth: int = 0) -> StoredTensor | None:
        """A tensor, also one that something is wrapped around; none if it is nothing of the kind."""
        if depth > _DEEPEST_WRAPPING or not made.arguments:
            return None
        if made.name in _WRAPPERS and isinstance(made.arguments[0], Made):
            return self._made(place, made.arguments[0], depth + 1)
        if made.name == _OF_A_TYPE and isinstance(made.arguments[0], Named):
            return self._made(place, Made(made.arguments[0].name, tuple(made.arguments[2])), depth + 1)
        if made.name in (_TENSOR, f"{_TENSOR}_v2", f"{_TENSOR}_v3"):
            return self._tensor(place, made)
        return None

    def _tensor(self, place: str, made: Made) -> StoredTensor:
        held, offset, size, strides, *rest = made.arguments
        shape, steps = sizes_of(size), sizes_of(strides)
        # (storage, offset, size, strides, requires_grad, hooks, [dtype of v3], what is done lazily)
        is_third = made.name.endswith("_v3")
        lazily = rest[3:] if is_third else rest[2:]
        identity: Any = held.identity if isinstance(held, Outside) else ()
        dtype = _dtype(rest[2]) if is_third else _dtype(identity[1])
        if any(map(opened, lazily)):
            return unsupported(self.part.path, place, dtype=f"{dtype} that is still to be conjugated", shape=shape)
        if dtype not in DTYPES or numpy_dtype(dtype).names is not None:
            return unsupported(self.part.path, place, dtype=dtype, shape=shape)
        storage = self.storages.get(identity[2]) if isinstance(identity[2], str) else None
        if storage is None:
            raise PickleError(f"the data of tensor {place!r} is not there")
        if not storage.mapped or not self.little:
            return unsupported(self.part.path, place, dtype=f"packed or swapped {dtype}", shape=shape)
        return StoredTensor(dtype, shape, self._view(place, storage, dtype, (int(offset), shape, steps)))

    def _view(
        self, place: str, storage: _Storage, dtype: str, layout: tuple[int, tuple[int, ...], tuple[int, ...]]
    ) -> Callable[[], AnyArray]:
        offset, shape, strides = layout
        element = numpy_dtype(dtype)
        last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        if math.prod(length for length in shape if length) > MOST_ELEMENTS:
            raise PickleError(f"tensor {place!r} has a shape that no array has")
        if min((offset, *shape, *strides)) < 0 or (0 not in shape and (last + 1) * element.itemsize > storage.length):
            raise PickleError(f"tensor {place!r} reaches beyond its data")

        def read() -> AnyArray:
            if 0 in shape:
                return np.empty(shape, element)
            held = map_bytes(self.part.path, start=storage.start, length=storage.length)
            steps = tuple(stride * element.itemsize for stride in strides)
            return np.ndarray(shape, element, buffer=held, offset=offset * element.itemsize, strides=steps)

        return read


def sizes_of(content: Any) -> tuple[int, ...]:
    """Of a shape or of strides."""
    found = opened(content)
    if not isinstance(found, list | tuple) or not all(type(number) is int for number in found[: MOST_AXES + 1]):
        raise PickleError("a shape is not one of numbers")
    if len(found) > MOST_AXES:
        raise PickleError(f"a shape has {len(found):,} axes, which no array has")
    return tuple(found)


def _dtype(named: Any) -> str:
    """`bfloat16` of torch.BFloat16Storage, or of torch.bfloat16."""
    name = named.name.removeprefix("torch.") if isinstance(named, Named) else "data of an unknown type"
    return _STORAGES.get(name, name)
