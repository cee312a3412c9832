"""The values of a dump: which tensors are one value, as msprobe tells contents only, and their frame.

What an API returns is a new value. Everything else (arguments, parameters, what a module hands on from inside) is the
value that was last seen with the same dtype, shape, Max, Min, Mean, Norm and checksum, if these tell a content at all:
a finite mean or norm, a checksum, or all elements equal. msprobe leaves out most views and casts: a float tensor with
as many elements and the same Max and Min as one that a call made was made by that call, too.

msprobe's four numbers become stats, its checksums digests.
"""

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from ulpscope.dialects.msprobe.forms import STATS, short_dtype
from ulpscope.dialects.msprobe.json_files import bad_field
from ulpscope.trace.schema import VALUES

Tensor: TypeAlias = dict[str, Any]
Shape: TypeAlias = tuple[int, ...]
Key: TypeAlias = tuple[Any, ...]

STATS_ID, CRC_ID, XOR_ID, MD5_ID = "msprobe-stats", "msprobe-md5", "msprobe-xor", "ptdbg-md5"
_MD5_DIGITS = 32
_NUMBERS = frozenset({int, float, bool, type(None)})
_CHECKSUMS = frozenset({str, *_NUMBERS})
_LARGEST_SIZE = 2**62
# What an even number of equal elements gives, whatever they are.
_EMPTY_XOR = "0x0000000000000000"


class Values:
    """All values of a rank, and in order of their ids those that were first seen in the step that is being read."""

    def __init__(self) -> None:
        self._count = 0
        self._latest: dict[Key, tuple[int, int | None]] = {}
        self._elements: dict[tuple[str, Shape], int] = {}
        self._makers: dict[Key, int] = {}
        self.begin_step({})

    def begin_step(self, around: Mapping[int, int]) -> None:
        """Go on with a step in which these calls stand inside of those; let go of what the one before was read from."""
        self._around = around
        self._first = self._count
        self._tensors: list[Tensor] = []
        self._producers: list[int | None] = []
        self._entries: list[str] = []
        """Where each was first seen, for messages."""
        self._later_names: dict[int, str] = {}
        """Files of those whose data was saved with a later entry: any of them will do."""

    def read(self, tensor: Tensor, entry: str) -> int:
        """A tensor that a call was given."""
        key = self._key(tensor)
        known = self._latest.get(key) if key is not None else None
        if known is not None:
            return self._again(known[0], tensor)
        return self._add(tensor, key, self._maker(tensor), entry)

    def made(self, tensor: Tensor, entry: str, call: int) -> int:
        """A tensor that an API returned."""
        return self._add(tensor, self._key(tensor), call, entry)

    def handed_on(self, tensor: Tensor, entry: str, call: int) -> int:
        """A tensor that a module returned: that of a call inside it, or a new one."""
        key = self._key(tensor)
        known = self._latest.get(key) if key is not None else None
        if known is not None and self._is_inside(known[1], call):
            return self._again(known[0], tensor)
        maker = self._maker(tensor)
        return self._add(tensor, key, maker if self._is_inside(maker, call) else call, entry)

    def _maker(self, tensor: Tensor) -> int | None:
        """The call whose result this is a view or a cast of."""
        return self._makers.get(self._extent(tensor)) if "loat" in tensor["dtype"] else None

    def _extent(self, tensor: Tensor) -> Key:
        form = tensor["dtype"], tuple(tensor["shape"])
        elements = self._elements.get(form)
        if elements is None:
            elements = self._elements[form] = _count_elements(*form)
        return elements, tensor.get("Max"), tensor.get("Min")

    def _is_inside(self, producer: int | None, call: int) -> bool:
        while producer is not None and producer != call:
            producer = self._around.get(producer)
        return producer is not None

    def _again(self, number: int, tensor: Tensor) -> int:
        if "data_name" in tensor and number >= self._first:
            self._later_names.setdefault(number - self._first, tensor["data_name"])
        return number

    def _add(self, tensor: Tensor, key: Key | None, producer: int | None, entry: str) -> int:
        _, high, low = extent = self._extent(tensor)
        if producer is not None and type(high) is type(low) is float and -math.inf < low < high < math.inf:
            self._makers[extent] = producer
        number = self._count
        self._count += 1
        self._tensors.append(tensor)
        self._producers.append(producer)
        self._entries.append(entry)
        if key is not None:
            self._latest[key] = number, producer
            if key[-1] is not None:
                without_sum = (*key[:-1], None)
                self._latest[without_sum] = number, producer
        return number

    def _key(self, tensor: Tensor) -> Key | None:
        """What tells this content from others; none where nothing does."""
        high, low, mean, norm = map(tensor.get, STATS)
        # The checksum is made later than the rest, and may be that of what was written since: stats that tell all win.
        if high is not None and high == low:
            return tensor["dtype"], tuple(tensor["shape"]), high, low, None, None, None
        checksum = tensor.get("md5")
        if (
            # Norm and mean are floats or null; what is finite gives 0 when it is taken from itself.
            (type(norm) is float and norm - norm == 0.0)
            or (type(mean) is float and mean - mean == 0.0)
            or (checksum is not None and checksum != _EMPTY_XOR)
        ):
            return tensor["dtype"], tuple(tensor["shape"]), high, low, mean, norm, checksum
        return None

    @property
    def summary_id(self) -> str | None:
        """What the dump tells of a value; none if this step has no values."""
        checksum = next((text for tensor in self._tensors if isinstance(text := tensor.get("md5"), str)), None)
        if checksum is not None:
            # What msprobe calls md5 is a CRC-32; its forerunner's is one.
            return XOR_ID if checksum.startswith("0x") else MD5_ID if len(checksum) == _MD5_DIGITS else CRC_ID
        return STATS_ID if self._tensors else None

    def data_names(self) -> list[str | None]:
        """The file of each value's data."""
        later = self._later_names
        return [tensor.get("data_name") or later.get(place) for place, tensor in enumerate(self._tensors)]

    def frame(self, names: list[str | None], *, path: Path, step: int) -> pl.DataFrame:
        """One row a value; names are those of the files that are there."""
        tensors = self._tensors
        dtypes = {text: short_dtype(text) for text in {tensor["dtype"] for tensor in tensors}}
        columns: dict[str, Any] = {
            "id": np.arange(self._first, self._count),
            "producer": self._producers,
            "dtype": [dtypes[tensor["dtype"]] for tensor in tensors],
            "shape": _lists([tuple(tensor["shape"]) for tensor in tensors]),
            "requires_grad": [tensor.get("requires_grad") is True for tensor in tensors],
            **{name.lower(): self._numbers(name, path) for name in STATS},
            "digest": _digests(tensors),
            "data_file": [None if name is None else f"step{step}/{name}" for name in names],
        }
        frame = pl.DataFrame(columns, schema={name: VALUES[name] for name in columns})
        saved = pl.col("data_file").is_not_null()
        return frame.with_columns(
            *_not_finite(),
            device=pl.lit("unknown"),
            layout=pl.lit("strided"),
            initialized=pl.lit(True),
            data_key=pl.when(saved).then(pl.lit("")),
            data_offset=pl.when(saved).then(pl.lit(0, dtype=pl.Int64)),
            data_strides=pl.when(saved).then(pl.lit([], dtype=pl.List(pl.Int64))),
        ).with_columns(pl.when(pl.col(name.lower()).is_finite()).then(pl.col(name.lower())) for name in STATS)

    def _numbers(self, name: str, path: Path) -> list[float | None]:
        # A dump of checksums has a 0-d tensor's number itself in the place of its checksum.
        column = [tensor[name] if name in tensor else _number_alone(tensor) for tensor in self._tensors]
        kinds = set(map(type, column))
        if not kinds <= _NUMBERS:
            place = next(place for place, number in enumerate(column) if type(number) not in _NUMBERS)
            raise bad_field(path, f"{name} in {self._entries[place]!r}", column[place], "a number")
        if kinds <= {float, type(None)}:
            return column
        return [None if number is None else _as_float(number) for number in column]


