"""The calls, uses and values of a step as frames: msprobe's four numbers become stats, its checksums digests."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ulpscope.dialects.msprobe.arguments import short_dtype
from ulpscope.dialects.msprobe.entry_names import Direction, forward_name
from ulpscope.dialects.msprobe.identity import NUMBERS, STATS, NewValues, Shape, Tensor, digest_of
from ulpscope.dialects.msprobe.json_files import bad_field
from ulpscope.dialects.msprobe.structure import PlannedCall, Stack
from ulpscope.dialects.msprobe.uses import UseRow
from ulpscope.trace.schema import CALLS, TENSORS, VALUES

STATS_ID, CRC_ID, XOR_ID, MD5_ID = "msprobe-stats", "msprobe-md5", "msprobe-xor", "ptdbg-md5"
_MD5_DIGITS = 32


def summary_of(new: NewValues) -> str | None:
    """What the dump tells of a value; none if this step has no values."""
    checksum = next((text for tensor in new.tensors if isinstance(text := tensor.get("md5"), str)), None)
    if checksum is not None:
        # What msprobe calls md5 is a CRC-32; its forerunner's is one.
        return XOR_ID if checksum.startswith("0x") else MD5_ID if len(checksum) == _MD5_DIGITS else CRC_ID
    return STATS_ID if new.tensors else None


def data_names(new: NewValues) -> list[str | None]:
    """The file of each value's data."""
    later = new.data_names
    return [tensor.get("data_name") or later.get(place) for place, tensor in enumerate(new.tensors)]


def values_frame(new: NewValues, names: list[str | None], *, path: Path, step: int) -> pl.DataFrame:
    """One row a value; names are those of the files that are there."""
    columns: dict[str, Any] = {
        "id": np.arange(new.first, new.first + len(new.tensors)),
        "producer": new.producers,
        "dtype": _dtypes(new.tensors),
        "shape": _lists([tuple(tensor["shape"]) for tensor in new.tensors]),
        "requires_grad": [tensor.get("requires_grad") is True for tensor in new.tensors],
        **{name.lower(): _numbers(new, name, path) for name in STATS},
        "digest": _digests(new.tensors),
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
        data_strides=_strides(new.tensors, names),
    ).with_columns(pl.when(pl.col(name.lower()).is_finite()).then(pl.col(name.lower())) for name in STATS)


def _dtypes(tensors: Sequence[Tensor]) -> list[str]:
    short = {text: short_dtype(text) for text in {tensor["dtype"] for tensor in tensors}}
    return [short[tensor["dtype"]] for tensor in tensors]


def _numbers(new: NewValues, name: str, path: Path) -> list[float | None]:
    # A dump of checksums has a 0-d tensor's number itself in the place of its checksum.
    column = [tensor[name] if name in tensor else _number_alone(tensor) for tensor in new.tensors]
    kinds = set(map(type, column))
    if not kinds <= NUMBERS:
        place = next(place for place, number in enumerate(column) if type(number) not in NUMBERS)
        raise bad_field(path, f"{name} in {new.entries[place]!r}", column[place], "a number")
    if kinds <= {float, type(None)}:
        return column
    return [None if number is None else _as_float(number) for number in column]


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
    return pl.Series([digest_of(tensor) for tensor in tensors], dtype=pl.UInt64)


def _strides(tensors: Sequence[Tensor], names: Sequence[str | None]) -> pl.Series:
    shapes = [None if name is None else tuple(tensor["shape"]) for tensor, name in zip(tensors, names, strict=True)]
    known = {shape: _contiguous(shape) for shape in set(shapes)}
    return _lists([known[shape] for shape in shapes])


def _contiguous(shape: Shape | None) -> Shape | None:
    return None if shape is None else tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _lists(tuples: Sequence[Shape | None]) -> pl.Series:
    """A column of lists. Tensors share a few shapes, and each list costs much more than its number."""
    numbers: dict[Shape | None, int] = {}
    places = [numbers.setdefault(item, len(numbers)) for item in tuples]
    return pl.Series(list(numbers), dtype=pl.List(pl.Int64)).gather(places)


def calls_frame(
    step: int,
    calls: dict[str, PlannedCall],
    ids: dict[str, int],
    arguments: dict[str, str],
    stacks: dict[str, Stack],
) -> pl.DataFrame:
    """One row a call of a step."""
    forwards = [_forward(call) for call in calls.values()]
    sources = [forward or entry for entry, forward in zip(calls, forwards, strict=True)]
    columns: dict[str, Any] = {
        "id": np.fromiter(ids.values(), np.int64, len(ids)),
        "name": _names(calls),
        "kind": [call.kind.value for call in calls.values()],
        "op": [call.parsed.op for call in calls.values()],
        "module": [call.module for call in calls.values()],
        "module_class": [call.module_class for call in calls.values()],
        "phase": [call.phase.value for call in calls.values()],
        "micro_step": [call.micro_step for call in calls.values()],
        "parent": [None if call.parent is None else ids[call.parent] for call in calls.values()],
        "forward": [None if forward is None else ids.get(forward) for forward in forwards],
        "stack": [None if (stack := stacks.get(source)) is None else stack.id for source in sources],
        "recompute": [call.recompute for call in calls.values()],
        "arguments": [arguments.get(entry) for entry in calls],
    }
    frame = pl.DataFrame(columns, schema={name: CALLS[name] for name in columns})
    return frame.with_columns(step=pl.lit(step, dtype=pl.Int64), random=pl.lit(False))


def _forward(call: PlannedCall) -> str | None:
    return forward_name(call.entry) if call.parsed.direction is Direction.BACKWARD else None


def _names(calls: dict[str, PlannedCall]) -> list[str]:
    """APIs keep msprobe's number; modules, which it numbers by path, are counted by class."""
    counts: dict[tuple[str, str], int] = {}
    names = []
    for call in calls.values():
        number = call.parsed.number
        if call.parsed.is_module:
            key = call.parsed.op, call.phase.value
            number = str(counts.get(key, 0))
            counts[key] = counts.get(key, 0) + 1
        names.append(f"{call.parsed.op}.{number}{'@recompute' if call.recompute else ''}")
    return names


def uses_frame(uses: list[UseRow]) -> pl.DataFrame:
    """One row a use."""
    call, role, place, value = zip(*uses, strict=True) if uses else ((), (), (), ())
    columns = {"call": np.array(call, np.int64), "role": role, "place": place, "value": np.array(value, np.int64)}
    return pl.DataFrame(columns, schema=dict(TENSORS))
