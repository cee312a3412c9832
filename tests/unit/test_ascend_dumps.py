"""Dump files of an Ascend NPU: every form, every element type, and what is wrong with damaged ones."""

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.unit.dump_writing import write_dump

from hostile import CASES, Laid
from make_ascend_dumps import Tensor, bytes_field, file_bytes, number_field
from ulpscope.dialects.ascend.dump_file.file import parse_dump, read_dump
from ulpscope.dialects.ascend.dump_file.records import (
    DATA_TYPES,
    FORMATS,
    Container,
    DumpTensor,
    data_type_name,
    format_name,
    widened,
)
from ulpscope.dialects.ascend.logical import logical_array, logical_form, preferred_layouts
from ulpscope.numerics.dtypes import hifloat8_values
from ulpscope.records.errors import UlpscopeError

DATA = Path(__file__).parents[1] / "data" / "ascend"
MANIFEST = json.loads((DATA / "manifest.json").read_text())
NETWORK = DATA / MANIFEST["dump_dir"]
REFERENCE = DATA / MANIFEST["tf_dump"]
CONVERTED = DATA / "expected/msprobe_26.2.0/convert"
DUMPS = sorted(
    path
    for folder in (NETWORK, DATA / "overflow_v2", DATA / "overflow_v2_aic_v1", DATA / "lowprec", DATA / "nano")
    for path in folder.iterdir()
    if path.suffix not in (".npy", ".csv")
)


def network(name: str) -> Path:
    return next(path for path in NETWORK.iterdir() if path.name.startswith(name))


def reference(name: str) -> np.ndarray[Any, Any]:
    return np.load(next(REFERENCE.glob(f"{name}.0.*.npy")))


def output(data: np.ndarray[Any, Any], **more: Any) -> DumpTensor:
    return parse_dump(file_bytes("x", outputs=[Tensor(data, **more)])).outputs[0]


def refused(content: bytes) -> str:
    with pytest.raises(UlpscopeError) as caught:
        parse_dump(content, path=Path("Relu.x"))
    assert caught.value.seen.startswith("Relu.x: ")
    assert caught.value.expected
    assert caught.value.next_step
    return caught.value.seen


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.name[:40])
def test_a_dump_is_written_again_byte_by_byte(path: Path) -> None:
    assert write_dump(read_dump(path)) == path.read_bytes()
    assert write_dump(parse_dump(path.read_bytes())) == path.read_bytes()


@pytest.mark.parametrize("entry", MANIFEST["files"], ids=lambda entry: entry["op"][:40])
def test_tensors_are_those_that_the_device_tools_read(entry: dict[str, Any]) -> None:
    dump = read_dump(NETWORK / entry["file"])
    assert (dump.version, dump.op_name, dump.container) == ("2.0", entry["op"], Container.HEADER_AND_DATA)
    expected = sorted(CONVERTED.glob(f"{entry['file']}.*put.*.npy"))
    assert len(dump.tensors) == len(expected)
    for tensor in dump.tensors:
        array = np.load(CONVERTED / f"{entry['file']}.{tensor.name}.npy")
        assert tensor.array().dtype == array.dtype
        np.testing.assert_array_equal(tensor.array(), array)


def test_buffers_and_workspaces_follow_the_tensors() -> None:
    buffer = read_dump(network("MatMulV2.fc2")).buffers[0]
    space = read_dump(network("Conv2D")).spaces[0]
    assert buffer.content.read().tobytes() == next(CONVERTED.glob("*.l1buffer.0.bin")).read_bytes()
    assert space.content.read().tobytes() == next(CONVERTED.glob("*.space.0.bin")).read_bytes()


def test_heads_tell_layouts_shapes_and_original_operators() -> None:
    tensor = read_dump(network("Conv2D")).outputs[0]
    assert (tensor.type_name, tensor.format_name) == ("FLOAT16", "NC1HWC0")
    assert (tensor.shape, tensor.original_shape) == ((2, 1, 12, 12, 16), (2, 12, 12, 6))
    assert tensor.original_op is not None
    assert (tensor.original_op.name, tensor.original_op.output_index) == ("conv1/Relu", 0)
    assert tensor.address == 0x124040010000


