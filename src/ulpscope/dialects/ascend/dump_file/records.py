"""What a dump file of an Ascend NPU says: one operator's inputs, outputs, buffers and workspaces."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ulpscope.dialects.ascend.dump_file.content import AnyArray, Content, Shape, data_type_name, format_name
from ulpscope.dialects.ascend.elements import ELEMENT_TYPES, elements_of
from ulpscope.records.errors import UlpscopeError


class Side(str, Enum):
    """Whether an operator read or made a tensor."""

    INPUT = "input"
    OUTPUT = "output"


class Container(str, Enum):
    """How a dump file is built."""

    HEADER_AND_DATA = "header and data"
    INLINE = "inline"
    """The whole file is one message, data inside (version 1)."""
    NANO = "nano"
    """A head of tag, length, value records."""


@dataclass(frozen=True, slots=True)
class OriginalOp:
    """The operator of the user's own network that an output stands for."""

    name: str
    output_index: int = 0
    data_type: int = 0
    format: int = 0
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class DimRange:
    """The range of one dimension."""

    start: int = 0
    end: int = 0
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class DumpTensor:
    """One input or output of an operator."""

    side: Side
    index: int
    data_type: int
    """The code in the file; `type_name` says what it means."""
    format: int
    shape: Shape | None
    """As the data lies on the device; none if the file does not say."""
    original_shape: Shape | None
    size: int
    """Bytes; may be more than the shape needs."""
    content: Content
    sub_format: int = 0
    """Number of groups of a convolution whose weight is FRACTAL_Z."""
    address: int = 0
    offset: int = 0
    original_op: OriginalOp | None = None
    dim_ranges: tuple[DimRange, ...] = ()
    nano: "NanoFields | None" = None
    unknown: bytes = b""
    """Fields of a newer version, as they are."""

    @property
    def name(self) -> str:
        """`output.0`."""
        return f"{self.side.value}.{self.index}"

    @property
    def type_name(self) -> str:
        """`FLOAT16`; a nano file has codes of its own."""
        return data_type_name(self.data_type, nano=self.nano is not None)

    @property
    def format_name(self) -> str:
        """`NC1HWC0`."""
        return format_name(self.format)

    @property
    def element_type(self) -> str | None:
        """`float16`, as `elements.py` has it; none for what has no elements, such as strings."""
        return ELEMENT_TYPES.get(self.type_name)

    @property
    def groups(self) -> int:
        return max(self.sub_format, 1)

    def array(self) -> AnyArray:
        """The elements in the device's own order, bit for bit; UlpscopeError if the bytes do not fill the shape."""
        if self.element_type is None:
            raise UlpscopeError(
                f"{self.name} of {self.content.path} holds {self.type_name}",
                expected="elements that are numbers",
                next_step=f"take its bytes: ulpscope convert {self.content.path} --to bin -o DIR",
            )
        return elements_of(self.content, self.element_type, self.shape, what=f"{self.name} is {self.type_name}")


@dataclass(frozen=True, slots=True)
class NanoFields:
    """What only the nano variant tells of a tensor."""

    address_type: int
    original_index: int = 0
    original_data_type: int = 0
    original_format: int = 0


@dataclass(frozen=True, slots=True)
class DumpBlock:
    """Bytes without a type: an L1 buffer or a workspace."""

    kind: int
    size: int
    content: Content
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class DumpAttr:
    name: str
    value: str
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class DumpFile:
    """One dump file."""

    path: Path
    container: Container
    version: str
    dump_time: int
    op_name: str
    attrs: tuple[DumpAttr, ...]
    inputs: tuple[DumpTensor, ...]
    outputs: tuple[DumpTensor, ...]
    buffers: tuple[DumpBlock, ...]
    spaces: tuple[DumpBlock, ...]
    nano_version: int = 0
    unknown: bytes = b""

    @property
    def tensors(self) -> tuple[DumpTensor, ...]:
        """Inputs, then outputs."""
        return (*self.inputs, *self.outputs)
