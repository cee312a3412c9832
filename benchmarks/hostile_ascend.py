"""Cases of hostile.py: dumps of an Ascend NPU, in each of their forms, and the files beside them."""

import struct
from pathlib import Path

import numpy as np
from tests.unit.dump_writing import write_dump

from hostile_references import REFERENCE_CASES
from make_ascend_dumps import Tensor, file_bytes
from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.dialects.ascend.executed import read_stats
from ulpscope.dialects.ascend.logical import has_data, logical_array, logical_form
from ulpscope.dialects.ascend.tree import read_mapping
from ulpscope.records.errors import UlpscopeError


def sound_dumps() -> list[bytes]:
    half = np.linspace(-4, 4, 3 * 16 * 16, dtype=np.float16).reshape(3, 1, 16, 16)
    picture = np.arange(2 * 4 * 4 * 16, dtype=np.float16).reshape(2, 1, 4, 4, 16)
    packed = np.arange(16, dtype=np.uint8)
    plain = file_bytes(
        "fc1/Relu", inputs=[Tensor(half, "FRACTAL_NZ", (2, 40))], outputs=[Tensor(picture, "NC1HWC0", (2, 4, 4, 6))]
    )
    small = file_bytes("quant", outputs=[Tensor(packed, code=code, shape=(20,)) for code in (28, 29, 33, 37, 39, 40)])
    inline = file_bytes("old", inputs=[Tensor(half)], outputs=[Tensor(picture)], version="1.0")
    return [plain, small, inline]


def sound_nano() -> list[bytes]:
    def tlv(tag: int, content: bytes) -> bytes:
        return struct.pack("<II", tag, len(content)) + content

    data = np.arange(12, dtype=np.float32)
    shapes = tlv(0, struct.pack("<2Q", 3, 4)) + tlv(1, struct.pack("<2Q", 3, 4))
    read = struct.pack("<3i3QI", 0, 2, 0, 4096, 0, data.nbytes, len(shapes)) + shapes
    named = shapes + tlv(2, b"double/Mul")
    made = struct.pack("<6i3QI", 0, 2, 0, 0, 0, 2, 8192, 0, data.nbytes, len(named)) + named
    head = struct.pack("<II", 0x5A5A5A5A, 0) + tlv(4, struct.pack("<I", 1) + read) + tlv(5, struct.pack("<I", 1) + made)
    return [struct.pack("<Q", len(head)) + head + data.tobytes() * 2]


def sound_stats() -> list[bytes]:
    head = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count\n"
    rows = "Input,0,160,DT_FLOAT16,ND,2x40,4.5,-4.5,0.1,80,0\nOutput,0,160,DT_BF16,ND,2x40,inf,nan,,80,1\n"
    return [(head + rows).encode()]


def sound_mapping() -> list[bytes]:
    return [b"3707385569123341,Add.tower_0_add.29.0.1767225600029123\n12,Relu.x.1.1767225600029124\n"]


def look_at_dump(path: Path) -> None:
    """Every tensor in every form, and the file written again; a tensor that cannot be had must say so."""
    dump = read_dump(path)
    write_dump(dump)
    for tensor in dump.tensors:
        try:
            tensor.array().tobytes()
            if has_data(tensor):
                logical_array(tensor, logical_form(tensor)).tobytes()
        except UlpscopeError:
            continue


FILE_CASES = {
    "dump": (sound_dumps, look_at_dump),
    "nano": (sound_nano, look_at_dump),
    "stats": (sound_stats, lambda path: [tensor.dtype for tensor in read_stats(path)] and None),
    "mapping": (sound_mapping, lambda path: read_mapping(path) and None),
    **REFERENCE_CASES,
}
