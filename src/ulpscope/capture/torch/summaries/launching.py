"""Launches the fused kernels: which values go into one launch, and where their rows land.

Nothing here waits for the device. Values of one type that are handed over together are read by as few launches as
possible: the arguments of one hold everything about up to LAUNCH_VALUES of them.
"""

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ulpscope.capture.recording.tensors import merged_dimensions
from ulpscope.capture.torch.summaries import kernels as driver
from ulpscope.capture.torch.summaries.kernels import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INTEGER,
    JOIN_WARPS,
    PARTIAL_LENGTH,
    WARPS,
    Kernel,
    compiled,
    numbers_header,
    shape_of,
)
from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.numerics.noise import NoiseParameters
from ulpscope.numerics.summaries.constants import BLOCK_ELEMENTS, ROW_LENGTH

# Blocks that a program reads at most: 16 of a warp, whose sums are added in float32.
MAX_BLOCKS = 64
PARTIAL_ROWS = 131072
MAX_DIMENSIONS = 4
MAX_STRIDED_ELEMENTS = 2**31 - 1
MAX_STRIDE = 2**31 - 1
LAUNCH_VALUES = 32
# All values of a launch together: their partial rows fit.
MAX_ELEMENTS = MAX_BLOCKS * BLOCK_ELEMENTS * (PARTIAL_ROWS - LAUNCH_VALUES)
WORD_BYTES = 8
# Bytes that are copied at once, if they lie together.
WIDE_UNIT, NARROW_UNIT = 16, 4
JOIN_THREADS, JOIN_SLOTS = 32 * JOIN_WARPS, 32

_KINDS = {"bfloat16": BFLOAT16, "float16": FLOAT16, "float32": FLOAT32, "float64": FLOAT64}

# The structures of cuda/launch.h.
LAYOUT = np.dtype(
    [
        ("bytes", "i4"),
        ("dimensions", "i4"),
        ("sizes", "u4", 3),
        ("factors", "u4", 3),
        ("shifts", "u4", 3),
        ("strides", "i4", MAX_DIMENSIONS),
    ],
    align=True,
)
VALUE = np.dtype(
    [("address", "i8"), ("elements", "i8"), ("row", "i8"), ("blocks", "i4"), ("longer", "i4"), ("layout", LAYOUT)],
    align=True,
)
LAUNCH = np.dtype([("ends", "i4", LAUNCH_VALUES), ("values", VALUE, LAUNCH_VALUES)], align=True)

Dimensions = tuple[tuple[int, int], ...]
"""Size and stride of each, the innermost first."""


class Variant(NamedTuple):
    """What a kernel is compiled for."""

    kind: int
    item: int
    signed: bool
    smallest_normal: int
    """Its bits among those of float32, to which smaller types are widened; of float64 its own; 0 of integers."""


class Read(NamedTuple):
    """One value to be read, and where its row goes."""

    variant: Variant
    address: int
    elements: int
    row: int
    unit: int
    """Bytes that are copied at once."""
    dimensions: Dimensions
    """Where units lie; none if they lie one after the other."""


class Share(NamedTuple):
    """How many programs read a value, which share its blocks evenly."""

    read: Read
    programs: int


class Join(NamedTuple):
    """Partial rows that become one."""

    row: int
    partial: int
    parts: int


def _smallest_normal(name: str) -> int:
    number = np.array([DTYPES[name].smallest_normal])
    return int(number.view(np.int64)[0] if name == "float64" else number.astype(np.float32).view(np.int32)[0])


@cache
def variant_of(dtype: torch.dtype) -> Variant | None:
    name = str(dtype).removeprefix("torch.")
    known = DTYPES.get(name)
    if known is None:
        return None
    if name in _KINDS:
        return Variant(_KINDS[name], known.item_size, False, _smallest_normal(name))
    if known.kind is DtypeKind.FLOAT or known.kind is DtypeKind.COMPLEX:
        return None
    return Variant(INTEGER, known.item_size, name.startswith("int"), 0)


def plan(tensor: Tensor, row: int) -> Read | None:
    """How the kernels read this tensor where it lies; None if they cannot."""
    variant = variant_of(tensor.dtype)
    count = tensor.numel()
    if variant is None or not 0 < count <= MAX_ELEMENTS or tensor.is_neg():
        return None
    address = tensor.data_ptr()
    if address % variant.item:
        return None
    if tensor.is_contiguous():
        unit = next(unit for unit in units_of(variant.item) if address % unit == 0)
        return Read(variant, address, count, row, unit, ())
    found = in_units(merged_dimensions(tensor.shape, tensor.stride()), variant.item, address)
    return None if found is None or count > MAX_STRIDED_ELEMENTS else Read(variant, address, count, row, *found)


