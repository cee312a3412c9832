"""tfdbg's dumps without TensorFlow: a real one, every element type, graphs, and files that are broken."""

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from ulpscope.dialects.opening import open_run
from ulpscope.dialects.reference import reference_index
from ulpscope.dialects.tfdbg import device_name, looks_like, open_tfdbg
from ulpscope.dialects.tfdbg_event import load_tensor, read_event
from ulpscope.records.errors import UlpscopeError

AnyArray = NDArray[Any]

REAL = Path(__file__).parents[1] / "data" / "ascend" / "tf_debug_real"
DEVICE = "_tfdbg_device_,job_localhost,replica_0,task_0,device_CPU_0"


def varint(number: int) -> bytes:
    out = bytearray()
    while True:
        number, low = number >> 7, number & 0x7F
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def field(number: int, content: int | bytes) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content % 2**64)
    return varint(number << 3 | 2) + varint(len(content)) + content


def shape_message(*sizes: int) -> bytes:
    return b"".join(field(2, field(1, size)) for size in sizes)


def tensor_message(code: int, shape: tuple[int, ...], body: bytes) -> bytes:
    return field(1, code) + field(2, shape_message(*shape)) + body


def event(tensor: bytes, node: str = "fc1/MatMul:0:DebugIdentity") -> bytes:
    value = field(1, b"fc1/MatMul") + field(7, node.encode()) + field(8, tensor)
    return b"\x09" + struct.pack("<d", 1.7e15) + field(5, field(1, value))


def node_message(name: str, op: str, *inputs: str) -> bytes:
    return field(1, field(1, name.encode()) + field(2, op.encode()) + b"".join(field(3, i.encode()) for i in inputs))


def write_dump(root: Path, tensors: dict[str, tuple[int, bytes]], *nodes: bytes, run: str = "run_1_0") -> Path:
    """Tensors by `op:slot`, each with its time."""
    device = root / run / DEVICE
    for name, (time, message) in tensors.items():
        op, _, slot = name.rpartition(":")
        file = device / f"{op}_{slot}_DebugIdentity_{time}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(event(message, f"{name}:DebugIdentity"))
    if nodes:
        (device / "_tfdbg_graph_hash7_1").write_bytes(field(4, b"".join(nodes)))
    return root


def floats(*numbers: float) -> bytes:
    return tensor_message(1, (len(numbers),), field(4, np.array(numbers, "<f4").tobytes()))


