"""Cases of hostile.py: overflow records, tensors, graphs and files of both tfdbgs, reference arrays, fusion files."""

import contextlib
import io
import json
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from make_ascend_dumps import Tensor, bytes_field, file_bytes, number_field
from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.dialects.ascend.fusion_files import is_switch_file, read_fusion_result, read_fusion_switch
from ulpscope.dialects.ascend.overflow_records import read_overflow_record, record_json
from ulpscope.dialects.files.stored import read_npy
from ulpscope.dialects.graphs.opening import is_graph, read_graph
from ulpscope.dialects.tfdbg import read_nodes
from ulpscope.dialects.tfdbg2 import open_tfdbg2, tensors_of
from ulpscope.dialects.tfdbg_event import load_tensor
from ulpscope.dialects.tfrecord import record
from ulpscope.records.errors import UlpscopeError

MAGIC = 0x5A5A5A5A


def sound_records() -> list[bytes]:
    """The old layout, AIC with one word and with four, AICPU and SDMA."""
    old = bytearray(2048)
    struct.pack_into("<6Q", old, 256, 514, 1, 27, 0, 0x1000, 0x2000)
    struct.pack_into("<3Q", old, 1024, 0x3000, 1, 0x120)
    layouts = [(0, 0, 11), (0, 1, 14), (2, 0, 8), (3, 0, 10)]
    new = [
        struct.pack(f"<6I{count}Q", MAGIC, version, 1, acc_type, 0, 8 * count, *range(1, count + 1)).ljust(2048, b"\0")
        for acc_type, version, count in layouts
    ]
    arrays = [np.frombuffer(record, np.uint8) for record in (bytes(old), *new)]
    return [file_bytes("Node_OpDebug", outputs=[Tensor(array)]) for array in arrays]


def look_at_record(path: Path) -> None:
    record = read_overflow_record(read_dump(path))
    json.dumps(record_json(record))
    _ = [(unit.meanings, unit.task, unit.stream, unit.context, unit.thread) for unit in record.overflowed]


def tensor_event(code: int, shape: Sequence[int], body: bytes) -> bytes:
    sizes = b"".join(bytes_field(2, number_field(1, size)) for size in shape)
    tensor = number_field(1, code) + bytes_field(2, sizes) + body
    value = bytes_field(1, b"fc1/Relu") + bytes_field(7, b"fc1/Relu:0:DebugIdentity") + bytes_field(8, tensor)
    return b"\x09" + struct.pack("<d", 1.7e15) + bytes_field(5, bytes_field(1, value))


def sound_events() -> list[bytes]:
    """Raw elements, floats, integers and halves in fields of their own, one number for all, and a string."""
    raw = np.linspace(-4, 4, 80, dtype=np.float32).tobytes()
    return [
        tensor_event(1, (2, 40), bytes_field(4, raw)),
        tensor_event(1, (2, 40), bytes_field(5, raw)),
        tensor_event(9, (3,), bytes_field(10, b"\x01\x80\x01\x05")),
        tensor_event(19, (100, 100), bytes_field(13, b"\x80\x78")),
        tensor_event(7, (1,), bytes_field(8, b"text")),
    ]


def sound_graphs() -> list[bytes]:
    def node(name: bytes, op: bytes, *inputs: bytes) -> bytes:
        return bytes_field(
            1, bytes_field(1, name) + bytes_field(2, op) + b"".join(bytes_field(3, each) for each in inputs)
        )

    nodes = node(b"x", b"Const") + node(b"__copy_x_0", b"Copy", b"x") + node(b"y", b"Relu", b"__copy_x_0:0", b"^x")
    return [bytes_field(4, nodes)]


def sound_arrays() -> list[bytes]:
    files = []
    for array in (np.arange(12.0).reshape(3, 4), np.asfortranarray(np.ones((3, 5), np.float16)), np.array(True)):
        file = io.BytesIO()
        np.save(file, array)
        files.append(file.getvalue())
    return files


def sound_fusions() -> list[bytes]:
    counters = {"effect_times": "2", "match_times": "3"}
    graph = {"graph_fusion": {"A": counters}, "ub_fusion": {"B": {**counters, "repository_hit_times": "0"}}}
    one = json.dumps({"session_and_graph_id": "0_1", **graph}, indent=1)
    switch = {"Switch": {"GraphFusion": {"ALL": "on", "A": "off"}, "UBFusion": {"ALL": "off"}}}
    texts = [
        one + one,
        f"[{one}, {one}]",
        json.dumps({"session_and_graph_id_0_1": graph}),
        json.dumps(switch),
        "A:off\n",
    ]
    return [text.encode() for text in texts]