def units_of(item: int) -> tuple[int, ...]:
    """What can be copied at once, of elements of so many bytes."""
    return (WIDE_UNIT, NARROW_UNIT, item) if item < NARROW_UNIT else (WIDE_UNIT, item)


def in_units(dimensions: Dimensions, item: int, address: int) -> tuple[int, Dimensions] | None:
    """The largest unit whose bytes lie together everywhere, and where units lie; None if they lie too wildly."""
    (size, stride), *others = dimensions
    for unit in units_of(item):
        count = unit // item
        together = stride == 1 and size % count == 0 and all(other % count == 0 for _, other in others)
        if count > 1 and (address % unit or not together):
            continue
        lie = counted_in_units(dimensions, count)
        return (unit, lie) if len(lie) <= MAX_DIMENSIONS and all(step <= MAX_STRIDE for _, step in lie) else None
    raise AssertionError("an element is always a unit")


def counted_in_units(dimensions: Dimensions, count: int) -> Dimensions:
    """The same, of units that hold so many elements each."""
    if not dimensions:
        return ()
    (size, stride), *others = dimensions
    inner = (size // count, 1 if count > 1 else stride)
    return tuple(one for one in (inner, *((other, step // count) for other, step in others)) if one[0] > 1)


@lru_cache(maxsize=4096)
def layout_of(unit: int, dimensions: Dimensions) -> Any:
    layout = np.zeros((), dtype=LAYOUT)
    layout["bytes"], layout["dimensions"] = unit, len(dimensions)
    for index, (size, stride) in enumerate(dimensions):
        layout["strides"][index] = stride
        if index < MAX_DIMENSIONS - 1:
            layout["sizes"][index] = size
            layout["factors"][index], layout["shifts"][index] = _reciprocal(size)
    return layout


def _reciprocal(divisor: int) -> tuple[int, int]:
    """Factor and shift: x // divisor == (upper half of x * factor) >> shift, for x < 2**31 and divisors from 2 on."""
    shift = (divisor - 1).bit_length()
    return -(-(1 << (31 + shift)) // divisor), shift - 1


def _blocks(read: Read) -> int:
    return -(-read.elements // BLOCK_ELEMENTS)


def shares_of(reads: Sequence[Read], at_once: int) -> list[Share]:
    """Of one launch: its programs run all at once, if none has too many or too few blocks to read then."""
    blocks = [_blocks(read) for read in reads]
    free = max(at_once - len(reads), 0)
    return [Share(read, _programs(own, own * free // sum(blocks) + 1)) for read, own in zip(reads, blocks, strict=True)]


def _programs(blocks: int, wanted: int) -> int:
    return max(-(-blocks // MAX_BLOCKS), min(-(-blocks // WARPS), wanted))


def portions_of(reads: Sequence[Read]) -> Iterator[list[Read]]:
    """Launches: what one can be told of, and has partial rows for."""
    portion: list[Read] = []
    elements = 0
    for read in reads:
        if len(portion) == LAUNCH_VALUES or elements + read.elements > MAX_ELEMENTS:
            yield portion
            portion, elements = [], 0
        portion.append(read)
        elements += read.elements
    if portion:
        yield portion


class FusedRows:
    """Reads values of one device into rows, on one stream."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self.device = device
        self._stream = stream
        self._raw_stream = stream.cuda_stream
        self._partials = torch.empty((PARTIAL_ROWS, PARTIAL_LENGTH), dtype=torch.int64, device=device)
        self._used = 0
        self._joins: list[Join] = []

    @property
    def addresses(self) -> tuple[int, int, int]:
        """For those who launch themselves: of the stream, the partial rows and the function that launches."""
        return self._raw_stream, self._partials.data_ptr(), driver.launch_address()

    def kernel(self, variant: Variant) -> Kernel:
        return summarize_kernel(self.device, variant)

    def read(self, reads: Sequence[Read]) -> None:
        """Launch the reading of these values."""
        # One thread of autograd's may settle what another one has asked for, which belongs to another device.
        with torch.cuda.device(self.device):
            alike: dict[Variant, list[Read]] = {}
            for one in reads:
                alike.setdefault(one.variant, []).append(one)
            for variant, group in alike.items():
                for portion in portions_of(group):
                    self._read_portion(variant, portion)

    def join(self) -> None:
        """Make whole rows of all partial ones."""
        if self._joins:
            self.join_table(np.array(self._joins, dtype=np.int64).reshape(-1))
            self._joins.clear()
        self._used = 0

    def join_table(self, table: np.ndarray[Any, Any]) -> None:
        """Make rows of a table of joins, wherever we are."""
        with torch.cuda.stream(self._stream):
            on_device = _upload(table, self.device)
            argument = ctypes.c_int64(on_device.data_ptr())
            programs = len(table) // len(Join._fields)
            driver.launch(join_kernel(self.device), programs, -(-ROW_LENGTH // JOIN_SLOTS), self._raw_stream, argument)

    def _read_portion(self, variant: Variant, reads: Sequence[Read]) -> None:
        kernel = self.kernel(variant)
        shares = shares_of(reads, kernel.at_once)
        # Joined before these are placed: all that have partial rows must have been read first.
        if self._used + sum(share.programs for share in shares) > PARTIAL_ROWS:
            self.join()
        launch = np.zeros((), dtype=LAUNCH)
        ends = list(accumulate(share.programs for share in shares))
        launch["ends"][: len(shares)] = ends
        launch["ends"][len(shares) :] = ends[-1]
        values = launch["values"][: len(shares)]
        values["address"] = [read.address for read in reads]
        values["elements"] = [read.elements for read in reads]
        values["row"] = [self._place(share) for share in shares]
        values["blocks"] = [_blocks(share.read) // share.programs for share in shares]
        values["longer"] = [_blocks(share.read) % share.programs for share in shares]
        layouts = b"".join([layout_of(read.unit, read.dimensions).tobytes() for read in reads])
        values["layout"] = np.frombuffer(layouts, dtype=LAYOUT)
        argument = (ctypes.c_char * LAUNCH.itemsize).from_buffer_copy(launch.tobytes())
        driver.launch(kernel, ends[-1], 1, self._raw_stream, argument)

    def _place(self, share: Share) -> int:
        """Where a value's programs leave their rows: one program in the row itself, several in partial ones."""
        if share.programs == 1:
            return share.read.row
        address: int = self._partials.data_ptr() + self._used * PARTIAL_LENGTH * WORD_BYTES
        self._used += share.programs
        self._joins.append(Join(share.read.row, address, share.programs))
        return address


def _upload(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """A copy on the device. torch keeps pinned memory from being used again before its copy is done."""
    host = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name), pin_memory=True)
    host.numpy()[:] = array
    return host.to(device, non_blocking=True)


@cache
def summarize_kernel(device: torch.device, variant: Variant) -> Kernel:
    shape = shape_of(variant.kind, variant.item)
    return _kernel(device, "summarize", variant, 32 * WARPS, shape.shared_bytes)


@cache
def join_kernel(device: torch.device) -> Kernel:
    return _kernel(device, "join", Variant(BFLOAT16, 2, False, 0), JOIN_THREADS, 0)


def _kernel(device: torch.device, name: str, variant: Variant, threads: int, shared_bytes: int) -> Kernel:
    image = compiled(f"{name}.cu", numbers_header(*variant), torch.cuda.get_device_capability(device))
    with torch.cuda.device(device):
        return driver.load_kernel(image, name, threads, shared_bytes, device, waits=name == "summarize")


def make_reader(device: torch.device) -> FusedRows | None:
    """What reads values on the current stream of a device; None where the kernels do not run."""
    return FusedRows(device, torch.cuda.current_stream(device)) if usable(device) else None


@cache
def usable(device: torch.device) -> bool:
    """Whether the device is one of those that the kernels are written for, and its driver launches them."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0) and driver.can_launch()


class _Moved(ctypes.Structure):
    """The structure of cuda/moved.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("address", "count", "seed", "staying")),
        ("largest", ctypes.c_double),
        *((name, ctypes.c_int) for name in ("kept", "lowest", "jitters")),
    )


NOISE_THREADS = 256
_BITS_OF_SIZE = {2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
_ROUNDED = {4: ("float", 23, 127), 8: ("double", 52, 1023)}


@cache
def noise_kernel(device: torch.device, item: int) -> Kernel:
    lines = [f"typedef {_BITS_OF_SIZE[item]} Bits;", f"#define ROUNDS {int(item in _ROUNDED)}"]
    if item in _ROUNDED:
        number, mantissa, bias = _ROUNDED[item]
        lines += [f"typedef {number} Number;", f"constexpr int MANTISSA = {mantissa}, BIAS = {bias};"]
    image = compiled("noise.cu", "\n".join([*lines, ""]), torch.cuda.get_device_capability(device))
    with torch.cuda.device(device):
        return driver.load_kernel(image, "noise", NOISE_THREADS, 0, device, waits=False)


def move_on_device(tensor: Tensor, how: NoiseParameters, seed: int) -> None:
    """Noise like rounding for a compact tensor, on the current stream."""
    device, count = tensor.device, tensor.numel()
    kernel = noise_kernel(device, tensor.element_size())
    moved = _Moved(tensor.data_ptr(), count, seed, how.staying, how.largest, how.kept, how.lowest, int(how.jitters))
    programs = min(-(-count // NOISE_THREADS), kernel.at_once)
    with torch.cuda.device(device):
        driver.launch(kernel, programs, 1, torch.cuda.current_stream(device).cuda_stream, moved)
