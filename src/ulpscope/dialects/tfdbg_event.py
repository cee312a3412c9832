"""One file of a dump: a single serialised Event, without the frame that TensorFlow's record files have.

An Event holds a tensor (summary.value) or the graph that ran (graph_def). The elements of a TensorProto are raw bytes,
or numbers in a field of their type, the last one repeated.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ulpscope.dialects.ascend.dump_file.records import QUANTISED
from ulpscope.dialects.files.stored import AnyArray, StoredTensor, unreadable, unsupported
from ulpscope.dialects.graphs.messages import TENSORFLOW_DTYPES
from ulpscope.dialects.wire import FIXED32, FIXED64, LENGTH, VARINT, WireError, fields, varints
from ulpscope.numerics.dtypes import DTYPES, numpy_dtype
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.files import map_bytes

Content: TypeAlias = int | memoryview

# Fields of Event, Summary and Summary.Value (tensorflow/core/util/event.proto, framework/summary.proto).
GRAPH_DEF, SUMMARY = 4, 5
VALUE = 1
NODE_NAME, TENSOR = 7, 8

# Fields of TensorProto (tensorflow/core/framework/tensor.proto), and in which of them the numbers of a type stand.
DTYPE, SHAPE, RAW, FIRST_OF_NUMBERS, INTS, HALVES, FLOAT8S = 1, 2, 4, 5, 7, 13, 18
_NUMBERS = {
    "float32": 5,
    "float64": 6,
    "complex64": 9,
    "int64": 10,
    "bool": 11,
    "complex128": 12,
    "float16": HALVES,
    "bfloat16": HALVES,
    "uint32": 16,
    "uint64": 17,
    "float8_e5m2": FLOAT8S,
    "float8_e4m3fn": FLOAT8S,
    "float8_e4m3fnuz": FLOAT8S,
    "float8_e5m2fnuz": FLOAT8S,
}
"""All other integers share INTS."""
_FIXED = {"float32": "<f4", "float64": "<f8", "complex64": "<f4", "complex128": "<f8"}

_STORED_AS = QUANTISED | {"int4": "int8", "uint4": "uint8"}
"""An int4 takes a byte."""
_REFERENCES_FROM = 100
"""A variable's type is that of its content, and 100."""

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
        count = math.prod(self.shape)
        if self.raw is not None:
            element = numpy_dtype(self.dtype)
            needed, held = count * element.itemsize, len(self.raw)
            if needed != held:
                raise WireError(f"holds {held:,} bytes for {self.dtype} {list(self.shape)}, which needs {needed:,}")
            return np.frombuffer(self.raw, element).reshape(self.shape)
        parts = [_part(self.dtype, wire_type, content) for wire_type, content in self.typed]
        numbers = np.concatenate(parts) if parts else np.empty(0, numpy_dtype(self.dtype))
        if len(numbers) == count:
            return numbers.reshape(self.shape)
        if not 0 < len(numbers) < count:
            raise WireError(f"holds {len(numbers):,} numbers for {self.dtype} {list(self.shape)}")
        if count > _EXPANDED + _EXPANDED_A_BYTE * self.size:
            raise WireError(f"claims {count:,} elements in {self.size:,} bytes")
        return np.concatenate([numbers, np.repeat(numbers[-1:], count - len(numbers))]).reshape(self.shape)


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
        elif number >= FIRST_OF_NUMBERS:
            typed.setdefault(number, []).append((wire_type, content))
    if code > _REFERENCES_FROM:
        code -= _REFERENCES_FROM
    known = TENSORFLOW_DTYPES[code] if 0 < code < len(TENSORFLOW_DTYPES) else f"type {code}"
    name = _STORED_AS.get(known, known)
    field = _NUMBERS.get(name, INTS) if name in DTYPES else 0
    raw = raw if raw is None or len(raw) else None
    return TensorMessage(name, shape, raw, tuple(typed.get(field, ())), len(data))


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