@pytest.mark.parametrize(
    ("dump", "side", "index", "name"),
    [
        ("Cast.trans_Cast_0", "inputs", 0, "x"),
        ("Cast.trans_Cast_0", "outputs", 0, "x"),
        ("TransData.trans_TransData_1.", "outputs", 0, "x"),
        ("TransData.trans_TransData_2", "inputs", 0, "conv1_weights"),
        ("TransData.trans_TransData_2", "outputs", 0, "conv1_weights"),
        ("Conv2D", "inputs", 0, "x"),
        ("Conv2D", "inputs", 1, "conv1_weights"),
        ("Conv2D", "inputs", 2, "conv1_biases"),
        ("MatMulV2.fc1", "inputs", 1, "fc1_weights"),
        ("MatMulV2.fc2", "inputs", 1, "fc2_weights"),
    ],
)
def test_device_layouts_give_the_networks_own_arrays(dump: str, side: str, index: int, name: str) -> None:
    tensor = getattr(read_dump(network(dump)), side)[index]
    array = logical_array(tensor, logical_form(tensor))
    np.testing.assert_array_equal(array, reference(name).astype(array.dtype))


def test_data_is_mapped_and_not_read() -> None:
    array = read_dump(network("Relu")).outputs[0].array()
    while not isinstance(array, np.memmap):
        assert isinstance(array.base, np.ndarray)
        array = array.base
    assert not array.flags.writeable


def test_a_nano_file_has_types_of_its_own() -> None:
    dump = read_dump(next((DATA / "nano").glob("Mul.*")))
    assert dump.container is Container.NANO
    assert [tensor.type_name for tensor in dump.tensors] == ["FLOAT", "FLOAT16"]
    for tensor in dump.tensors:
        np.testing.assert_array_equal(tensor.array(), np.load(DATA / f"nano/expected.{tensor.name}.npy"))
    assert dump.outputs[0].original_op is not None
    assert dump.outputs[0].original_op.name == "double/Mul"


def test_version_1_has_its_data_inside() -> None:
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4, dtype=np.int64)
    content = file_bytes("old/op", inputs=[Tensor(first)], outputs=[Tensor(second)], version="1.0")
    dump = parse_dump(content)
    assert (dump.container, dump.op_name, dump.version) == (Container.INLINE, "old/op", "1.0")
    np.testing.assert_array_equal(dump.inputs[0].array(), first)
    np.testing.assert_array_equal(dump.outputs[0].array(), second)
    assert write_dump(dump) == content


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"abc"])
def test_short_files_are_dumps_of_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "short").write_bytes(content)
    assert read_dump(tmp_path / "short").tensors == ()


def test_what_follows_the_data_does_not_matter() -> None:
    content = file_bytes("x", outputs=[Tensor(np.arange(3.0))]) + b"something newer"
    np.testing.assert_array_equal(parse_dump(content).outputs[0].array(), np.arange(3.0))


def test_bytes_beyond_the_shape_are_padding() -> None:
    np.testing.assert_array_equal(output(np.arange(5, dtype=np.int32), padding=12).array(), np.arange(5))


def test_fields_of_a_newer_version_are_kept() -> None:
    head = bytes_field(1, b"2.0") + bytes_field(6, b"x") + number_field(9, 77) + bytes_field(200, b"later")
    content = struct.pack("<Q", len(head)) + head
    dump = parse_dump(content)
    assert (dump.op_name, write_dump(dump)) == ("x", content)


def test_a_tensor_without_a_shape_is_one_row() -> None:
    message = number_field(1, 1) + number_field(6, 12)
    head = bytes_field(1, b"2.0") + bytes_field(3, message)
    dump = parse_dump(struct.pack("<Q", len(head)) + head + np.arange(3, dtype=np.float32).tobytes())
    np.testing.assert_array_equal(dump.outputs[0].array(), np.arange(3, dtype=np.float32))
    assert output(np.float32(7)).array().shape == ()


@pytest.mark.parametrize(
    "dtype",
    "float32 float16 int8 uint8 int16 uint16 int32 int64 uint32 uint64 bool float64 complex64 complex128 bfloat16 "
    "float8_e5m2 float8_e4m3fn float8_e8m0fnu".split(),
)
def test_types_that_numpy_has_keep_their_bits(dtype: str) -> None:
    small = dtype.startswith(("bfloat", "float8"))
    kind = np.dtype(getattr(ml_dtypes, dtype)) if small else np.dtype(dtype)
    raw = np.arange(kind.itemsize * 24, dtype=np.uint8) % (2 if dtype == "bool" else 251)
    data = raw.view(kind).reshape(2, 3, 4)
    array = output(data).array()
    assert array.dtype == kind
    assert array.shape == (2, 3, 4)
    assert array.tobytes() == raw.tobytes()


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        (0, "int8"),
        (14, "int8"),
        (15, "uint8"),
        (18, "int8"),
        (19, "int16"),
        (20, "int32"),
        (21, "uint8"),
        (22, "uint16"),
        (23, "int64"),
    ],
)
def test_types_that_are_others_in_disguise(code: int, dtype: str) -> None:
    data = np.array([1, 2, 100]).astype(dtype)
    array = output(data, code=code).array()
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, data)


