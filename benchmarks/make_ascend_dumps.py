"""Makes dump files as an Ascend NPU writes them, by an encoder of its own that shares no code with the reader.

file_bytes("fc1/Relu", inputs=[x], outputs=[Tensor(y, "FRACTAL_NZ", (2, 40))])
python benchmarks/make_ascend_dumps.py DIR --gigabytes 1
"""

import argparse
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DATA_TYPES = {
    "float32": 1, "float16": 2, "int8": 3, "uint8": 4, "int16": 5, "uint16": 6, "int32": 7, "int64": 8, "uint32": 9,
    "uint64": 10, "bool": 11, "float64": 12, "complex64": 16, "complex128": 17, "bfloat16": 27,
    "float8_e5m2": 34, "float8_e4m3fn": 35, "float8_e8m0fnu": 36,
}  # fmt: skip
FORMATS = {"NCHW": 0, "NHWC": 1, "ND": 2, "NC1HWC0": 3, "FRACTAL_Z": 4, "HWCN": 16, "FRACTAL_NZ": 29, "NCDHW": 30}
FORMATS |= {"NDC1HWC0": 32}
FIRST_TIME = 1767225600000000
PACK = 32
"""Megabytes of one operator's tensors."""


@dataclass(frozen=True)
class Tensor:
    """One input or output as it lies on the device; a code stands for types that numpy has not."""

    data: NDArray[Any]
    layout: str = "ND"
    original_shape: tuple[int, ...] | None = None
    code: int | None = None
    shape: tuple[int, ...] | None = None
    groups: int = 0
    address: int = 0
    padding: int = 0
    """Bytes after the elements, which the size counts."""

    @property
    def raw(self) -> bytes:
        return np.ascontiguousarray(self.data).tobytes() + bytes(self.padding)


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    groups = [number >> shift & 127 for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


def number_field(field: int, number: int) -> bytes:
    return varint(field << 3) + varint(number) if number else b""


def bytes_field(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def shape_field(field: int, shape: Sequence[int] | None) -> bytes:
    if shape is None:
        return b""
    sizes = b"".join(map(varint, shape))
    return bytes_field(field, bytes_field(1, sizes) if sizes else b"")


def tensor_message(tensor: Tensor, *, output: bool, inline: bool) -> bytes:
    data, size, original, sub_format, address = (5, 6, 7, 8, 9) if output else (4, 5, 6, 7, 8)
    code = DATA_TYPES[tensor.data.dtype.name] if tensor.code is None else tensor.code
    shape = tensor.data.shape if tensor.shape is None else tensor.shape
    return b"".join(
        [
            number_field(1, code),
            number_field(2, FORMATS[tensor.layout]),
            shape_field(3, shape),
            bytes_field(data, tensor.raw) if inline and tensor.raw else b"",
            number_field(size, len(tensor.raw)),
            shape_field(original, tensor.original_shape),
            number_field(sub_format, tensor.groups),
            number_field(address, tensor.address),
        ]
    )


def file_bytes(
    op_name: str,
    *,
    inputs: Sequence[Tensor] = (),
    outputs: Sequence[Tensor] = (),
    attributes: Sequence[tuple[str, str]] = (),
    version: str = "2.0",
) -> bytes:
    """A dump file; version 1.0 has its data inside of the message."""
    inline = version != "2.0"
    head = bytes_field(1, version.encode()) + number_field(2, FIRST_TIME // 1000)
    head += b"".join(bytes_field(3, tensor_message(tensor, output=True, inline=inline)) for tensor in outputs)
    head += b"".join(bytes_field(4, tensor_message(tensor, output=False, inline=inline)) for tensor in inputs)
    head += bytes_field(6, op_name.encode())
    for name, value in attributes:
        head += bytes_field(7, bytes_field(1, name.encode()) + bytes_field(2, value.encode()))
    if inline:
        return head
    return struct.pack("<Q", len(head)) + head + b"".join(tensor.raw for tensor in (*inputs, *outputs))


def tiled(array: NDArray[Any]) -> NDArray[Any]:
    """Matrices as FRACTAL_NZ, tiles of 16 x 16."""
    rows, columns = array.shape
    return np.ascontiguousarray(array.reshape(rows // 16, 16, columns // 16, 16).transpose(2, 0, 1, 3))


def write_many(folder: Path, gigabytes: float, *, seed: int = 7) -> int:
    """Dump files of that size together: fp16 matrices in tiles, pictures in tiles, plain fp32 and bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    edge = int(np.sqrt(PACK * 2**20 / 8)) // 16 * 16
    noise = random.standard_normal((edge, edge), np.float32)
    kinds = [
        Tensor(tiled(noise.astype(np.float16)), "FRACTAL_NZ", (edge, edge)),
        Tensor(noise.astype(np.float16).reshape(-1, 16, 8, 8, 16)[: edge // 16], "NC1HWC0", (edge // 16, 8, 8, 256)),
        Tensor(noise, "ND", (edge, edge)),
        Tensor((noise.view(np.uint32) >> 16).astype(np.uint16), "ND", (edge, edge), code=27),
    ]
    written = number = 0
    while written < gigabytes * 1e9:
        read, made = kinds[number % 4], kinds[(number + 1) % 4]
        name = f"Op{number % 4}.net_op_{number}.{number}.0.{FIRST_TIME + number}"
        content = file_bytes(f"net/op_{number}", inputs=[read], outputs=[made])
        (folder / name).write_bytes(content)
        written += len(content)
        number += 1
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    args = parser.parse_args()
    print(f"{write_many(args.folder, args.gigabytes) / 1e9:.2f} GB in {args.folder}")


if __name__ == "__main__":
    main()
