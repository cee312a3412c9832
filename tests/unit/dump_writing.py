"""Writes a dump file of an Ascend NPU out of what was read of it: proof that nothing of it is lost in reading."""

import struct
from dataclasses import asdict
from typing import Any

from ulpscope.dialects.ascend.dump_file import file as forms
from ulpscope.dialects.ascend.dump_file.records import Container, DumpBlock, DumpFile, DumpTensor, Shape, Side
from ulpscope.dialects.wire import LENGTH, UNKNOWN, VARINT, Field, Scalar, Values, number_bytes, schemas_of


def write_dump(dump: DumpFile) -> bytes:
    """The file that a dump is read from, byte by byte."""
    if dump.container is Container.INLINE:
        return _head(dump)
    head = _nano_head(dump) if dump.container is Container.NANO else _head(dump)
    contents = [part.content for part in dump.tensors] + [part.content for part in (*dump.buffers, *dump.spaces)]
    return b"".join([len(head).to_bytes(8, "little"), head, *(part.read().tobytes() for part in contents)])


def _head(dump: DumpFile) -> bytes:
    inline = dump.container is Container.INLINE
    values = {
        "version": dump.version,
        "dump_time": dump.dump_time,
        "outputs": [_tensor_values(tensor, inline=inline) for tensor in dump.outputs],
        "inputs": [_tensor_values(tensor, inline=inline) for tensor in dump.inputs],
        "buffers": [_block_values(block, inline=inline) for block in dump.buffers],
        "op_name": dump.op_name,
        "attrs": dump.attrs,
        "spaces": [_block_values(block, inline=inline) for block in dump.spaces],
        UNKNOWN: dump.unknown,
    }
    return _encode("DumpData", values)


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
        values["dim_ranges"] = tensor.dim_ranges
    return values


def _block_values(block: DumpBlock, *, inline: bool) -> Values:
    data = block.content.read() if inline else None
    return {"kind": block.kind, "data": data, "size": block.size, UNKNOWN: block.unknown}


def _encode(message: str, values: Values) -> bytes:
    """A message in the order of its fields' numbers, defaults left out."""
    schema = schemas_of("dump_data")[message]
    parts = [_encode_field(number, field, values[field.name]) for number, field in sorted(schema.items())]
    return b"".join([*parts, values.get(UNKNOWN, b"")])


def _encode_field(number: int, field: Field, value: Any) -> bytes:
    if isinstance(field.kind, str):
        entries = value if field.repeated else [] if value is None else [value]
        return b"".join(_delimited(number, _encode(field.kind, entry)) for entry in entries)
    if field.repeated:
        return _delimited(number, b"".join(map(number_bytes, value))) if value else b""
    if field.kind in (Scalar.INT, Scalar.UNSIGNED):
        return b"" if value == 0 else number_bytes(number << 3 | VARINT) + number_bytes(value)
    content = value.encode("utf-8") if field.kind is Scalar.TEXT else b"" if value is None else bytes(value)
    return _delimited(number, content) if content else b""


def _delimited(number: int, content: bytes) -> bytes:
    return number_bytes(number << 3 | LENGTH) + number_bytes(len(content)) + content


def _nano_head(dump: DumpFile) -> bytes:
    head = forms.NANO_HEAD.pack(forms.NANO_MAGIC, dump.nano_version)
    for tag, tensors in ((forms.INPUTS, dump.inputs), (forms.OUTPUTS, dump.outputs)):
        head += _record(tag, forms.NANO_COUNT.pack(len(tensors)) + b"".join(map(_nano_tensor, tensors)))
    return head


def _nano_tensor(tensor: DumpTensor) -> bytes:
    assert tensor.nano is not None
    details = b""
    for tag, shape in ((forms.SHAPE, tensor.shape), (forms.ORIGINAL_SHAPE, tensor.original_shape)):
        details += b"" if shape is None else _record(tag, struct.pack(f"<{len(shape)}Q", *shape))
    if tensor.original_op is not None:
        details += _record(forms.ORIGINAL_NAME, tensor.original_op.name.encode())
    details += tensor.unknown
    form = forms.NANO_INPUT if tensor.side is Side.INPUT else forms.NANO_OUTPUT
    places = (tensor.address, tensor.offset, tensor.size, len(details))
    return form.pack(tensor.data_type, tensor.format, *tensor.nano, *places) + details


def _record(tag: int, value: bytes) -> bytes:
    return forms.NANO_RECORD.pack(tag, len(value)) + value
