"""The head of a dump file of a nano device: records of tag, length and value instead of a protobuf message."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ulpscope.dialects.ascend.dump_file.content import RANK_LIMIT, Content, Shape
from ulpscope.dialects.ascend.dump_file.records import Container, DumpFile, DumpTensor, NanoFields, OriginalOp, Side

MAGIC = 0x5A5A5A5A
_INPUTS, _OUTPUTS = 4, 5
_SHAPE, _ORIGINAL_SHAPE, _ORIGINAL_NAME = 0, 1, 2

_HEAD = struct.Struct("<II")
_TLV = struct.Struct("<II")
_COUNT = struct.Struct("<I")
_INPUT = struct.Struct("<3i3QI")
"""Data type, format, address type; address, offset, size; bytes of the list that follows."""
_OUTPUT = struct.Struct("<6i3QI")
"""The same with original index, original data type and original format after the address type."""


class NanoError(Exception):
    """Bytes that are no such head."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """Bytes of a head, taken from the front."""

    view: memoryview

    def split(self, length: int, what: str) -> "tuple[memoryview, _Reader]":
        if length > len(self.view):
            raise NanoError(f"{what} claims {length} bytes, {len(self.view)} are left")
        return self.view[:length], _Reader(self.view[length:])

    def record(self, kind: struct.Struct, what: str) -> "tuple[tuple[int, ...], _Reader]":
        taken, rest = self.split(kind.size, what)
        return kind.unpack(taken), rest

    def entries(self, what: str) -> Iterator[tuple[int, memoryview]]:
        """Tag and value of each record."""
        rest = self
        while len(rest.view):
            (tag, length), rest = rest.record(_TLV, what)
            value, rest = rest.split(length, f"record {tag} of {what}")
            yield tag, value


def decode_nano(head: memoryview, whole: Content, *, start: int) -> DumpFile:
    """The dump that a head describes; its data begins at `start`."""
    (_, version), rest = _Reader(head).record(_HEAD, "the head")
    found: dict[int, memoryview] = {}
    for tag, value in rest.entries("the head"):
        if tag not in (_INPUTS, _OUTPUTS) or tag in found:
            raise NanoError(f"record {tag} in the head, where one {_INPUTS} and one {_OUTPUTS} are expected")
        found[tag] = value
    inputs = _tensors(found.get(_INPUTS), Side.INPUT, whole, start=start)
    start += sum(tensor.size for tensor in inputs)
    outputs = _tensors(found.get(_OUTPUTS), Side.OUTPUT, whole, start=start)
    return DumpFile(
        path=whole.path,
        container=Container.NANO,
        version="",
        dump_time=0,
        op_name="",
        attrs=(),
        inputs=inputs,
        outputs=outputs,
        buffers=(),
        spaces=(),
        nano_version=version,
    )


def encode_nano(dump: DumpFile) -> bytes:
    """The head of a dump, as it was read."""
    head = _HEAD.pack(MAGIC, dump.nano_version)
    for tag, tensors in ((_INPUTS, dump.inputs), (_OUTPUTS, dump.outputs)):
        head += _tlv(tag, _COUNT.pack(len(tensors)) + b"".join(map(_encode_tensor, tensors)))
    return head


def _tensors(value: memoryview | None, side: Side, whole: Content, *, start: int) -> tuple[DumpTensor, ...]:
    if value is None:
        return ()
    (count,), rest = _Reader(value).record(_COUNT, "a list of tensors")
    if count > len(rest.view) // _INPUT.size:
        raise NanoError(f"{count} tensors are announced, {len(rest.view)} bytes describe them")
    tensors = []
    for index in range(count):
        tensor, rest = _tensor(rest, side, index, whole, start)
        start += tensor.size
        tensors.append(tensor)
    if len(rest.view):
        raise NanoError(f"{len(rest.view)} bytes after the last of {count} tensors")
    return tuple(tensors)


def _tensor(reader: _Reader, side: Side, index: int, whole: Content, start: int) -> tuple[DumpTensor, _Reader]:
    what = f"{side.value} {index}"
    fields, rest = reader.record(_INPUT if side is Side.INPUT else _OUTPUT, what)
    data_type, layout, address_type, *original, address, offset, size, length = fields
    value, rest = rest.split(length, f"the list of {what}")
    shapes, name, unknown = _details(_Reader(value), what)
    tensor = DumpTensor(
        side=side,
        index=index,
        data_type=data_type,
        format=layout,
        shape=shapes.get(_SHAPE),
        original_shape=shapes.get(_ORIGINAL_SHAPE),
        size=size,
        content=Content(whole.path, start, size, whole.memory),
        address=address,
        offset=offset,
        original_op=_original(name, original),
        nano=NanoFields(address_type, *original),
        unknown=unknown,
    )
    return tensor, rest


def _original(name: str | None, stated: list[int]) -> OriginalOp | None:
    if name is None or not stated:
        return None
    output_index, data_type, layout = stated
    return OriginalOp(name, output_index, data_type, layout)


def _details(reader: _Reader, what: str) -> tuple[dict[int, Shape], str | None, bytes]:
    """Shapes by tag, the original name, and records of other tags as they are."""
    shapes: dict[int, Shape] = {}
    name: str | None = None
    unknown = b""
    for tag, value in reader.entries(what):
        if tag in (_SHAPE, _ORIGINAL_SHAPE):
            if len(value) % 8 or len(value) > 8 * RANK_LIMIT:
                raise NanoError(
                    f"a shape of {what} has {len(value)} bytes, not 8 for each of {RANK_LIMIT} axes at most"
                )
            shapes[tag] = struct.unpack(f"<{len(value) // 8}Q", value)
        elif tag == _ORIGINAL_NAME:
            name = _text(value, what)
        else:
            unknown += _tlv(tag, bytes(value))
    return shapes, name, unknown


def _text(value: memoryview, what: str) -> str:
    try:
        return bytes(value).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NanoError(f"the name in {what} is not UTF-8 ({error.reason})") from error


def _encode_tensor(tensor: DumpTensor) -> bytes:
    assert tensor.nano is not None
    details = b""
    for tag, shape in ((_SHAPE, tensor.shape), (_ORIGINAL_SHAPE, tensor.original_shape)):
        details += b"" if shape is None else _tlv(tag, struct.pack(f"<{len(shape)}Q", *shape))
    if tensor.original_op is not None:
        details += _tlv(_ORIGINAL_NAME, tensor.original_op.name.encode())
    details += tensor.unknown
    places = (tensor.address, tensor.offset, tensor.size, len(details))
    head = (tensor.data_type, tensor.format, tensor.nano.address_type)
    if tensor.side is Side.INPUT:
        return _INPUT.pack(*head, *places) + details
    nano = tensor.nano
    original = (nano.original_index, nano.original_data_type, nano.original_format)
    return _OUTPUT.pack(*head, *original, *places) + details


def _tlv(tag: int, value: bytes) -> bytes:
    return _TLV.pack(tag, len(value)) + value
