"""Runs msaccucmp of mindstudio-probe with a stand-in for the one method that needs a closed library of CANN.

    python benchmarks/msaccucmp_runner.py compare -m DUMPS -g REFERENCE -f GRAPH.json -out DIR

For the Python that has mindstudio-probe; this file imports nothing of ulpscope. The library turns the head of a dump
file into JSON. The stand-in reads the head only, where the library is given the whole file: that favours msaccucmp.
"""

import os
import struct
import sys
from importlib.util import find_spec
from typing import Any

VARINT, LENGTH = 0, 2
TENSOR_FIELDS = {
    3: {1: "data_type", 2: "format", 3: "shape", 6: "size", 7: "original_shape", 8: "sub_format", 9: "address"},
    4: {1: "data_type", 2: "format", 3: "shape", 5: "size", 6: "original_shape", 7: "sub_format", 8: "address"},
}
SIDES = {3: "output", 4: "input"}


def varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place


def fields(data: bytes) -> Any:
    place = 0
    while place < len(data):
        key, place = varint(data, place)
        if key & 7 == VARINT:
            content, place = varint(data, place)
        else:
            assert key & 7 == LENGTH, "these messages hold varints and bytes only"
            size, place = varint(data, place)
            content, place = data[place : place + size], place + size
        yield key >> 3, content


def shape(data: bytes) -> dict[str, list[int]]:
    sizes: list[int] = []
    for _, packed in fields(data):
        place = 0
        while place < len(packed):
            size, place = varint(packed, place)
            sizes.append(size)
    return {"dim": sizes}


def tensor(data: bytes, names: dict[int, str]) -> dict[str, Any]:
    found = ((names[number], content) for number, content in fields(data) if number in names)
    return {name: shape(content) if isinstance(content, bytes) else content for name, content in found}


def head(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        message = file.read(length)
    found: dict[str, Any] = {"version": "2.0", "dump_time": 0, "op_name": "", "input": [], "output": []}
    for number, content in fields(message):
        if number in SIDES:
            found[SIDES[number]].append(tensor(content, TENSOR_FIELDS[number]))
        elif number == 6:
            found["op_name"] = content.decode()
    return found


def main() -> None:
    # msaccucmp refuses data that others may write.
    os.umask(0o027)
    package = find_spec("msprobe")
    assert package is not None, "mindstudio-probe is not installed in this Python"
    assert package.origin is not None
    sys.path.insert(0, os.path.join(os.path.dirname(package.origin), "msaccucmp"))
    import msaccucmp
    from dump_parse.big_dump_data import BigDumpDataParser

    def parse(self: Any) -> None:
        self.dump_json_data = head(self.dump_file_path)

    BigDumpDataParser._parse_dump_to_json = parse
    msaccucmp.main()


if __name__ == "__main__":
    main()