def _part(dtype: str, wire_type: int, content: Content) -> AnyArray:
    element = numpy_dtype(dtype)
    if dtype in _FIXED:
        return _fixed(element, _FIXED[dtype], wire_type, content)
    if _NUMBERS.get(dtype) == FLOAT8S:
        return np.frombuffer(_message(wire_type, content), element)
    if wire_type == VARINT and isinstance(content, int):
        integers = [content]
    else:
        packed = _message(wire_type, content)
        integers = list(varints(packed, 0, len(packed)))
    if _NUMBERS.get(dtype) == HALVES:
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


def _integer(wire_type: int, content: Content) -> int:
    if wire_type != VARINT or not isinstance(content, int):
        raise WireError(f"has wire type {wire_type} where a number is expected")
    return content


def _message(wire_type: int, content: Content) -> memoryview:
    if wire_type != LENGTH or isinstance(content, int):
        raise WireError(f"has wire type {wire_type} where bytes are expected")
    return content


@dataclass(frozen=True, slots=True)
class TensorEvent:
    """A dumped tensor."""

    node_name: str
    """`fc1/MatMul:0:DebugIdentity`; empty where the file does not say."""
    tensor: TensorMessage | None
    """None for memory that nobody had written yet."""


def read_event(path: Path) -> TensorEvent:
    """The tensor of a file, its elements mapped; UlpscopeError if it is no such file."""
    try:
        summary = _first(_mapped(path), SUMMARY)
        if summary is None:
            raise WireError("holds no tensor")
        value = _first(summary, VALUE)
        if value is None:
            raise WireError("holds a summary without a value")
        name, tensor = "", None
        for number, wire_type, content in fields(value):
            if number == NODE_NAME and wire_type == LENGTH:
                name = bytes(_message(wire_type, content)).decode("utf-8", "replace")
            elif number == TENSOR and wire_type == LENGTH:
                tensor = parse_tensor(_message(wire_type, content))
    except WireError as error:
        raise bad_event(path, str(error)) from error
    return TensorEvent(name, tensor)


def read_graph_bytes(path: Path) -> memoryview:
    """The serialised GraphDef of a graph file."""
    try:
        graph = _first(_mapped(path), GRAPH_DEF)
    except WireError as error:
        raise bad_event(path, str(error)) from error
    if graph is None:
        raise bad_event(path, "holds no graph")
    return graph


def load_tensor(path: Path) -> StoredTensor:
    """The tensor of a file as all other readers give it."""
    tensor = read_event(path).tensor
    if tensor is None or (tensor.dtype in DTYPES and tensor.is_blank):
        return unsupported(path, "", dtype="uninitialized memory", shape=() if tensor is None else tensor.shape)
    if tensor.dtype not in DTYPES:
        return unsupported(path, "", dtype=tensor.dtype, shape=tensor.shape)
    return StoredTensor(tensor.dtype, tensor.shape, lambda: _elements(path))


def bad_event(path: Path, problem: str) -> UlpscopeError:
    """A file that is not what its name says."""
    return unreadable(path, problem, expected="an Event of TensorFlow, as tfdbg dumps one a tensor")


def _elements(path: Path) -> AnyArray:
    """Out of the file, opened again: a dump has thousands of files, and a process may have some hundred open."""
    tensor = read_event(path).tensor
    if tensor is None:
        raise bad_event(path, "holds no tensor any more")
    try:
        return tensor.array()
    except (WireError, ValueError, OverflowError) as error:
        raise bad_event(path, str(error)) from error


def _mapped(path: Path) -> memoryview:
    try:
        return map_bytes(path).data
    except OSError as error:
        raise bad_event(path, f"cannot be read: {error.strerror or error}") from error


def _first(data: memoryview, wanted: int) -> memoryview | None:
    """The first field of this number that has a length."""
    for number, wire_type, content in fields(data):
        if number == wanted and wire_type == LENGTH and isinstance(content, memoryview):
            return content
    return None