@pytest.mark.parametrize(
    ("code", "packed", "count", "expected"),
    [
        (28, [0x21, 0xF8], 4, [1, 2, -8, -1]),  # INT4, the first in the low half
        (28, [0x21, 0xF8], 3, [1, 2, -8]),
        (29, [0b10110000, 0b01000000], 10, [1, 0, 1, 1, 0, 0, 0, 0, 0, 1]),  # UINT1, the highest bit first
        (30, [0b11_10_01_00], 4, [0, 1, -2, -1]),  # INT2
        (31, [0b11_10_01_00], 4, [0, 1, 2, 3]),  # UINT2
        (33, [0x00, 0x08, 0x10, 0x6E, 0x6F], 5, [0, 1, 2, 32768, np.inf]),  # HIFLOAT8
        (37, [0b01_001100, 0b0000_0000, 0b000000_00], 2, [1.0, 2.0**-4]),  # FLOAT6_E3M2: 001100 and 000001
        (38, [0b00_001000, 0b0001_0000], 2, [1.0, 0.0]),  # FLOAT6_E2M3
        (39, [0x62, 0xF7], 4, [1.0, 4.0, 6.0, -6.0]),  # FLOAT4_E2M1
        (40, [0x41, 0xC7], 4, [0.25, 1.0, 1.75, -1.0]),  # FLOAT4_E1M2
    ],
)
def test_types_that_share_bytes(code: int, packed: list[int], count: int, expected: list[float]) -> None:
    tensor = output(np.array(packed, np.uint8), code=code, shape=(count,))
    kind = tensor.element_type
    assert kind is not None
    np.testing.assert_array_equal(widened(tensor.array(), kind).astype(np.float64), expected)


def test_complex_numbers_of_two_halves() -> None:
    halves = np.array([1.5, -2.0, 0.0, 65504.0], np.float16)
    tensor = output(halves.view(np.uint8), code=32, shape=(2,))
    assert tensor.type_name == "COMPLEX32"
    np.testing.assert_array_equal(widened(tensor.array(), "complex32"), np.array([1.5 - 2j, 65504j], np.complex64))


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (0x01, 2.0**-22),
        (0x07, 2.0**-16),
        (0x08, 1.0),
        (0x0F, 1.875),
        (0x10, 2.0),
        (0x17, 3.75),
        (0x18, 0.5),
        (0x1F, 0.9375),
        (0x20, 4.0),
        (0x28, 8.0),
        (0x30, 0.25),
        (0x38, 0.125),
        (0x40, 16.0),
        (0x4F, 224.0),
        (0x5F, 1.75 / 128),
        (0x60, 256.0),
        (0x6E, 32768.0),
        (0x7F, 1.5 / 32768),
        (0x80, np.nan),
        (0x81, -(2.0**-22)),
        (0x88, -1.0),
        (0x6F, np.inf),
        (0xEF, -np.inf),
        (0xFF, -1.5 / 32768),
    ],
)
def test_hifloat8_by_its_definition(code: int, value: float) -> None:
    np.testing.assert_equal(hifloat8_values()[code], np.float32(value))


def test_hifloat8_has_every_number_once() -> None:
    finite = hifloat8_values()[np.isfinite(hifloat8_values())]
    assert len(set(finite.tolist())) == len(finite) == 253


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("BFloat16", set()),
        ("Float8E4M3FN", {0x7F, 0xFF}),
        ("Float8E5M2", {0xFC}),
        ("HiFloat8", {*range(0x08, 0x20), *range(0x88, 0xA0), 0xEF}),
    ],
)
def test_small_floats_where_the_older_tool_is_right(name: str, wrong: set[int]) -> None:
    """It has nan as 480, -inf as +inf, and HiFloat8 numbers of short exponents wrong."""
    dump = next((DATA / "lowprec").glob(f"Cast.{name}.*"))
    tensor = read_dump(dump).outputs[0]
    expected = np.load(DATA / f"expected/msprobe_HEAD_8ff00da3/lowprec/{dump.name}.output.0.npy")
    kind = tensor.element_type
    assert kind is not None
    found = widened(tensor.array(), kind)
    assert found.dtype == np.float32
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    assert set(np.flatnonzero(~same)) == wrong


def test_codes_have_names() -> None:
    assert (len(DATA_TYPES), DATA_TYPES[27], DATA_TYPES[40]) == (41, "BF16", "FLOAT4_E1M2")
    assert (FORMATS[3], FORMATS[16], FORMATS[29], FORMATS[49]) == ("NC1HWC0", "HWCN", "FRACTAL_NZ", "C1HWC0")
    assert (data_type_name(99), format_name(-1), format_name(255)) == ("data type 99", "format -1", "MAX")


