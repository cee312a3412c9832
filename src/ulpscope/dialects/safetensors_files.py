"""Tensors of a safetensors file, mapped; of a directory, all its shards together."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from ulpscope.dialects.stored import AnyArray, StoredTensor, unreadable, unsupported
from ulpscope.numerics.dtypes import numpy_dtype
from ulpscope.trace.files import map_bytes, open_file, parse_json

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
    needed = math.prod(shape) * numpy_dtype(dtype).itemsize
    if min(shape, default=0) < 0 or needed != end - begin:
        problem = f"tensor {key!r} is {dtype} {list(shape)} and has {end - begin} bytes"
        raise unreadable(path, problem, expected=EXPECTED)
    return StoredTensor(dtype, shape, lambda: _map(path, dtype, shape, begin=begin))


def _map(path: Path, dtype: str, shape: tuple[int, ...], *, begin: int) -> AnyArray:
    element = numpy_dtype(dtype)
    if 0 in shape:
        return np.empty(shape, element)
    length = math.prod(shape) * element.itemsize
    raw = map_bytes(path, start=begin, length=length)
    return raw.view(element).reshape(shape)
