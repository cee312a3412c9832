"""Reads dump files of an Ascend NPU, in each of their three forms.

    dump = read_dump(Path("Relu.fc1_Relu.21.0.1767225600021123"))
    dump.outputs[0].type_name                 'FLOAT16'
    dump.outputs[0].array()                   mapped; nothing of the data is read before

A file is the length of its head, the head, and the data of all tensors one after the other; version 1 is one message
with the data inside. The head is a message (schemas/dump_data.proto); that of a nano device is records of tag, length
and value instead.
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from ulpscope.dialects.ascend.dump_file.records import (
    Container,
    Content,
    DumpBlock,
    DumpFile,
    DumpTensor,
    OriginalOp,
    Shape,
    Side,
    bad_dump,
)
from ulpscope.dialects.wire import Values, WireError, decode, schemas_of
from ulpscope.trace.files import map_bytes

__all__ = ["DumpFile", "DumpTensor", "parse_dump", "read_dump"]

_LENGTH = 8
"""Bytes of the head's length, with which a file begins."""

HEAD_LIMIT = 64 * 2**20
"""Real heads have some kilobytes; a wrong length must not make us read a whole file as one."""

_IN_FILE_ORDER = ("inputs", "outputs", "buffers", "spaces")


def read_dump(path: Path) -> DumpFile:
    """The head of a dump file; its data stays where it is until it is asked for."""
    try:
        mapped = map_bytes(path)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise bad_dump(path, f"cannot be read ({problem})", next_step="check the path") from error
    return _read(mapped.data, Content(path, 0, mapped.size))


def parse_dump(content: bytes, *, path: Path = Path("dump")) -> DumpFile:
    """A dump that is in memory; `path` is what errors call it."""
    return _read(memoryview(content), Content(path, 0, len(content), np.frombuffer(content, np.uint8)))


def _read(view: memoryview, whole: Content) -> DumpFile:
    if whole.size <= _LENGTH:
        # Such files are dumps of nothing: what was dumped had no tensors.
        return DumpFile(whole.path, Container.HEADER_AND_DATA)
    length = int.from_bytes(view[:_LENGTH], "little")
    start = _LENGTH + length
    if int.from_bytes(view[_LENGTH : _LENGTH + 4], "little") == NANO_MAGIC:
        return _read_nano(view, whole, start)
    if start > whole.size or length > HEAD_LIMIT:
        return _read_inline(view, whole, f"its head claims {length} bytes, the file has {whole.size}")
    try:
        head = decode(schemas_of("dump_data"), "DumpData", view, _LENGTH, start)
    except WireError as error:
        return _read_inline(view, whole, f"its head of {length} bytes {error}")
    _check_length(start, sum(entry["size"] for name in _IN_FILE_ORDER for entry in head[name]), whole)
    for name in _IN_FILE_ORDER:
        for entry in head[name]:
            entry["data"] = (start, start + entry["size"])
            start += entry["size"]
    return _dump(head, whole, Container.HEADER_AND_DATA)


def _read_inline(view: memoryview, whole: Content, problem: str) -> DumpFile:
    """The file as one message of version 1; if it is none, `problem` is what is wrong with it."""
    try:
        head = decode(schemas_of("dump_data"), "DumpData", view, 0, whole.size)
    except WireError:
        head = {}
    if not head or head["version"] == "2.0" or not (head["inputs"] or head["outputs"]):
        raise bad_dump(whole.path, problem)
    return _dump(head, whole, Container.INLINE)


def _check_length(start: int, data: int, whole: Content) -> None:
    """Newer files may have something after their data; one that is too short lacks data."""
    if start + data > whole.size:
        raise bad_dump(whole.path, f"its head announces {data} bytes of data, {whole.size - start} follow")


def _dump(head: Values, whole: Content, container: Container) -> DumpFile:
    parts = {
        "attrs": tuple(head["attrs"]),
        "inputs": tuple(_tensors(head["inputs"], Side.INPUT, whole)),
        "outputs": tuple(_tensors(head["outputs"], Side.OUTPUT, whole)),
        "buffers": tuple(_blocks(head["buffers"], whole)),
        "spaces": tuple(_blocks(head["spaces"], whole)),
    }
    return DumpFile(whole.path, container, **{**head, **parts})


def _tensors(entries: Iterable[Values], side: Side, whole: Content) -> Iterable[DumpTensor]:
    for index, entry in enumerate(entries):
        content, original = _content(entry.pop("data"), whole), entry.pop("original_op", None)
        parts = {
            "shape": _shape(entry["shape"]),
            "original_shape": _shape(entry["original_shape"]),
            "original_op": None if original is None else OriginalOp(**original),
            "dim_ranges": tuple(entry.get("dim_ranges", ())),
        }
        yield DumpTensor(side=side, index=index, content=content, **{**entry, **parts})


def _blocks(entries: Iterable[Values], whole: Content) -> Iterable[DumpBlock]:
    for entry in entries:
        yield DumpBlock(content=_content(entry.pop("data"), whole), **entry)


def _content(span: tuple[int, int] | None, whole: Content) -> Content:
    start, stop = span or (0, 0)
    return Content(whole.path, start, stop - start, whole.memory)


def _shape(entry: Values | None) -> Shape | None:
    return None if entry is None else tuple(entry["dim"])


