"""The message at the head of a dump file: toolkit.dumpdata.DumpData, between its bytes and our records."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ulpscope.dialects.ascend.dump_file.content import RANK_LIMIT, Content, Shape
from ulpscope.dialects.ascend.dump_file.records import (
    Container,
    DimRange,
    DumpAttr,
    DumpBlock,
    DumpFile,
    DumpTensor,
    OriginalOp,
    Side,
)
from ulpscope.dialects.wire import UNKNOWN, Field, Kind, Table, Values, decode, encode

_SHAPE: Table = {1: Field("dim", Kind.UNSIGNED_LIST, most=RANK_LIMIT)}
_ORIGINAL_OP: Table = {
    1: Field("name", Kind.TEXT),
    2: Field("output_index", Kind.UNSIGNED),
    3: Field("data_type", Kind.SIGNED),
    4: Field("format", Kind.SIGNED),
}
_DIM_RANGE: Table = {1: Field("start", Kind.UNSIGNED), 2: Field("end", Kind.UNSIGNED)}
_OUTPUT: Table = {
    1: Field("data_type", Kind.SIGNED),
    2: Field("format", Kind.SIGNED),
    3: Field("shape", Kind.MESSAGE, _SHAPE),
    4: Field("original_op", Kind.MESSAGE, _ORIGINAL_OP),
    5: Field("data", Kind.DATA),
    6: Field("size", Kind.UNSIGNED),
    7: Field("original_shape", Kind.MESSAGE, _SHAPE),
    8: Field("sub_format", Kind.SIGNED),
    9: Field("address", Kind.UNSIGNED),
    10: Field("dim_ranges", Kind.MESSAGE, _DIM_RANGE, repeated=True),
    11: Field("offset", Kind.UNSIGNED),
}
_INPUT: Table = {
    1: Field("data_type", Kind.SIGNED),
    2: Field("format", Kind.SIGNED),
    3: Field("shape", Kind.MESSAGE, _SHAPE),
    4: Field("data", Kind.DATA),
    5: Field("size", Kind.UNSIGNED),
    6: Field("original_shape", Kind.MESSAGE, _SHAPE),
    7: Field("sub_format", Kind.SIGNED),
    8: Field("address", Kind.UNSIGNED),
    9: Field("offset", Kind.UNSIGNED),
}
_BLOCK: Table = {1: Field("kind", Kind.SIGNED), 2: Field("data", Kind.DATA), 3: Field("size", Kind.UNSIGNED)}
_ATTR: Table = {1: Field("name", Kind.TEXT), 2: Field("value", Kind.TEXT)}
DUMP_DATA: Table = {
    1: Field("version", Kind.TEXT),
    2: Field("dump_time", Kind.UNSIGNED),
    3: Field("outputs", Kind.MESSAGE, _OUTPUT, repeated=True),
    4: Field("inputs", Kind.MESSAGE, _INPUT, repeated=True),
    5: Field("buffers", Kind.MESSAGE, _BLOCK, repeated=True),
    6: Field("op_name", Kind.TEXT),
    7: Field("attrs", Kind.MESSAGE, _ATTR, repeated=True),
    8: Field("spaces", Kind.MESSAGE, _BLOCK, repeated=True),
}
"""Numbers and types as in dump_data.proto of CANN; fields from 9 on of tensors, 7 and 8 of the whole are newer."""

_IN_FILE_ORDER = ("inputs", "outputs", "buffers", "spaces")


def decode_head(view: memoryview, start: int, stop: int) -> Values:
    """The message's fields by name; data that is inside of it as (start, stop)."""
    return decode(DUMP_DATA, view, start, stop)


def sizes(head: Values) -> int:
    """Bytes of data that follow a head."""
    return sum(entry["size"] for name in _IN_FILE_ORDER for entry in head[name])


def dump_with_data_after(head: Values, whole: Content, *, start: int) -> DumpFile:
    """A dump whose data lies behind its head: inputs, outputs, buffers, workspaces, each as long as it says."""
    for name in _IN_FILE_ORDER:
        for entry in head[name]:
            entry["data"] = (start, start + entry["size"])
            start += entry["size"]
    return _dump(head, whole, Container.HEADER_AND_DATA)


