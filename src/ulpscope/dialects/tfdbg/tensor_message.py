"""TensorFlow's TensorProto: elements as raw bytes, or as numbers in a field of their type, the last one repeated."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ulpscope.dialects.wire import FIXED32, FIXED64, LENGTH, VARINT, WireError, fields, varints
from ulpscope.numerics.dtypes import numpy_dtype

AnyArray: TypeAlias = NDArray[Any]
Content: TypeAlias = int | memoryview

# Fields of TensorProto (tensorflow/core/framework/tensor.proto).
DTYPE, SHAPE, RAW = 1, 2, 4
FLOATS, DOUBLES, INTS, COMPLEXES, INT64S, BOOLS, DOUBLE_COMPLEXES, HALVES, UINT32S, UINT64S, FLOAT8S = (
    5,
    6,
    7,
    9,
    10,
    11,
    12,
    13,
    16,
    17,
    18,
)

ELEMENT_TYPES: dict[int, tuple[str, int]] = {
    1: ("float32", FLOATS),
    2: ("float64", DOUBLES),
    3: ("int32", INTS),
    4: ("uint8", INTS),
    5: ("int16", INTS),
    6: ("int8", INTS),
    8: ("complex64", COMPLEXES),
    9: ("int64", INT64S),
    10: ("bool", BOOLS),
    11: ("int8", INTS),
    12: ("uint8", INTS),
    13: ("int32", INTS),
    14: ("bfloat16", HALVES),
    15: ("int16", INTS),
    16: ("uint16", INTS),
    17: ("uint16", INTS),
    18: ("complex128", DOUBLE_COMPLEXES),
    19: ("float16", HALVES),
    22: ("uint32", UINT32S),
    23: ("uint64", UINT64S),
    24: ("float8_e5m2", FLOAT8S),
    25: ("float8_e4m3fn", FLOAT8S),
    26: ("float8_e4m3fnuz", FLOAT8S),
    28: ("float8_e5m2fnuz", FLOAT8S),
    29: ("int8", INTS),
    30: ("uint8", INTS),
}
"""DataType (types.proto): our name, and the field of its numbers. Quantised types are integers; int4 takes a byte."""
OTHER_TYPES = {7: "string", 20: "resource", 21: "variant", 27: "float8_e4m3b11fnuz", 31: "int2", 32: "uint2"}
_REFERENCES_FROM = 100
"""A variable's type is that of its content, and 100."""

_FIXED = {FLOATS: "<f4", DOUBLES: "<f8", COMPLEXES: "<f4", DOUBLE_COMPLEXES: "<f8"}
_MOST_DIMENSIONS = 254
"""TensorFlow's own limit."""
_EXPANDED = 1 << 20
"""Elements that a short file may stand for by repeating its last number; more only in proportion to the file."""
_EXPANDED_A_BYTE = 64


@dataclass(frozen=True, slots=True)
class TensorMessage:
    """A tensor of a file, its elements not yet read."""

    dtype: str
    """A name of numerics.dtypes.DTYPES, or TensorFlow's word for a type that has no numbers that can be compared."""
    shape: tuple[int, ...]
    field: int
    raw: memoryview | None
    typed: tuple[tuple[int, Content], ...]
    """Occurrences of the field of numbers: wire type and content."""
    size: int
    """Bytes of the message."""

    @property
    def is_blank(self) -> bool:
        """Whether the shape has elements and the file has none of them: memory that nobody had written yet."""
        return self.raw is None and not self.typed and 0 not in self.shape

    def array(self) -> AnyArray:
        """The elements; WireError if there are too few or too many."""
        flat = self._from_raw(self.raw) if self.raw is not None else self._from_numbers()
        return flat.reshape(self.shape)

    def _from_raw(self, raw: memoryview) -> AnyArray:
        element = numpy_dtype(self.dtype)
        needed = math.prod(self.shape) * element.itemsize
        if needed != len(raw):
            raise WireError(f"holds {len(raw):,} bytes for {self.dtype} {list(self.shape)}, which needs {needed:,}")
        return np.frombuffer(raw, element)

    def _from_numbers(self) -> AnyArray:
        numbers, count = _numbers(self.dtype, self.field, self.typed), math.prod(self.shape)
        if len(numbers) == count:
            return numbers
        if not 0 < len(numbers) < count:
            raise WireError(f"holds {len(numbers):,} numbers for {self.dtype} {list(self.shape)}")
        if count > _EXPANDED + _EXPANDED_A_BYTE * self.size:
            raise WireError(f"claims {count:,} elements in {self.size:,} bytes")
        return np.concatenate([numbers, np.repeat(numbers[-1:], count - len(numbers))])


