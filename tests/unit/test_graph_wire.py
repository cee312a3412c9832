"""Protobuf's wire format, against bytes worked out by hand from its specification."""

import struct

import pytest

from ulpscope.dialects.graphs.messages import DEEPEST, GraphFileError, Message, read_message
from ulpscope.dialects.wire import Field, Scalar, Schemas, WireError, fields, varint

SCHEMAS: Schemas = {
    "Message": {
        1: Field("number", Scalar.INT),
        2: Field("text", Scalar.BYTES),
        3: Field("inner", "Message"),
        4: Field("single", Scalar.FLOAT),
        5: Field("double", Scalar.DOUBLE),
        16: Field("flag", Scalar.BOOL),
    }
}


def read(data: bytes) -> Message:
    return read_message(memoryview(data), "Message", SCHEMAS, {})


@pytest.mark.parametrize(
    ("data", "number"),
    [(b"\x00", 0), (b"\x7f", 127), (b"\x96\x01", 150), (b"\xff" * 9 + b"\x01", 2**64 - 1), (b"\x80\x80\x00", 0)],
)
def test_varints(data: bytes, number: int) -> None:
    assert varint(memoryview(data + b"\xff"), 0) == (number, len(data))


def test_fields_of_every_kind() -> None:
    data = b"\x08\x96\x01" + b"\x12\x02hi" + b"\x1a\x02\x08\x05" + b"\x25" + struct.pack("<f", 1.5)
    data += b"\x29" + struct.pack("<d", -0.1) + b"\x80\x01\x01" + b"\x08" + b"\xff" * 9 + b"\x01"
    assert read(data) == {
        "number": [150, -1],
        "text": [b"hi"],
        "inner": [{"number": [5]}],
        "single": [1.5],
        "double": [-0.1],
        "flag": [True],
    }


def test_packed_values() -> None:
    data = b"\x0a\x03\x01\x96\x01" + b"\x22\x08" + struct.pack("<2f", 1.0, 2.0) + b"\x0a\x00"
    assert read(data) == {"number": [1, 150], "single": [1.0, 2.0]}


def test_fields_that_no_schema_names_are_passed_over() -> None:
    data = b"\x78\x05" + b"\x7a\x03abc" + b"\x7d\x00\x00\x00\x00" + b"\x79" + b"\x00" * 8 + b"\x08\x01"
    assert read(data) == {"number": [1]}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x08", "a number at byte 1 that does not end"),
        (b"\x08" + b"\x80" * 11, "a number at byte 1 that does not end"),
        (b"\x00\x01", "field number 0"),
        (b"\x12\x05abc", "a field 2 of 5 bytes where 3 are left"),
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7fabc", "where 3 are left"),
        (b"\x25\x00\x00", "a field 4 of 4 bytes where 2 are left"),
        (b"\x0b\x0c", "field 1 with wire type 3"),
        (b"\x10\x05", "a number where bytes is expected"),
        (b"\x18\x05", "wire type 0 where the message Message is expected"),
        (b"\x0d\x00\x00\x00\x00", "wire type 5 where int is expected"),
        (b"\x22\x03abc", "3 bytes of packed float, which is no multiple of 4"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, problem: str) -> None:
    with pytest.raises(GraphFileError) as caught:
        read(data)
    assert problem in str(caught.value)
    assert "damaged, or no Message" in str(caught.value)


def test_nesting_is_bounded() -> None:
    data = b""
    for _ in range(DEEPEST + 5):
        length = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 0x7F | 0x80, len(data) >> 7])
        data = b"\x1a" + length + data
    with pytest.raises(GraphFileError, match=f"more than {DEEPEST} deep"):
        read(data)


def test_content_is_a_view_and_no_copy() -> None:
    data = memoryview(b"\x12\x03abc")
    ((_, _, content),) = fields(data)
    assert isinstance(content, memoryview)
    assert content.obj is data.obj
    with pytest.raises(WireError):
        list(fields(data[:3]))