def test_files_are_not_kept_open(tmp_path: Path) -> None:
    """A dump has thousands of files, a process may have a thousand open."""
    write_dump(tmp_path, {f"op{number}:0": (number, floats(number)) for number in range(60)})
    trace = open_run(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    values = trace.collect(trace.values().sort("id"))
    assert len(os.listdir("/proc/self/fd")) < before + 30
    assert values["max"].to_list() == list(range(60))
    data = trace.ranks[0].data(trace.ranks[0].value(59))
    assert data is not None
    assert data.tolist() == [59]


def test_memory_that_nobody_had_written_is_told_as_such(tmp_path: Path) -> None:
    write_dump(tmp_path, {"a:0": (1, floats(1)), "b:0": (2, tensor_message(1, (2, 3), b""))})
    trace = open_run(tmp_path)
    assert trace.collect(trace.values()).height == 1
    assert trace.missing == ("rank0: step 0: 1 tensor of uninitialized memory not read: not a type that is compared",)


def load(tmp_path: Path, tensor: bytes) -> AnyArray:
    path = tmp_path / "file"
    path.write_bytes(event(tensor))
    return load_tensor(path).array()


def elements_or_error(path: Path) -> int | str:
    try:
        return load_tensor(path).array().size
    except UlpscopeError as error:
        return error.seen


def test_a_real_dump_has_the_arrays_that_tensorflow_read_from_it() -> None:
    index = reference_index(REAL)
    expected = np.load(REAL / "expected_tensors.npz")
    assert len(index) == len(expected.files) == 32
    for name in expected.files:
        op, _, slot = name.rpartition(":")
        (tensor,) = index[op.replace("|", "_"), int(slot)]
        found = tensor.stored().array()
        assert (found.dtype, found.shape) == (expected[name].dtype, expected[name].shape)
        assert found.tobytes() == expected[name].tobytes()


def test_a_real_dump_is_a_trace_that_says_what_it_lacks() -> None:
    trace = open_run(REAL)
    calls = trace.collect(trace.calls())
    assert {"fc1/MatMul", "_arg_x_0_0", "bn/FusedBatchNormV3"} <= set(calls["module"])
    outputs = trace.collect(trace.tensors().filter(pl.col("role") == "output").group_by("call").len())
    assert outputs["len"].max() == 6  # bn/FusedBatchNormV3
    # The paths in this copy's graph file were replaced: its lengths no longer fit.
    assert "types and inputs of operators are not known" in trace.missing[0]


def test_tensorflow_is_not_imported() -> None:
    code = (
        "import sys; from pathlib import Path; from ulpscope.dialects.reference import reference_index;"
        f"[t.stored().array() for ts in reference_index(Path({str(REAL)!r})).values() for t in ts];"
        "print(any(name.startswith(('tensorflow', 'google.protobuf')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_device_is_named_as_tensorflow_names_it() -> None:
    assert device_name(DEVICE) == "/job:localhost/replica:0/task:0/device:CPU:0"
    assert device_name("_tfdbg_device_,job_worker,replica_0,task_12,device_GPU_3") == (
        "/job:worker/replica:0/task:12/device:GPU:3"
    )


RAW = [
    (1, np.float32), (2, np.float64), (3, np.int32), (4, np.uint8), (5, np.int16), (6, np.int8), (8, np.complex64),
    (9, np.int64), (10, np.bool_), (11, np.int8), (12, np.uint8), (13, np.int32), (14, ml_dtypes.bfloat16),
    (15, np.int16), (16, np.uint16), (17, np.uint16), (18, np.complex128), (19, np.float16), (22, np.uint32),
    (23, np.uint64), (24, ml_dtypes.float8_e5m2), (25, ml_dtypes.float8_e4m3fn), (26, ml_dtypes.float8_e4m3fnuz),
    (28, ml_dtypes.float8_e5m2fnuz), (29, np.int8), (30, np.uint8),
]  # fmt: skip


@pytest.mark.parametrize(("code", "dtype"), RAW)
@pytest.mark.parametrize("reference", [0, 100])
def test_every_element_type_as_raw_bytes(tmp_path: Path, code: int, dtype: Any, reference: int) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    found = load(tmp_path, tensor_message(code + reference, (2, 3), field(4, array.tobytes())))
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()


NUMBERS = [
    (1, field(5, struct.pack("<2f", 1.5, -2.0)), np.array([1.5, -2.0], np.float32)),
    (1, b"\x2d" + struct.pack("<f", 1.5) + b"\x2d" + struct.pack("<f", -2.0), np.array([1.5, -2.0], np.float32)),
    (2, field(6, struct.pack("<2d", 1e300, -2.0)), np.array([1e300, -2.0])),
    (3, field(7, varint(7) + varint(-5 % 2**64)), np.array([7, -5], np.int32)),
    (3, field(7, 7) + field(7, -5), np.array([7, -5], np.int32)),
    (6, field(7, varint(-128 % 2**64) + varint(127)), np.array([-128, 127], np.int8)),
    (8, field(9, struct.pack("<4f", 1, 2, 3, 4)), np.array([1 + 2j, 3 + 4j], np.complex64)),
    (9, field(10, varint(-(2**63) % 2**64) + varint(9)), np.array([-(2**63), 9])),
    (10, field(11, b"\x01\x00"), np.array([True, False])),
    (14, field(13, varint(0x3F80) + varint(0xC000)), np.array([1.0, -2.0], ml_dtypes.bfloat16)),
    (18, field(12, struct.pack("<4d", 1, 2, 3, 4)), np.array([1 + 2j, 3 + 4j])),
    (19, field(13, varint(0x3C00) + varint(0xC000)), np.array([1.0, -2.0], np.float16)),
    (22, field(16, varint(2**32 - 1) + varint(0)), np.array([2**32 - 1, 0], np.uint32)),
    (23, field(17, varint(2**64 - 1) + varint(0)), np.array([2**64 - 1, 0], np.uint64)),
    (25, field(18, b"\x38\xc0"), np.array([1.0, -2.0], ml_dtypes.float8_e4m3fn)),
]


@pytest.mark.parametrize(("code", "body", "expected"), NUMBERS)
def test_numbers_in_fields_of_their_own(tmp_path: Path, code: int, body: bytes, expected: AnyArray) -> None:
    found = load(tmp_path, tensor_message(code, (2,), body))
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


def test_the_last_number_stands_for_the_rest(tmp_path: Path) -> None:
    one = load(tmp_path, tensor_message(1, (2, 3), field(5, struct.pack("<f", 0.5))))
    assert one.tolist() == [[0.5] * 3] * 2
    two = load(tmp_path, tensor_message(3, (4,), field(7, varint(1) + varint(2))))
    assert two.tolist() == [1, 2, 2, 2]


def test_a_short_file_cannot_stand_for_more_than_memory_holds(tmp_path: Path) -> None:
    with pytest.raises(UlpscopeError, match="claims 1,099,511,627,776 elements"):
        load(tmp_path, tensor_message(1, (2**20, 2**20), field(5, struct.pack("<f", 0.5))))


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    assert load(tmp_path, tensor_message(1, (), field(4, struct.pack("<f", 4.0)))).shape == ()
    assert load(tmp_path, tensor_message(1, (0, 3), b"")).shape == (0, 3)


def test_strings_are_skipped_with_a_word(tmp_path: Path) -> None:
    names = tensor_message(7, (1,), field(8, b"hello"))
    trace = open_tfdbg(write_dump(tmp_path, {"names:0": (1, names), "x:0": (2, floats(1.0))}))
    assert trace.missing == ("rank0: step 0: 1 tensor of string not read: not a type that is compared",)
    assert trace.collect(trace.values()).height == 1


def test_operators_have_the_types_and_inputs_of_the_graph(tmp_path: Path) -> None:
    # The debugger dumps y a little before x, which it reads.
    tensors = {"scope/y:0": (10, floats(2.0)), "scope/x:0": (11, floats(1.0)), "scope/x:1": (12, floats(3.0))}
    nodes = [
        node_message("scope/x", "Split", "^init"),
        node_message("__copy_scope/x_1", "Copy", "scope/x:1"),
        node_message("scope/y", "Relu", "__copy_scope/x_1"),
    ]
    trace = open_tfdbg(write_dump(tmp_path, tensors, *nodes))
    rank = trace.ranks[0]
    calls = list(rank.find_calls(trace.collect(trace.calls())["id"]).values())
    assert [(call.name, call.op, call.module) for call in calls] == [
        ("Split.0", "Split", "scope/x"),
        ("Relu.0", "Relu", "scope/y"),
    ]
    uses = [(use.place, rank.data(rank.value(use.value)).tolist()) for use in rank.uses(calls[1].id)]  # type: ignore[union-attr]
    assert uses == [("args.0", [3.0]), ("output.0", [2.0])]


def test_operators_that_wait_for_each_other_come_in_time_order(tmp_path: Path) -> None:
    tensors = {"a:0": (2, floats(1.0)), "b:0": (1, floats(1.0)), "c:0": (3, floats(1.0))}
    nodes = [node_message("a", "Next", "b"), node_message("b", "Merge", "a"), node_message("c", "Exit", "a")]
    trace = open_tfdbg(write_dump(tmp_path, tensors, *nodes))
    assert trace.collect(trace.calls())["module"].to_list() == ["b", "a", "c"]


def test_each_run_is_a_step_and_a_loop_makes_several_calls(tmp_path: Path) -> None:
    write_dump(tmp_path, {"x:0": (1, floats(1.0))}, run="run_9_0")
    write_dump(tmp_path, {"x:0": (3, floats(2.0))}, run="run_10_1")
    write_dump(tmp_path, {"x:0": (4, floats(5.0))}, run="run_10_1")
    trace = open_tfdbg(tmp_path)
    calls = trace.collect(trace.calls())
    assert calls.select("step", "name").rows() == [(0, "x.0"), (1, "x.0"), (1, "x.1")]
    (first, second, third) = reference_index(tmp_path)["x", 0]
    assert [tensor.stored().array().tolist() for tensor in (first, second, third)] == [[1.0], [2.0], [5.0]]


def test_one_run_and_one_device_of_it_are_dumps_too(tmp_path: Path) -> None:
    write_dump(tmp_path, {"x:0": (1, floats(1.0))})
    for path in (tmp_path, tmp_path / "run_1_0", tmp_path / "run_1_0" / DEVICE):
        assert looks_like(path)
        assert open_tfdbg(path).steps == (0,)
    assert not looks_like(tmp_path / "run_1_0" / DEVICE / "nothing")
    assert not looks_like(REAL.parent)


def test_a_name_is_taken_apart_where_the_file_does_not_say_it(tmp_path: Path) -> None:
    folder = tmp_path / "run_1_0" / DEVICE / "bn"
    folder.mkdir(parents=True)
    (folder / "Norm_3_2_DebugIdentity_5").write_bytes(event(floats(1.0), node=""))
    assert list(reference_index(tmp_path)) == [("bn_Norm_3", 2)]


def test_numbers_about_a_tensor_are_not_taken_for_it(tmp_path: Path) -> None:
    write_dump(tmp_path, {"x:0": (1, floats(1.0))})
    folder = tmp_path / "run_1_0" / DEVICE
    (folder / "x_0_DebugNanCount_2").write_bytes(event(floats(0.0), "x:0:DebugNanCount"))
    ((key, tensors),) = reference_index(tmp_path).items()
    assert (key, len(tensors)) == (("x", 0), 1)


BROKEN = {
    "too few bytes": tensor_message(1, (3,), field(4, b"\0" * 8)),
    "too many bytes": tensor_message(1, (1,), field(4, b"\0" * 8)),
    "too many numbers": tensor_message(1, (1,), field(5, b"\0" * 8)),
    "no numbers": tensor_message(1, (1,), b""),
    "half a number": tensor_message(1, (1,), field(5, b"\0" * 3)),
    "odd complex": tensor_message(8, (1,), field(9, b"\0" * 12)),
    "negative size": tensor_message(1, (-1,), field(4, b"")),
    "unknown rank": field(1, 1) + field(2, field(3, 1)) + field(4, b""),
    "wrong wire type": field(1, b"float") + field(4, b""),
    "many dimensions": tensor_message(1, (1,) * 300, field(4, b"\0\0\0\0")),
    "unending number": field(7, b"") + tensor_message(3, (1,), field(7, b"\xff" * 11)),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_tensor_is_one_clear_error(tmp_path: Path, what: str) -> None:
    with pytest.raises(UlpscopeError) as raised:
        load(tmp_path, BROKEN[what])
    assert str(tmp_path / "file") in raised.value.seen


def test_a_broken_file_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    write_dump(tmp_path, {"x:0": (1, floats(1.0)), "y:0": (2, BROKEN["too few bytes"])})
    trace = open_tfdbg(tmp_path)
    assert trace.collect(trace.values()).height == 1
    assert "y_0_DebugIdentity_2" in trace.missing[0]


def test_every_prefix_and_many_mutations_give_an_answer_or_an_error(tmp_path: Path) -> None:
    whole = event(tensor_message(19, (2, 2), field(13, varint(0x3C00) + varint(0xC000))))
    draw = np.random.default_rng(0)
    path = tmp_path / "file"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(UlpscopeError):
            read_event(path)
    for _ in range(2000):
        mutated = bytearray(whole)
        for place in draw.integers(0, len(whole), draw.integers(1, 4)):
            mutated[place] = draw.integers(0, 256)
        path.write_bytes(mutated)
        found = elements_or_error(path)
        assert str(path) in found if isinstance(found, str) else found <= 2**20 + 64 * len(whole)
