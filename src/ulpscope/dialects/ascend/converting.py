"""One dump file as files that other programs read, named as msaccucmp names them.

Relu.fc1_Relu.21.0.1767225600021123.output.0.npy               as the data lies on the device
Relu.fc1_Relu.21.0.1767225600021123.output.0.2x40.npy          in another layout, with its shape
Relu.fc1_Relu.21.0.1767225600021123.output.0.768.float16.FRACTAL_NZ.bin
"""

import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from ulpscope.dialects.ascend.array_files import FileKind, write_array, written_type
from ulpscope.dialects.ascend.content import AnyArray
from ulpscope.dialects.ascend.dump_file import read_dump
from ulpscope.dialects.ascend.dump_records import DumpBlock, DumpFile, DumpTensor, Side
from ulpscope.dialects.ascend.overflow_records import read_overflow_record, record_json
from ulpscope.dialects.ascend.relayout import in_layout
from ulpscope.numerics.layouts import Converters, Shape
from ulpscope.records.errors import UlpscopeError

LONGEST_NAME = 254
"""msaccucmp replaces names of 255 characters and more."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to make of each dump file."""

    kind: FileKind
    layout: str | None = None
    shape: Shape | None = None
    """In the order of `layout`; none takes the original shape that the dump states."""
    side: Side | None = None
    index: int | None = None
    """Of one tensor; none takes all, and the buffers."""


@dataclass(slots=True)
class Written:
    """What became of one dump file."""

    files: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    """Names that were too long, by what stands for them."""
    as_they_were: list[str] = field(default_factory=list)
    """Tensors for which the wanted layout does not exist, in their own."""
    without_data: list[str] = field(default_factory=list)


def convert_dump(path: Path, wanted: Wanted, folder: Path, *, record: bool, own: Converters) -> Written:
    """Write what is wanted of a dump file into a folder; `record` says that it is an overflow record."""
    dump = read_dump(path)
    written = Written()
    if record and wanted.side is None:
        text = json.dumps(record_json(read_overflow_record(dump)), indent=4)
        _place(folder, f"{path.name}.output.0.json", written).write_text(text + "\n", encoding="utf-8")
        return written
    for tensor in _chosen(dump, wanted):
        _write_tensor(tensor, path.name, wanted, folder, written, own)
    if wanted.side is None:
        _write_blocks(dump.buffers, f"{path.name}.l1buffer", folder, written)
        _write_blocks(dump.spaces, f"{path.name}.space", folder, written)
    return written


def _chosen(dump: DumpFile, wanted: Wanted) -> tuple[DumpTensor, ...]:
    if wanted.side is None:
        return dump.tensors
    tensors = dump.inputs if wanted.side is Side.INPUT else dump.outputs
    if wanted.index is None or not 0 <= wanted.index < len(tensors):
        raise UlpscopeError(
            f"{dump.path} has no {wanted.side.value} {wanted.index}",
            expected=f"a number below {len(tensors)}",
            next_step=f"see what it holds: ulpscope show {dump.path}",
        )
    return (tensors[wanted.index],)


def _write_tensor(
    tensor: DumpTensor, name: str, wanted: Wanted, folder: Path, written: Written, own: Converters
) -> None:
    stem = f"{name}.{tensor.name}"
    kind = tensor.element_type
    if tensor.content.size == 0:
        written.without_data.append(tensor.name)
    elif kind is None and wanted.kind is FileKind.BIN:
        file = f"{stem}.{tensor.size}.{tensor.type_name.lower()}.{tensor.format_name}.bin"
        _place(folder, file, written).write_bytes(tensor.content.read().tobytes())
    else:
        array, layout = _laid_out(tensor, wanted, written, own)
        assert kind is not None
        file = _file_name(stem, tensor, array, wanted.kind, layout)
        write_array(_place(folder, file, written), array, kind, wanted.kind)


def _laid_out(tensor: DumpTensor, wanted: Wanted, written: Written, own: Converters) -> tuple[AnyArray, str | None]:
    """The elements, and the layout that they were brought to."""
    if wanted.layout is None:
        return tensor.array(), None
    try:
        return in_layout(tensor, wanted.layout, shape=wanted.shape, own=own), wanted.layout
    except UlpscopeError:
        # One tensor that was asked for must be as asked; among all of them, some have no such axes.
        if wanted.side is not None:
            raise
        written.as_they_were.append(tensor.name)
        return tensor.array(), None


def _file_name(stem: str, tensor: DumpTensor, array: AnyArray, kind: FileKind, layout: str | None) -> str:
    sizes = [str(size) for size in array.shape]
    if kind is FileKind.BIN:
        element = tensor.element_type
        assert element is not None
        length = str(array.size) if layout is None else "_".join(sizes)
        return f"{stem}.{length}.{written_type(element, kind)}.{layout or tensor.format_name}.bin"
    return f"{stem}.{kind.value}" if layout is None else f"{stem}.{'x'.join(sizes)}.{kind.value}"


def _write_blocks(blocks: tuple[DumpBlock, ...], stem: str, folder: Path, written: Written) -> None:
    for index, block in enumerate(blocks):
        _place(folder, f"{stem}.{index}.bin", written).write_bytes(block.content.read().tobytes())


def _place(folder: Path, name: str, written: Written) -> Path:
    if len(name) > LONGEST_NAME:
        short = f"{uuid.uuid3(uuid.NAMESPACE_DNS, name).hex}{Path(name).suffix}"
        written.renamed[short] = name
        name = short
    written.files.append(name)
    return folder / name