RANK_LIMIT = 64
"""Axes that numpy can hold; the product of millions of them would never be done."""

NANO_MAGIC = 0x5A5A5A5A
INPUTS, OUTPUTS = 4, 5
SHAPE, ORIGINAL_SHAPE, ORIGINAL_NAME = 0, 1, 2

NANO_HEAD = struct.Struct("<II")
NANO_RECORD = struct.Struct("<II")
NANO_COUNT = struct.Struct("<I")
NANO_INPUT = struct.Struct("<3i3QI")
"""Data type, format, address type; address, offset, size; bytes of the list that follows."""
NANO_OUTPUT = struct.Struct("<6i3QI")
"""The same with original index, original data type and original format after the address type."""


class _NanoError(Exception):
    """Bytes that are no head of a nano device."""


class _Reader:
    """Bytes of a head, taken from the front."""

    def __init__(self, view: memoryview) -> None:
        self.rest = view

    def take(self, length: int, what: str) -> memoryview:
        if length > len(self.rest):
            raise _NanoError(f"{what} claims {length} bytes, {len(self.rest)} are left")
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken

    def numbers(self, kind: struct.Struct, what: str) -> tuple[int, ...]:
        return kind.unpack(self.take(kind.size, what))

    def records(self, what: str) -> Iterator[tuple[int, memoryview]]:
        """Tag and value of each record."""
        while len(self.rest):
            tag, length = self.numbers(NANO_RECORD, what)
            yield tag, self.take(length, f"record {tag} of {what}")


def _read_nano(view: memoryview, whole: Content, start: int) -> DumpFile:
    """The dump that a head describes; its data begins at `start`."""
    if start > whole.size:
        raise bad_dump(whole.path, f"its head claims {start - _LENGTH} bytes, the file has {whole.size}")
    try:
        reader = _Reader(view[_LENGTH:start])
        _, version = reader.numbers(NANO_HEAD, "the head")
        found: dict[int, memoryview] = {}
        for tag, value in reader.records("the head"):
            if tag not in (INPUTS, OUTPUTS) or tag in found:
                raise _NanoError(f"record {tag} in the head, where one {INPUTS} and one {OUTPUTS} are expected")
            found[tag] = value
        inputs = _nano_tensors(found.get(INPUTS), Side.INPUT, whole, start=start)
        read = sum(tensor.size for tensor in inputs)
        outputs = _nano_tensors(found.get(OUTPUTS), Side.OUTPUT, whole, start=start + read)
    except _NanoError as error:
        raise bad_dump(whole.path, f"its head cannot be read: {error}") from error
    _check_length(start, read + sum(tensor.size for tensor in outputs), whole)
    return DumpFile(whole.path, Container.NANO, inputs=inputs, outputs=outputs, nano_version=version)


def _nano_tensors(value: memoryview | None, side: Side, whole: Content, *, start: int) -> tuple[DumpTensor, ...]:
    if value is None:
        return ()
    reader = _Reader(value)
    (count,) = reader.numbers(NANO_COUNT, "a list of tensors")
    if count > len(reader.rest) // NANO_INPUT.size:
        raise _NanoError(f"{count} tensors are announced, {len(reader.rest)} bytes describe them")
    tensors: list[DumpTensor] = []
    for index in range(count):
        tensors.append(_nano_tensor(reader, side, index, whole, start))
        start += tensors[-1].size
    if len(reader.rest):
        raise _NanoError(f"{len(reader.rest)} bytes after the last of {count} tensors")
    return tuple(tensors)


def _nano_tensor(reader: _Reader, side: Side, index: int, whole: Content, start: int) -> DumpTensor:
    what = f"{side.value} {index}"
    stated = reader.numbers(NANO_INPUT if side is Side.INPUT else NANO_OUTPUT, what)
    data_type, layout, address_type, *original, address, offset, size, length = stated
    shapes: dict[int, Shape] = {}
    name, unknown = None, b""
    for tag, value in _Reader(reader.take(length, f"the list of {what}")).records(what):
        if tag in (SHAPE, ORIGINAL_SHAPE):
            if len(value) % 8 or len(value) > 8 * RANK_LIMIT:
                limit = f"not 8 for each of {RANK_LIMIT} axes at most"
                raise _NanoError(f"a shape of {what} has {len(value)} bytes, {limit}")
            shapes[tag] = struct.unpack(f"<{len(value) // 8}Q", value)
        elif tag != ORIGINAL_NAME:
            unknown += NANO_RECORD.pack(tag, len(value)) + bytes(value)
        else:
            name = _nano_text(value, what)
    return DumpTensor(
        side=side,
        index=index,
        data_type=data_type,
        format=layout,
        shape=shapes.get(SHAPE),
        original_shape=shapes.get(ORIGINAL_SHAPE),
        size=size,
        content=Content(whole.path, start, size, whole.memory),
        address=address,
        offset=offset,
        original_op=None if name is None or not original else OriginalOp(name, original[0], original[1], original[2]),
        nano=(address_type, *original),
        unknown=unknown,
    )


def _nano_text(value: memoryview, what: str) -> str:
    try:
        return bytes(value).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _NanoError(f"the name in {what} is not UTF-8 ({error.reason})") from error