def wrong_field(tensor: Tensor) -> tuple[str, object, str] | None:
    """The first field of a tensor that cannot be used: its name, what it holds, what it should hold."""
    if not isinstance(tensor["dtype"], str):
        return "dtype", tensor["dtype"], "the name of a dtype"
    shape = tensor["shape"]
    if not isinstance(shape, list) or any(type(size) is not int or not 0 <= size < _LARGEST_SIZE for size in shape):
        return "shape", shape, "a list of sizes"
    for name in STATS:
        if type(tensor.get(name)) not in _NUMBERS:
            return name, tensor[name], "a number"
    if type(tensor.get("md5")) not in _CHECKSUMS:
        return "md5", tensor["md5"], "a checksum"
    if not isinstance(tensor.get("data_name"), str | None):
        return "data_name", tensor["data_name"], "the name of a file"
    return None


def without_checksum(tensor: Tensor) -> Tensor:
    """A tensor that its call overwrites: the CRC-32 beside its stats may be that of the result."""
    if "md5" not in tensor or tensor.get("Max") is None:
        return tensor
    return {name: item for name, item in tensor.items() if name != "md5"}


def _count_elements(dtype: str, shape: Shape) -> int:
    """Refuses what wrong_field will name."""
    if not isinstance(dtype, str) or any(type(size) is not int or not 0 <= size < _LARGEST_SIZE for size in shape):
        raise TypeError("dtype or shape")
    return math.prod(shape)


def _number_alone(tensor: Tensor) -> float | int | None:
    checksum = tensor.get("md5")
    return None if isinstance(checksum, str) or tensor["shape"] else checksum


def _as_float(number: float | int) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _not_finite() -> list[pl.Expr]:
    """msprobe does not count what is not finite; its Max and Min tell that there is at least one."""
    low, high = pl.col("min"), pl.col("max")
    present = {
        "nan": low.is_nan() | high.is_nan(),
        "pos_inf": (low == math.inf) | (high == math.inf),
        "neg_inf": (low == -math.inf) | (high == -math.inf),
    }
    return [found.cast(pl.Int64).alias(name) for name, found in present.items()]


def _digests(tensors: Sequence[Tensor]) -> pl.Series:
    if not any("md5" in tensor for tensor in tensors):
        return pl.repeat(None, len(tensors), dtype=pl.UInt64, eager=True)
    return pl.Series([_digest(tensor) for tensor in tensors], dtype=pl.UInt64)


def _digest(tensor: Tensor) -> int | None:
    """64 bits that stand for msprobe's checksum with this dtype and shape, and for no digest of our own."""
    checksum, high = tensor.get("md5"), tensor.get("Max")
    if checksum is None:
        return None
    content = f"all {high}" if high is not None and high == tensor.get("Min") else checksum
    text = f"msprobe {content} {tensor['dtype']} {tensor['shape']}"
    return int.from_bytes(blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest(), "little")


def _lists(tuples: Sequence[Shape]) -> pl.Series:
    """A column of lists. Tensors share a few shapes, and each list costs much more than its number."""
    numbers: dict[Shape, int] = {}
    places = [numbers.setdefault(item, len(numbers)) for item in tuples]
    return pl.Series(list(numbers), dtype=pl.List(pl.Int64)).gather(places)
