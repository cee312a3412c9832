"""One file of a dump: a single serialised Event, without the frame that TensorFlow's record files have.

An Event holds a tensor (summary.value) or the graph that ran (graph_def).
"""

from dataclasses import dataclass
from pathlib import Path

from ulpscope.dialects.files.stored import AnyArray, StoredTensor, unreadable, unsupported
from ulpscope.dialects.tfdbg.tensor_message import TensorMessage, parse_tensor
from ulpscope.dialects.wire import LENGTH, WireError, fields
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.files import map_bytes

# Fields of Event, Summary and Summary.Value (tensorflow/core/util/event.proto, framework/summary.proto).
GRAPH_DEF, SUMMARY = 4, 5
VALUE = 1
NODE_NAME, TENSOR = 7, 8


@dataclass(frozen=True, slots=True)
class TensorEvent:
    """A dumped tensor."""

    node_name: str
    """`fc1/MatMul:0:DebugIdentity`; empty where the file does not say."""
    tensor: TensorMessage | None
    """None for memory that nobody had written yet."""


def read_event(path: Path) -> TensorEvent:
    """The tensor of a file, its elements mapped; UlpscopeError if it is no such file."""
    data = map_file(path)
    try:
        for number, wire_type, content in fields(data):
            if number == SUMMARY and wire_type == LENGTH and isinstance(content, memoryview):
                return _summary(content)
    except WireError as error:
        raise bad_event(path, str(error)) from error
    raise bad_event(path, "holds no tensor")


def load_tensor(path: Path) -> StoredTensor:
    """The tensor of a file as all other readers give it."""
    tensor = read_event(path).tensor
    if tensor is None or (tensor.dtype in DTYPES and tensor.is_blank):
        return unsupported(path, "", dtype="uninitialized memory", shape=() if tensor is None else tensor.shape)
    if tensor.dtype not in DTYPES:
        return unsupported(path, "", dtype=tensor.dtype, shape=tensor.shape)
    return StoredTensor(tensor.dtype, tensor.shape, lambda: _elements(path))


def read_graph_bytes(path: Path) -> memoryview:
    """The serialised GraphDef of a graph file."""
    try:
        for number, wire_type, content in fields(map_file(path)):
            if number == GRAPH_DEF and wire_type == LENGTH and isinstance(content, memoryview):
                return content
    except WireError as error:
        raise bad_event(path, str(error)) from error
    raise bad_event(path, "holds no graph")


def map_file(path: Path) -> memoryview:
    """A file's bytes, mapped."""
    try:
        return map_bytes(path).data
    except OSError as error:
        raise bad_event(path, f"cannot be read: {error.strerror or error}") from error


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


def _summary(data: memoryview) -> TensorEvent:
    for number, wire_type, content in fields(data):
        if number == VALUE and wire_type == LENGTH and isinstance(content, memoryview):
            return _value(content)
    raise WireError("holds a summary without a value")


def _value(data: memoryview) -> TensorEvent:
    name, tensor = "", None
    for number, wire_type, content in fields(data):
        if wire_type == LENGTH and isinstance(content, memoryview):
            if number == NODE_NAME:
                name = bytes(content).decode("utf-8", "replace")
            elif number == TENSOR:
                tensor = parse_tensor(content)
    return TensorEvent(name, tensor)