def look_at_fusion(path: Path) -> None:
    if is_switch_file(path):
        read_fusion_switch(path).text()
    else:
        read_fusion_result(path)


def debug_event(number: int, body: bytes, time: float = 1.7e9) -> bytes:
    return b"\x09" + struct.pack("<d", time) + bytes_field(number, body)


def sound_debug_files() -> list[bytes]:
    """Files of tfdbg2: operators and devices, executions and traces in whole and as numbers, one frame a record."""
    shape = bytes_field(2, bytes_field(2, number_field(1, 3)))
    tensor = number_field(1, 1) + shape + bytes_field(4, np.arange(3, dtype=np.float32).tobytes())
    numbers = np.array([1, -1, 1, 1, 3, 0, 1, 0, 1, 0, 1], np.float64)
    health = (
        number_field(1, 2) + bytes_field(2, bytes_field(2, number_field(1, 11))) + bytes_field(4, numbers.tobytes())
    )
    graphs = [
        debug_event(12, bytes_field(1, b"/device:CPU:0") + number_field(2, 1)),
        debug_event(
            7, bytes_field(1, b"Relu") + bytes_field(2, b"Relu") + bytes_field(4, b"g") + bytes_field(6, b"x:0")
        ),
        debug_event(8, bytes_field(1, b"g") + bytes_field(2, b"step")),
    ]
    executions = [
        debug_event(9, bytes_field(1, b"Mul") + bytes_field(5, b"\x07") + number_field(6, mode) + bytes_field(7, body))
        for mode, body in ((7, tensor), (4, health))
    ]
    traces = [
        debug_event(10, bytes_field(1, b"g") + bytes_field(2, b"Relu") + number_field(4, mode) + bytes_field(5, body))
        for mode, body in ((7, tensor), (4, health))
    ]
    return [b"".join(map(record, events)) for events in (graphs, executions, traces)]


DEBUG_KINDS = ("graphs", "execution", "graph_execution_traces")


def look_at_debug_file(path: Path) -> None:
    """The file as each of a dump's kinds, its checks set right again, so that what they cover is damaged, too."""
    content = path.read_bytes()
    for checked in (content, with_right_checks(content)):
        with tempfile.TemporaryDirectory() as folder:
            for kind in DEBUG_KINDS:
                (Path(folder) / f"tfdbg_events.1.host.{kind}").write_bytes(checked)
            (Path(folder) / "tfdbg_events.1.host.metadata").write_bytes(b"")
            for look in (look_at_debug_trace, look_at_debug_graphs):
                with contextlib.suppress(UlpscopeError):
                    look(Path(folder))


def look_at_debug_trace(folder: Path) -> None:
    trace = open_tfdbg2(folder)
    trace.collect(trace.calls())
    _ = trace.missing
    for tensor in tensors_of(folder):
        tensor.stored().array()


def look_at_debug_graphs(folder: Path) -> None:
    path = folder / "tfdbg_events.1.host.graphs"
    if is_graph(path):
        read_graph(path)


def with_right_checks(content: bytes) -> bytes:
    """Whatever follows each length, as far as it is there, in a frame that is right."""
    position, records = 0, []
    while position + 12 <= len(content):
        length = int.from_bytes(content[position : position + 8], "little")
        if length > len(content):
            break
        records.append(record(content[position + 12 : position + 12 + length]))
        position += 16 + length
    return b"".join(records)


REFERENCE_CASES: dict[str, tuple[Callable[[], Sequence[bytes]], Callable[[Path], None]]] = {
    "record": (sound_records, look_at_record),
    "tfdbg": (sound_events, lambda path: load_tensor(path).array().tobytes() and None),
    "tfdbg_graph": (sound_graphs, lambda path: read_nodes(path) and None),
    "tfdbg2": (sound_debug_files, look_at_debug_file),
    "npy": (sound_arrays, lambda path: read_npy(path)[""].array().tobytes() and None),
    "fusion": (sound_fusions, look_at_fusion),
}
