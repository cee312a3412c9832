"""Saved data: contents of tensors, packed into safetensors files, each content once.

Offsets and strides of a place count elements of the value's own dtype. Reading maps the file and looks through them;
what would reach outside of the stored tensor is refused.

Picks elements of a saved value, with their indices.
"""

import math
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize_file

from ulpscope.numerics.dtypes import DTYPES, numpy_dtype
from ulpscope.records.calls import DataPlace
from ulpscope.records.errors import TraceError
from ulpscope.trace.files import Bytes, map_bytes, open_file, parse_json
from ulpscope.trace.schema import data_name, step_name
from ulpscope.trace.writer import write_aside

PACK_BYTES = 64 * 2**20
PACK_TENSORS = 2**16

# Contents that may be met again: at 110 bytes each, a long run must not fill the memory with them.
SEEN_CONTENTS = 2**18
OPENED_PACKS = 32

# Up to here numpy's comparison costs more for its calls than for the bytes.
SMALL_BYTES = 2**16

# safetensors refuses longer headers too: a hostile length must not make us allocate.
HEADER_LIMIT = 100_000_000

Spans: TypeAlias = dict[str, tuple[int, int]]

SAFETENSORS_DTYPES = DTYPES.keys() - {"complex32", "complex128"}
# What numpy has no element for (packed, quantized, opaque) is given as its bits.
BIT_DTYPES = {
    "float4_e2m1fn_x2": "uint8",
    "bits8": "uint8",
    "bits16": "uint16",
    "qint8": "int8",
    "qint32": "int32",
    "quint8": "uint8",
    "quint4x2": "uint8",
    "quint2x4": "uint8",
}
DATA_FILE = re.compile(r"step\d+/data-\d+\.safetensors")


class DataPacker:
    """Collects tensors of one rank and writes them in packs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._step = 0
        self._packs: dict[int, int] = {}
        self._files = [self._next_file()]
        """Of every pack so far; the last one is being collected."""
        self._pending: list[Bytes] = []
        self._specs: dict[str, TensorSpec] = {}
        self._pending_bytes = 0
        self._written_bytes = 0
        self._seen: dict[int, int] = {}
        """Where a content of this identity is stored: number of its pack * PACK_TENSORS + number in the pack."""
        self._opened = lru_cache(maxsize=OPENED_PACKS)(_open_pack)

    @property
    def bytes_written(self) -> int:
        """Bytes on disk and on their way there."""
        return self._written_bytes + self._pending_bytes

    @property
    def has_pending(self) -> bool:
        """Whether bytes that were given to add() are still needed."""
        return bool(self._pending)

    def add(self, step: int, *, raw: Bytes, dtype: str, shape: tuple[int, ...], digest: int | None) -> tuple[str, str]:
        """Take a tensor's bytes over (they must not change while some are pending); gives its file and key."""
        identity = None if digest is None else hash((digest, dtype, raw.nbytes))
        earlier = self._find(identity, raw)
        if earlier is not None:
            return earlier
        if step != self._step:
            self.flush(step)
        file, key = self._files[-1], str(len(self._pending))
        if identity is not None:
            self._remember(identity, (len(self._files) - 1) * PACK_TENSORS + len(self._pending))
        self._specs[key] = _spec(raw, dtype, shape)
        self._pending.append(raw)
        self._pending_bytes += raw.nbytes
        if self._pending_bytes >= PACK_BYTES or len(self._pending) == PACK_TENSORS:
            self.flush(step)
        return file, key

    def flush(self, step: int) -> None:
        """Write what is pending and go on with `step`; a part whose values point to data is written after this."""
        if self._pending:
            self._written_bytes += write_aside(self.directory / self._files[-1], self._write_pack)
            self._packs[self._step] = self._packs.get(self._step, 0) + 1
            self._pending, self._specs, self._pending_bytes = [], {}, 0
            self._files.append("")
        self._step = step
        self._files[-1] = self._next_file()

    def move(self, new_directory: Path) -> None:
        """Follow a rank directory that was renamed."""
        self.directory = new_directory

    def _next_file(self) -> str:
        return f"{step_name(self._step)}/{data_name(self._packs.get(self._step, 0))}"

    def _write_pack(self, path: Path) -> None:
        serialize_file(self._specs, path)
        _start_writing_back(path)

    def _remember(self, identity: int, place: int) -> None:
        self._seen[identity] = place
        if len(self._seen) > SEEN_CONTENTS:
            del self._seen[next(iter(self._seen))]

    def _find(self, identity: int | None, raw: Bytes) -> tuple[str, str] | None:
        place = None if identity is None else self._seen.get(identity)
        if place is None:
            return None
        pack, number = divmod(place, PACK_TENSORS)
        file, key = self._files[pack], str(number)
        if pack == len(self._files) - 1:
            stored = self._pending[number]
        else:
            content, spans = self._opened(self.directory / file)
            stored = content[slice(*spans[key])]
        return (file, key) if _equal(stored, raw) else None


