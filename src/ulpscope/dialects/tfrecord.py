"""TensorFlow's files of records: events of TensorBoard, and of the debugger of TensorFlow 2.

length, 8 bytes | masked CRC32C of the length | content | masked CRC32C of the content
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ulpscope.numerics.checksum import crc32c
from ulpscope.records.remarks import Counted, remark
from ulpscope.trace.files import map_bytes

_MASK = 0xA282EAD8
_BITS_32 = 0xFFFF_FFFF
_LENGTH = struct.Struct("<Q")
_CHECK = struct.Struct("<I")
RECORD_HEAD = _LENGTH.size + _CHECK.size
"""Bytes before the content."""


def record(content: bytes) -> bytes:
    """One record of a file."""
    length = _LENGTH.pack(len(content))
    return b"".join([length, _CHECK.pack(_masked(length)), content, _CHECK.pack(_masked(content))])


def is_record_file(data: memoryview) -> bool:
    """Whether a file begins with a record: the check of its length is right."""
    return len(data) >= RECORD_HEAD and _CHECK.unpack_from(data, _LENGTH.size)[0] == _masked(data[: _LENGTH.size])


@dataclass(slots=True)
class Records:
    """The sound records of a file, and what is told of the others."""

    contents: list[memoryview] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


def read_records(path: Path) -> Records:
    """Every record whose check is right; OSError if the file cannot be read at all.

    A record that was changed is left out. After a length that was changed, or at a file's torn end, nothing follows.
    """
    data = map_bytes(path).data
    found, damaged, end = Records(), 0, 0
    for content, after, sound in _records(data):
        end = after
        if sound:
            found.contents.append(content)
        else:
            damaged += 1
    if damaged:
        found.told.append(remark("records_damaged", file=path.name, records=Counted(damaged, "record")))
    if end < len(data):
        parts = {"file": path.name, "records": Counted(len(found.contents), "record"), "bytes": len(data) - end}
        found.told.append(remark("records_cut", **parts))
    return found


def _records(data: memoryview) -> Iterator[tuple[memoryview, int, bool]]:
    """Contents, where each record ends, and whether its check is right; as far as lengths can be trusted."""
    position = 0
    while len(data) - position >= RECORD_HEAD + _CHECK.size:
        head = data[position : position + _LENGTH.size]
        (length,) = _LENGTH.unpack(head)
        (check,) = _CHECK.unpack_from(data, position + _LENGTH.size)
        start = position + RECORD_HEAD
        if check != _masked(head) or length > len(data) - start - _CHECK.size:
            return
        content = data[start : start + length]
        (check,) = _CHECK.unpack_from(data, start + length)
        position = start + length + _CHECK.size
        yield content, position, check == _masked(content)


def _masked(data: bytes | memoryview) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & _BITS_32
