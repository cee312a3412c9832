"""Launches the fused kernels: which values go into one launch, and where their rows land.

Nothing here waits for the device. Values that are handed over together are read by as few launches as possible: up to
four by a launch whose arguments hold everything (strided ones if they lie alike), many by one that reads a table.
"""

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ulpscope.capture.torch.fused.direct import Direct, direct, launches_directly
from ulpscope.capture.torch.readable import merged_dimensions
from ulpscope.numerics.constants import BLOCK_ELEMENTS, BLOCK_ROWS, ROW_LENGTH
from ulpscope.numerics.digest import digest_keys
from ulpscope.numerics.dtypes import DTYPES, DtypeKind

# Blocks that a program reads: more make one that has to read them again slow.
MAX_INNER = 8
# A value is spread over so many programs if it has the blocks: all that run at once on an H200, 20 for each of its 132
# multiprocessors.
FULL_GRID = 2640
PARTIAL_ROWS = 131072
# In int64: a partial row, a line of the table of summarize_many.
PARTIAL_LENGTH = 128
LINE_LENGTH = 5
FEW = 4
# To bring a table to the device costs the host more than so many launches.
SEVERAL = 4 * FEW
JOIN_SLICES = -(-ROW_LENGTH // 16)
JOIN_WARPS = 8
MAX_REGISTERS = 96
MAX_DIMENSIONS = 4
MAX_STRIDED_ELEMENTS = 2**31 - 1
# Counters of two bytes hold the elements of 32 blocks.
MAX_ELEMENTS = 32 * BLOCK_ELEMENTS * (PARTIAL_ROWS - 1)
WORD_BYTES = 8

BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INTEGER = range(5)
_KINDS = {"bfloat16": BFLOAT16, "float16": FLOAT16, "float32": FLOAT32, "float64": FLOAT64}
# How elements lie: one after the other; pair by pair, with any strides between pairs; each somewhere; in long runs.
DENSE, PAIRED, STRIDED, RUNS = range(4)
# A block lies in so few runs of this length that each lane can find one of them.
RUN_ELEMENTS = 64
MAX_RUN_OFFSET = 2**32 - 1
# Warps of a program that uses the tensor cores; of all others one.
MANY_WARPS = 4
KERNELS = ("summarize_few", "summarize_many", "summarize_strided")


class Variant(NamedTuple):
    """What a kernel is compiled for."""

    kind: int
    item: int
    signed: bool
    smallest_normal: int
    """Its bits among those of float32, to which smaller types are widened; of float64 its own; 0 of integers."""

    @property
    def constants(self) -> tuple[int, int, bool]:
        return self[:3]


class Read(NamedTuple):
    """One value to be read, and where its row goes."""

    variant: Variant
    lies: int
    address: int
    elements: int
    row: int
    dimensions: tuple[tuple[int, int], ...]
    """Of a strided value: size and stride, innermost first."""


class Share(NamedTuple):
    """A value, how many blocks of it a program reads, and how many programs that takes."""

    read: Read
    blocks: int
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
    # Only pairs of floats are read at once; everything else element by element, however it lies.
    aligned = variant.kind > FLOAT32 or address % (2 * variant.item) == 0
    if tensor.is_contiguous():
        return Read(variant, DENSE if aligned else STRIDED, address, count, row, ((count, 1),))
    dimensions = merged_dimensions(tensor.shape, tensor.stride())
    if count > MAX_STRIDED_ELEMENTS or len(dimensions) > MAX_DIMENSIONS:
        return None
    if aligned and _in_pairs(dimensions):
        lies = RUNS if variant.kind == BFLOAT16 and _in_runs(dimensions) else PAIRED
        return Read(variant, lies, address, count, row, dimensions)
    return Read(variant, STRIDED, address, count, row, dimensions)


def _warps(kind: int, lies: int) -> int:
    return MANY_WARPS if kind == BFLOAT16 and lies in (DENSE, RUNS) else 1


def _shares(reads: Sequence[Read]) -> list[Share]:
    """Of one launch: its programs run all at once, if they need not read too many blocks for that."""
    whole = sum(one.elements // BLOCK_ELEMENTS for one in reads)
    inner = min(MAX_INNER, max(1, -(-whole // FULL_GRID)))
    return [_share(one, inner * _warps(one.variant.kind, one.lies)) for one in reads]


def _share(read: Read, blocks: int) -> Share:
    whole, left = divmod(read.elements, BLOCK_ELEMENTS)
    if whole > blocks * (PARTIAL_ROWS - 1):
        blocks = -(-whole // (PARTIAL_ROWS - 1))
    return Share(read, blocks, -(-whole // blocks) + (left > 0))


def _portions(reads: Sequence[Read]) -> Iterator[list[Read]]:
    """Parts of these that have partial rows enough: each by itself needs the most."""
    portion: list[Read] = []
    rows = 0
    for one in reads:
        (alone,) = _shares([one])
        if rows + alone.programs > PARTIAL_ROWS:
            yield portion
            portion, rows = [], 0
        portion.append(one)
        rows += alone.programs
    if portion:
        yield portion


def _in_pairs(dimensions: tuple[tuple[int, int], ...]) -> bool:
    (size, stride), *others = dimensions
    return stride == 1 and size % 2 == 0 and all(other % 2 == 0 for _, other in others)


def _in_runs(dimensions: tuple[tuple[int, int], ...]) -> bool:
    """Of pairs: whether they lie in runs, none of them too far away."""
    return (
        dimensions[0][0] >= RUN_ELEMENTS and sum((size - 1) * stride for size, stride in dimensions) <= MAX_RUN_OFFSET
    )


def _paired(dimensions: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The same, counted in pairs."""
    (size, _), *others = dimensions
    pairs = ((size // 2, 1), *((other, stride // 2) for other, stride in others))
    return tuple(dimension for dimension in pairs if dimension[0] > 1) or ((1, 1),)


@lru_cache(maxsize=4096)
def layout_of(dimensions: tuple[tuple[int, int], ...], lies: int) -> tuple[int, ...]:
    """Sizes of the three inner dimensions, each with the reciprocal that divides by it, and four strides."""
    if lies in (PAIRED, RUNS):
        dimensions = _paired(dimensions)
    padded = [*dimensions, *((2**31 - 1, 0) for _ in range(MAX_DIMENSIONS - len(dimensions)))]
    padded = [(max(size, 2), stride) for size, stride in padded]
    divisors = [number for size, _ in padded[:-1] for number in (size, *_reciprocal(size))]
    return (*divisors, *(stride for _, stride in padded))


def _reciprocal(divisor: int) -> tuple[int, int]:
    """Factor and shift: x // divisor == (upper half of x * factor) >> shift, for x < 2**31 and divisors from 2 on."""
    shift = (divisor - 1).bit_length()
    factor = -(-(1 << (31 + shift)) // divisor)
    return factor - 2**32 if factor >= 2**31 else factor, shift - 1


class FusedRows:
    """Reads values of one device into rows, on one stream."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream, kernels: Any) -> None:
        self._kernels = kernels
        self.device = device
        self._stream = stream
        self._raw_stream = stream.cuda_stream
        keys = digest_keys(4 * BLOCK_ROWS).astype(np.int32)
        self._keys = torch.from_numpy(keys).to(device)
        self._partials = torch.empty((PARTIAL_ROWS, PARTIAL_LENGTH), dtype=torch.int64, device=device)
        self._used = 0
        self._joins: list[Join] = []
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def read(self, reads: Sequence[Read]) -> None:
        """Launch the reading of these values."""
        # One thread of autograd's may settle what another one has asked for, which belongs to another stream.
        if self._is_current():
            self._read_here(reads)
        else:
            with torch.cuda.stream(self._stream):
                self._read_here(reads)

    def join(self) -> None:
        """Make whole rows of all partial ones; call it on the stream."""
        if self._joins:
            self._join(np.array(self._joins, dtype=np.int64).reshape(-1))
            self._joins.clear()
        self._used = 0

    @property
    def addresses(self) -> tuple[int, int, int]:
        """For those who plan launches themselves: of the stream, the digest's keys and the partial rows."""
        return self._raw_stream, self._keys.data_ptr(), self._partials.data_ptr()

    def launch_first(
        self, kernel: int, variant: Variant, lies: int, programs: int, slices: int, arguments: tuple[int, ...]
    ) -> Direct | None:
        """Launch a kernel of KERNELS; gives what it takes to launch it without Triton, if that is possible."""
        function = getattr(self._kernels, KERNELS[kernel])
        constants: tuple[Any, ...] = variant.constants if lies == DENSE else (*variant.constants, lies)
        self._launch(function, programs, (self._keys, variant.smallest_normal, *arguments), constants, slices)
        compiled = self._compiled[function, constants]
        return None if compiled is function else direct(compiled)

    def launch_table(self, variant: Variant, table: np.ndarray[Any, Any], owners: np.ndarray[Any, Any]) -> None:
        """Read the values of a table of summarize_many; `owners` tells whose each program is."""
        # Of one upload; owners come first and are filled up, since Triton counts on addresses that 16 divides.
        first = np.resize(owners, -(-len(owners) // 4) * 4).view(np.int64)
        words = self._upload(np.concatenate([first, table]))
        arguments = (self._keys, variant.smallest_normal, words[len(first) :], words[: len(first)].view(torch.int32))
        self._launch(self._kernels.summarize_many, len(owners), arguments, variant.constants)

    def join_table(self, table: np.ndarray[Any, Any]) -> None:
        """Make whole rows of partial ones, wherever we are."""
        with torch.cuda.stream(self._stream):
            self._join(table)

    def _join(self, table: np.ndarray[Any, Any]) -> None:
        self._launch(self._kernels.join, len(table) // len(Join._fields), (self._upload(table),), (), JOIN_SLICES)

    def _is_current(self) -> bool:
        index = self._stream.device_index
        return torch.cuda.current_device() == index and torch._C._cuda_getCurrentRawStream(index) == self._raw_stream

    def _read_here(self, reads: Sequence[Read]) -> None:
        dense: dict[Variant, list[Read]] = {}
        strided: dict[tuple[Any, ...], list[Read]] = {}
        for one in reads:
            if one.lies == DENSE:
                dense.setdefault(one.variant, []).append(one)
            else:
                strided.setdefault((one.variant, one.lies, one.dimensions), []).append(one)
        for group in strided.values():
            for first in range(0, len(group), FEW):
                self._read_strided(group[first : first + FEW])
        for variant, group in dense.items():
            for portion in _portions(group):
                self._read_dense(variant, portion)

    def _read_dense(self, variant: Variant, reads: Sequence[Read]) -> None:
        if len(reads) > SEVERAL:
            self._read_many(variant, self._with_room(reads))
            return
        for first in range(0, len(reads), FEW):
            self._read_few(variant, self._with_room(reads[first : first + FEW]))

    def _with_room(self, reads: Sequence[Read]) -> list[Share]:
        """Partial rows are joined before a launch's values are placed: all that have some must have been read first."""
        shares = _shares(reads)
        if self._used + sum(share.programs for share in shares) > PARTIAL_ROWS:
            self.join()
        return shares

    def _place(self, share: Share) -> int:
        """Where a value's programs leave their rows: one program in the row itself, several in partial ones."""
        if share.programs == 1:
            return share.read.row
        address: int = self._partials.data_ptr() + self._used * PARTIAL_LENGTH * WORD_BYTES
        self._used += share.programs
        self._joins.append(Join(share.read.row, address, share.programs))
        return address

    def _read_few(self, variant: Variant, shares: Sequence[Share]) -> None:
        arguments: list[int] = []
        end = 0
        for share in shares:
            end += share.programs
            arguments += (share.read.address, share.read.elements, end, share.blocks, self._place(share))
        arguments += (0, 0, end, 0, 0) * (FEW - len(shares))
        del arguments[5 * FEW - 3]  # where the last one's programs end nobody asks
        start = (self._keys, variant.smallest_normal)
        self._launch(self._kernels.summarize_few, end, (*start, *arguments), variant.constants)

    def _read_many(self, variant: Variant, shares: Sequence[Share]) -> None:
        programs = np.array([share.programs for share in shares], dtype=np.int64)
        table = np.empty((len(shares), LINE_LENGTH), dtype=np.int64)
        table[:, 0] = np.cumsum(programs) - programs
        table[:, 1] = [share.read.address for share in shares]
        table[:, 2] = [share.read.elements for share in shares]
        table[:, 3] = [share.blocks for share in shares]
        table[:, 4] = [self._place(share) for share in shares]
        owners = np.repeat(np.arange(len(shares), dtype=np.int32), programs)
        self.launch_table(variant, table.reshape(-1), owners)

    def _read_strided(self, alike: Sequence[Read]) -> None:
        shares = self._with_room(alike)
        one = alike[0]
        places = [number for share in shares for number in (share.read.address, self._place(share))]
        places += (0, 0) * (FEW - len(shares))
        start = (self._keys, one.variant.smallest_normal, *places, one.elements, shares[0].blocks)
        arguments = (*start, *layout_of(one.dimensions, one.lies))
        constants = (*one.variant.constants, one.lies)
        self._launch(self._kernels.summarize_strided, shares[0].programs, arguments, constants, len(shares))

    def _upload(self, array: np.ndarray[Any, Any]) -> Tensor:
        """A copy on the device. torch keeps pinned memory from being used again before its copy is done."""
        host = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name), pin_memory=True)
        host.numpy()[:] = array
        return host.to(self.device, non_blocking=True)

    def _launch(
        self, kernel: Any, programs: int, arguments: tuple[Any, ...], constants: tuple[Any, ...], slices: int = 1
    ) -> None:
        compiled = self._compiled.get((kernel, constants))
        if compiled is None:
            compiled = kernel[(programs, slices)](*arguments, *constants, **_options(constants))
            self._compiled[kernel, constants] = compiled if launches_directly() else kernel
        elif compiled is kernel:
            kernel[(programs, slices)](*arguments, *constants, **_options(constants))
        else:
            # What compiled[grid](...) does, without asking for device, stream and hooks: a third of its time.
            compiled.run(
                programs,
                slices,
                1,
                self._raw_stream,
                compiled.function,
                compiled.packed_metadata,
                None,
                None,
                None,
                *arguments,
                *constants,
            )


def _options(constants: tuple[Any, ...]) -> dict[str, int]:
    if not constants:
        return {"num_warps": JOIN_WARPS}
    kind, _item, _signed, *lies = constants
    return {"num_warps": _warps(kind, lies[0] if lies else DENSE), "maxnreg": MAX_REGISTERS}


def make_reader(device: torch.device) -> FusedRows | None:
    """What reads values on the current stream of a device; None where the kernels do not run."""
    if not usable(device):
        return None
    from ulpscope.capture.torch.fused import kernels

    return FusedRows(device, torch.cuda.current_stream(device), kernels)


@cache
def usable(device: torch.device) -> bool:
    """Whether the fused kernels run on this device."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