def dump_with_data_inside(head: Values, whole: Content) -> DumpFile:
    """A dump whose data lies inside of the message."""
    return _dump(head, whole, Container.INLINE)


def encode_head(dump: DumpFile) -> bytes:
    """The message of a dump, as it was read."""
    inline = dump.container is Container.INLINE
    return encode(
        DUMP_DATA,
        {
            "version": dump.version,
            "dump_time": dump.dump_time,
            "outputs": [_tensor_values(tensor, inline=inline) for tensor in dump.outputs],
            "inputs": [_tensor_values(tensor, inline=inline) for tensor in dump.inputs],
            "buffers": [_block_values(block, inline=inline) for block in dump.buffers],
            "op_name": dump.op_name,
            "attrs": [asdict(attr) for attr in dump.attrs],
            "spaces": [_block_values(block, inline=inline) for block in dump.spaces],
            UNKNOWN: dump.unknown,
        },
    )


def _dump(head: Values, whole: Content, container: Container) -> DumpFile:
    return DumpFile(
        path=whole.path,
        container=container,
        version=head["version"],
        dump_time=head["dump_time"],
        op_name=head["op_name"],
        attrs=tuple(DumpAttr(**entry) for entry in head["attrs"]),
        inputs=tuple(_tensors(head["inputs"], Side.INPUT, whole)),
        outputs=tuple(_tensors(head["outputs"], Side.OUTPUT, whole)),
        buffers=tuple(_blocks(head["buffers"], whole)),
        spaces=tuple(_blocks(head["spaces"], whole)),
        unknown=head[UNKNOWN],
    )


def _tensors(entries: Iterable[Values], side: Side, whole: Content) -> Iterable[DumpTensor]:
    for index, entry in enumerate(entries):
        original = entry.get("original_op")
        yield DumpTensor(
            side=side,
            index=index,
            data_type=entry["data_type"],
            format=entry["format"],
            shape=_shape(entry["shape"]),
            original_shape=_shape(entry["original_shape"]),
            size=entry["size"],
            content=_content(entry["data"], whole),
            sub_format=entry["sub_format"],
            address=entry["address"],
            offset=entry["offset"],
            original_op=None if original is None else OriginalOp(**original),
            dim_ranges=tuple(DimRange(**part) for part in entry.get("dim_ranges", ())),
            unknown=entry[UNKNOWN],
        )


def _blocks(entries: Iterable[Values], whole: Content) -> Iterable[DumpBlock]:
    for entry in entries:
        content = _content(entry["data"], whole)
        yield DumpBlock(kind=entry["kind"], size=entry["size"], content=content, unknown=entry[UNKNOWN])


def _content(span: tuple[int, int] | None, whole: Content) -> Content:
    start, stop = span or (0, 0)
    return Content(whole.path, start, stop - start, whole.memory)


def _shape(entry: Values | None) -> Shape | None:
    return None if entry is None else tuple(entry["dim"])


def _shape_values(shape: Shape | None) -> Values | None:
    return None if shape is None else {"dim": list(shape)}


def _tensor_values(tensor: DumpTensor, *, inline: bool) -> Values:
    values: dict[str, Any] = {
        "data_type": tensor.data_type,
        "format": tensor.format,
        "shape": _shape_values(tensor.shape),
        "data": tensor.content.read() if inline else None,
        "size": tensor.size,
        "original_shape": _shape_values(tensor.original_shape),
        "sub_format": tensor.sub_format,
        "address": tensor.address,
        "offset": tensor.offset,
        UNKNOWN: tensor.unknown,
    }
    if tensor.side is Side.OUTPUT:
        values["original_op"] = None if tensor.original_op is None else asdict(tensor.original_op)
        values["dim_ranges"] = [asdict(part) for part in tensor.dim_ranges]
    return values


def _block_values(block: DumpBlock, *, inline: bool) -> Values:
    data = block.content.read() if inline else None
    return {"kind": block.kind, "data": data, "size": block.size, UNKNOWN: block.unknown}