def _spec(raw: Bytes, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    known = dtype in SAFETENSORS_DTYPES and math.prod(shape) * numpy_dtype(dtype).itemsize == raw.nbytes
    return TensorSpec(
        dtype=dtype if known else "uint8",
        shape=list(shape) if known else [raw.nbytes],
        data_ptr=raw.__array_interface__["data"][0],
        data_len=raw.nbytes,
    )


def _start_writing_back(path: Path) -> None:
    """Keep the disk busy: by itself, the kernel waits until gigabytes are due, and then makes the writer wait."""
    if hasattr(os, "posix_fadvise"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _open_pack(path: Path) -> tuple[Bytes, Spans]:
    # Not of read_spans, which keeps those of many more files than a capture has memory for.
    return map_bytes(path), _parse_spans(path, os.path.getsize(path))


def read_value(rank_dir: Path, place: DataPlace, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The elements of a saved value, mapped from its file and read-only."""
    path = _data_path(rank_dir, place.file)
    spans = read_spans(path)
    if place.key not in spans:
        raise _bad_data(path, f"it has no tensor {place.key!r} (field data_key of a value)")
    start, stop = spans[place.key]
    element = element_type(dtype)
    _check_view(path, place, shape=shape, elements=(stop - start) // element.itemsize)
    if 0 in shape:
        return np.empty(shape, element)
    raw = map_bytes(path, start=start, length=stop - start)
    try:
        return np.ndarray(
            shape,
            element,
            buffer=raw,
            offset=place.offset * element.itemsize,
            strides=tuple(stride * element.itemsize for stride in place.strides),
        )
    except ValueError as error:
        raise _bad_data(path, f"tensor {place.key!r} cannot be seen as {dtype} {list(shape)}: {error}") from error


def element_type(dtype: str) -> np.dtype[Any]:
    """The numpy type of a value's elements, from a closed table: a trace must never choose numpy's object type."""
    if dtype == "complex32":
        return np.dtype([("real", np.float16), ("imag", np.float16)])
    name = BIT_DTYPES.get(dtype, dtype)
    if name not in DTYPES:
        raise TraceError(
            f"field dtype of a value says {dtype!r}",
            expected="a dtype such as float32, bfloat16 or int64",
            next_step="read the trace with the ulpscope version that wrote it (see rank.json)",
        )
    return numpy_dtype(name)


def read_spans(path: Path) -> Spans:
    """Where each tensor of a safetensors file begins and ends, in bytes of the file."""
    try:
        stat = os.stat(path)
    except OSError as error:
        raise _bad_data(path, error.strerror or str(error)) from error
    return _cached_spans(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _cached_spans(path: Path, size: int, modified: int) -> Spans:
    return _parse_spans(path, size)


def _parse_spans(path: Path, size: int) -> Spans:
    with open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(HEADER_LIMIT, size - 8):
            raise _bad_data(path, f"its header claims {length} bytes, the file has {size}")
        text = file.read(length)
    try:
        header = parse_json(text)
        entries = [(key, entry["data_offsets"]) for key, entry in header.items() if key != "__metadata__"]
        spans = {key: (8 + length + int(begin), 8 + length + int(end)) for key, (begin, end) in entries}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad_data(path, f"its header cannot be read ({error})") from error
    for key, (begin, end) in spans.items():
        if not 8 + length <= begin <= end <= size:
            raise _bad_data(path, f"tensor {key!r} reaches from byte {begin} to {end}, the file has {size}")
    return spans


def _equal(stored: Bytes, raw: Bytes) -> bool:
    if stored.nbytes != raw.nbytes:
        return False
    if raw.nbytes <= SMALL_BYTES:
        return stored.tobytes() == raw.tobytes()
    words = raw.nbytes // 8 * 8
    same_words = np.array_equal(stored[:words].view(np.uint64), raw[:words].view(np.uint64))
    return same_words and np.array_equal(stored[words:], raw[words:])


def _data_path(rank_dir: Path, file: str) -> Path:
    if not DATA_FILE.fullmatch(file):
        raise TraceError(
            f"field data_file of a value in {rank_dir} says {file!r}",
            expected="a data file of this rank, such as step0/data-000.safetensors",
            next_step="capture again; this trace was changed after it was written",
        )
    return rank_dir / file


def _check_view(path: Path, place: DataPlace, *, shape: tuple[int, ...], elements: int) -> None:
    if len(place.strides) != len(shape):
        raise _bad_data(path, f"shape {list(shape)} and data_strides {list(place.strides)} differ in length")
    if min(shape, default=0) < 0:
        raise _bad_data(path, f"shape {list(shape)} of tensor {place.key!r} is negative")
    reach = [(size - 1) * stride for size, stride in zip(shape, place.strides, strict=True)]
    first, last = place.offset + sum(x for x in reach if x < 0), place.offset + sum(x for x in reach if x > 0)
    if 0 not in shape and not 0 <= first <= last < elements:
        raise _bad_data(
            path,
            f"data_offset {place.offset} with data_strides {list(place.strides)} and shape {list(shape)} reaches "
            f"elements {first} to {last} of tensor {place.key!r}, which has {elements}",
        )


def _bad_data(path: Path, problem: str) -> TraceError:
    return TraceError(
        f"saved data in {path}: {problem}",
        expected="the safetensors file that the capture wrote",
        next_step="copy the trace again or capture again; `ulpscope show` still lists its calls and stats",
    )


Index = tuple[int, ...]


def pick_elements(array: NDArray[Any], count: int | None) -> tuple[tuple[Index, ...], NDArray[Any]]:
    """The first and last elements in row-major order, `count` in all, or every one."""
    if count is None or count >= array.size:
        places = np.arange(array.size)
    else:
        head = (count + 1) // 2
        places = np.concatenate([np.arange(head), np.arange(array.size - (count - head), array.size)])
    coordinates = np.unravel_index(places, array.shape) if array.ndim else ()
    picked = array[coordinates] if array.ndim else array.reshape(1)[places]
    indices = tuple(tuple(map(int, index)) for index in zip(*coordinates, strict=True)) if array.ndim else ((),)
    return indices[: len(places)], picked