def parse_tensor(data: memoryview) -> TensorMessage:
    """Type, shape and where the elements are; WireError if this is no tensor."""
    code, raw = 0, None
    shape: tuple[int, ...] = ()
    typed: dict[int, list[tuple[int, Content]]] = {}
    for number, wire_type, content in fields(data):
        if number == DTYPE:
            code = _integer(wire_type, content)
        elif number == SHAPE:
            shape = _shape(_message(wire_type, content))
        elif number == RAW:
            raw = _message(wire_type, content)
        elif number >= FLOATS:
            typed.setdefault(number, []).append((wire_type, content))
    if code > _REFERENCES_FROM:
        code -= _REFERENCES_FROM
    name, field = ELEMENT_TYPES.get(code, (OTHER_TYPES.get(code, f"type {code}"), 0))
    raw = raw if raw is None or len(raw) else None
    return TensorMessage(name, shape, field, raw, tuple(typed.get(field, ())), len(data))


def _shape(data: memoryview) -> tuple[int, ...]:
    sizes = []
    for number, wire_type, content in fields(data):
        if number == 2:
            sizes.append(_size(_message(wire_type, content)))
        elif number == 3 and content:
            raise WireError("has a tensor of unknown rank")
        if len(sizes) > _MOST_DIMENSIONS:
            raise WireError(f"has a tensor of more than {_MOST_DIMENSIONS} dimensions")
    return tuple(sizes)


def _size(data: memoryview) -> int:
    size = 0
    for number, wire_type, content in fields(data):
        if number == 1:
            size = _integer(wire_type, content)
    if size >= 2**63:
        raise WireError("has a tensor with a dimension of unknown size")
    return size


def _numbers(dtype: str, field: int, occurrences: Iterable[tuple[int, Content]]) -> AnyArray:
    parts = [_part(dtype, field, wire_type, content) for wire_type, content in occurrences]
    return np.concatenate(parts) if parts else np.empty(0, numpy_dtype(dtype))


def _part(dtype: str, field: int, wire_type: int, content: Content) -> AnyArray:
    element = numpy_dtype(dtype)
    if field in _FIXED:
        return _fixed(element, _FIXED[field], wire_type, content)
    if field == FLOAT8S:
        return np.frombuffer(_message(wire_type, content), element)
    integers = _varints(wire_type, content)
    if field == HALVES:
        return np.array([bits & 0xFFFF for bits in integers], np.uint16).view(element)
    # Signed numbers are written as 64 bits; a narrow one keeps its low bits.
    return np.array(integers, np.uint64).astype(np.int64 if element.kind == "i" else np.uint64).astype(element)


def _fixed(element: np.dtype[Any], single: str, wire_type: int, content: Content) -> AnyArray:
    expected = (LENGTH, FIXED32 if single == "<f4" else FIXED64)
    if wire_type not in expected or isinstance(content, int):
        raise WireError(f"has wire type {wire_type} where {element} is expected")
    if len(content) % int(single[2:]):
        raise WireError(f"has {len(content):,} bytes of numbers of {single[2:]} bytes")
    numbers = np.frombuffer(content, single)
    if element.kind != "c":
        return numbers.astype(element, copy=False)
    if len(numbers) % 2:
        raise WireError(f"has {len(numbers):,} parts of complex numbers")
    return numbers.view(element)


def _varints(wire_type: int, content: Content) -> list[int]:
    if wire_type == VARINT and isinstance(content, int):
        return [content]
    packed = _message(wire_type, content)
    return list(varints(packed, 0, len(packed)))


def _integer(wire_type: int, content: Content) -> int:
    if wire_type != VARINT or not isinstance(content, int):
        raise WireError(f"has wire type {wire_type} where a number is expected")
    return content


def _message(wire_type: int, content: Content) -> memoryview:
    if wire_type != LENGTH or isinstance(content, int):
        raise WireError(f"has wire type {wire_type} where bytes are expected")
    return content
