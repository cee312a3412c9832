"""Reads and writes dump files of an Ascend NPU, in each of their three forms.

    dump = read_dump(Path("Relu.fc1_Relu.21.0.1767225600021123"))
    dump.outputs[0].type_name                 'FLOAT16'
    dump.outputs[0].array()                   mapped; nothing of the data is read before

A file is the length of its head, the head, and the data of all tensors one after the other; version 1 is one message
with the data inside.
"""

from pathlib import Path

import numpy as np

from ulpscope.dialects.ascend.dump_file.content import Content, bad_dump
from ulpscope.dialects.ascend.dump_file.message import (
    decode_head,
    dump_with_data_after,
    dump_with_data_inside,
    encode_head,
    sizes,
)
from ulpscope.dialects.ascend.dump_file.nano import MAGIC, NanoError, decode_nano, encode_nano
from ulpscope.dialects.ascend.dump_file.records import Container, DumpFile, DumpTensor
from ulpscope.dialects.wire import Values, WireError
from ulpscope.trace.files import map_bytes

__all__ = ["DumpFile", "DumpTensor", "parse_dump", "read_dump", "write_dump"]

_LENGTH = 8
"""Bytes of the head's length, with which a file begins."""

HEAD_LIMIT = 64 * 2**20
"""Real heads have some kilobytes; a wrong length must not make us read a whole file as one."""


def read_dump(path: Path) -> DumpFile:
    """The head of a dump file; its data stays where it is until it is asked for."""
    try:
        mapped = map_bytes(path)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise bad_dump(path, f"cannot be read ({problem})", next_step="check the path") from error
    if mapped.size <= _LENGTH:
        return _empty(path)
    return _read(mapped.data, Content(path, 0, mapped.size))


def parse_dump(content: bytes, *, path: Path = Path("dump")) -> DumpFile:
    """A dump that is in memory; `path` is what errors call it."""
    if len(content) <= _LENGTH:
        return _empty(path)
    memory = np.frombuffer(content, np.uint8)
    return _read(memoryview(content), Content(path, 0, len(content), memory))


def write_dump(dump: DumpFile) -> bytes:
    """The file that a dump is read from, byte by byte."""
    if dump.container is Container.INLINE:
        return encode_head(dump)
    head = encode_nano(dump) if dump.container is Container.NANO else encode_head(dump)
    contents = [part.content for part in dump.tensors] + [part.content for part in (*dump.buffers, *dump.spaces)]
    return b"".join([len(head).to_bytes(_LENGTH, "little"), head, *(part.read().tobytes() for part in contents)])


def _empty(path: Path) -> DumpFile:
    """Files of 8 bytes and less are dumps of nothing: what was dumped had no tensors."""
    return DumpFile(path, Container.HEADER_AND_DATA, "", 0, "", (), (), (), (), ())


def _read(view: memoryview, whole: Content) -> DumpFile:
    length = int.from_bytes(view[:_LENGTH], "little")
    start = _LENGTH + length
    if int.from_bytes(view[_LENGTH : _LENGTH + 4], "little") == MAGIC:
        return _read_nano(view, whole, start)
    if start > whole.size or length > HEAD_LIMIT:
        return _read_inline(view, whole, f"its head claims {length} bytes, the file has {whole.size}")
    try:
        head = decode_head(view, _LENGTH, start)
    except WireError as error:
        return _read_inline(view, whole, f"its head of {length} bytes {error}")
    _check_length(start, sizes(head), whole)
    return dump_with_data_after(head, whole, start=start)


def _read_inline(view: memoryview, whole: Content, problem: str) -> DumpFile:
    """The file as one message; if it is none, `problem` is what is wrong with it."""
    try:
        head = decode_head(view, 0, whole.size)
    except WireError:
        head = {}
    if not _is_version_1(head):
        raise bad_dump(whole.path, problem)
    return dump_with_data_inside(head, whole)


def _is_version_1(head: Values) -> bool:
    return bool(head) and head["version"] != "2.0" and bool(head["inputs"] or head["outputs"])


def _read_nano(view: memoryview, whole: Content, start: int) -> DumpFile:
    if start > whole.size:
        raise bad_dump(whole.path, f"its head claims {start - _LENGTH} bytes, the file has {whole.size}")
    try:
        dump = decode_nano(view[_LENGTH:start], whole, start=start)
    except NanoError as error:
        raise bad_dump(whole.path, f"its head cannot be read: {error}") from error
    _check_length(start, sum(tensor.size for tensor in dump.tensors), whole)
    return dump


def _check_length(start: int, data: int, whole: Content) -> None:
    """Newer files may have something after their data; one that is too short lacks data."""
    if start + data > whole.size:
        raise bad_dump(whole.path, f"its head announces {data} bytes of data, {whole.size - start} follow")