def test_an_order_that_the_shape_leaves_open_is_that_of_the_others() -> None:
    """2 x 8 x 8 x 8 fills NC1HWC0 both as NCHW and as NHWC."""
    plain = np.arange(2 * 8 * 8 * 8, dtype=np.float32).reshape(2, 8, 8, 8)
    padded = np.pad(plain, ((0, 0), (0, 0), (0, 0), (0, 8)))[:, None]
    open_to_both = output(padded, layout="NC1HWC0", original_shape=(2, 8, 8, 8))
    others = [output(np.zeros((1, 1, 3, 4, 16)), layout="NC1HWC0", original_shape=(1, 3, 4, 5))]
    assert logical_form(open_to_both).layout == "NCHW"
    form = logical_form(open_to_both, preferred_layouts([*others, open_to_both]))
    assert form.layout == "NHWC"
    np.testing.assert_array_equal(logical_array(open_to_both, form), plain)


def test_a_device_layout_without_an_original_shape_stays() -> None:
    tensor = output(np.zeros((3, 1, 16, 16), np.float16), layout="FRACTAL_NZ")
    form = logical_form(tensor)
    assert (form.shape, form.layout) == ((3, 1, 16, 16), "FRACTAL_NZ")


SOUND = file_bytes("fc1/Relu", inputs=[Tensor(np.arange(4.0))], outputs=[Tensor(np.arange(8.0))])


def test_a_head_that_is_longer_than_the_file() -> None:
    assert "its head claims 4096 bytes, the file has" in refused(struct.pack("<Q", 4096) + SOUND[8:])
    assert "its head claims 18446744073709551615 bytes" in refused(b"\xff" * 8 + SOUND[8:])


def test_data_that_was_cut_off() -> None:
    assert "its head announces 96 bytes of data, 95 follow" in refused(SOUND[:-1])


def with_head(head: bytes) -> bytes:
    return struct.pack("<Q", len(head)) + head


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (bytes_field(1, b"2.0")[:-1], "its head of 4 bytes has a field 1 of 3 bytes where 2 are left"),
        (b"\x10" + b"\xff" * 12, "has a number at byte 9 that does not end"),
        (b"\x0b" + b"x" * 8, "has field 1 with wire type 3"),
        (b"\x02\x00" + b"x" * 8, "has field number 0 at byte 8"),
        (b"\x08\x01" * 5, "has wire type 0 for the field version at byte 8"),
        (bytes_field(1, b"2.0") * 2, "has the field version twice, at byte 13"),
        (bytes_field(6, b"\xff\xfe op"), "has a text op_name at byte 8 that is not UTF-8"),
        (bytes_field(4, b"") * (2**14 + 1), "more than 16384 entries of inputs"),
        (bytes_field(3, bytes_field(3, bytes_field(1, b"\x80"))), "that does not end"),
        (bytes_field(3, bytes_field(3, bytes_field(1, b"\x01" * 65))), "more than 64 entries of dim"),
    ],
)
def test_heads_that_are_none(head: bytes, told: str) -> None:
    assert told in refused(with_head(head))


def no_array(tensor: DumpTensor) -> str:
    with pytest.raises(UlpscopeError) as caught:
        tensor.array()
    return caught.value.seen


def test_tensors_that_do_not_fill_their_shape() -> None:
    assert "output.0 is FLOAT [5], 20 bytes; it has 16" in no_array(output(np.zeros(4, np.float32), shape=(5,)))
    assert "output.0 is FLOAT [18446744073709551615]" in no_array(output(np.zeros(4, np.float32), shape=(2**64 - 1,)))
    assert "[18446744073709551615, 0]" in no_array(output(np.zeros(4, np.float32), shape=(2**64 - 1, 0)))


def test_strings_are_no_numbers() -> None:
    assert "output.0 of dump holds STRING" in no_array(output(np.zeros(4, np.uint8), code=13))
    assert "holds data type 77" in no_array(output(np.zeros(4, np.uint8), code=77))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UlpscopeError, match="cannot be read"):
        read_dump(tmp_path / "Relu.x.1.1767225600021123")


def test_a_file_that_was_cut_off_after_its_head_was_read(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(SOUND)
    tensor = read_dump(path).outputs[0]
    path.write_bytes(SOUND[:50])
    assert "cannot be read any more" in no_array(tensor)


@pytest.mark.parametrize("case", ["dump", "nano", "stats", "mapping"])
def test_damaged_files_are_answered_or_refused(case: str, tmp_path: Path) -> None:
    laid = Laid(CASES[case], tmp_path)
    for number in range(300):
        assert laid.outcome(number) in ("answer", "error"), f"file {number} of {case}"
