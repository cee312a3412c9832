"""What another tool's dump becomes: a rank's description, rows of a trace's tables, and summaries of its data.

A dump tells operators in their order, with what each read and made; modules, phases and gradients it does not tell.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.compiled import summarize_into
from ulpscope.numerics.summaries.rows import Column, rows_to_columns, stats_from_row
from ulpscope.numerics.summaries.summary import empty_row, flat_elements
from ulpscope.records.calls import Stats, Value
from ulpscope.records.enums import Kind, Level, Phase, Role, Save
from ulpscope.records.runs import RankInfo
from ulpscope.trace.frames import StepFrames
from ulpscope.trace.objects import value_from_row
from ulpscope.trace.schema import CALLS, STACKS, TENSORS, VALUE_SUMMARY, VALUES

Row: TypeAlias = dict[str, Any]

CALL_COLUMNS = {
    name: CALLS[name] for name in "id name kind op module module_class phase step micro_step recompute random".split()
}
VALUE_COLUMNS = {
    name: VALUES[name]
    for name in "id producer dtype shape device layout requires_grad initialized data_file data_key data_offset "
    "data_strides".split()
}


def call_row(number: int, *, name: str, op: str, operator: str, step: int, random: bool = False) -> Row:
    """An operator of the type `op`; `name` is this execution's, `Relu.0`."""
    return {
        "id": number,
        "name": name,
        "kind": Kind.API.value,
        "op": op,
        "module": operator,
        "module_class": op,
        "phase": Phase.FORWARD.value,
        "step": step,
        "micro_step": 0,
        "recompute": False,
        "random": random,
    }


def value_row(
    number: int,
    *,
    producer: int | None,
    dtype: str,
    shape: Sequence[int],
    device: str,
    layout: str = "strided",
    saved: bool = True,
) -> Row:
    """A value; of one that is saved, the source knows by its number where the data lies."""
    return {
        "id": number,
        "producer": producer,
        "dtype": dtype,
        "shape": list(shape),
        "device": device,
        "layout": layout,
        "requires_grad": False,
        "initialized": True,
        "data_file": str(number) if saved else None,
        "data_key": "" if saved else None,
        "data_offset": 0 if saved else None,
        "data_strides": [] if saved else None,
    }


def use_row(call: int, role: Role, place: str, value: int) -> Row:
    """A value that a call read or made."""
    return {"call": call, "role": role.value, "place": place, "value": value}


class CallNames:
    """Names of executions: `Relu.0`, a type and how many of it came before in the step."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def next(self, op: str) -> str:
        name = f"{op}.{self._counts[op]}"
        self._counts[op] += 1
        return name


def operator_frames(
    *, calls: Sequence[Row], values: Sequence[Row], uses: Sequence[Row], summaries: pl.DataFrame
) -> StepFrames:
    """The tables of a step; `summaries` has a row a value, as `frame_of_rows` gives them."""
    return StepFrames(
        calls=pl.DataFrame(calls, schema=CALL_COLUMNS),
        values=pl.DataFrame(values, schema=VALUE_COLUMNS).hstack(summaries),
        tensors=pl.DataFrame(uses, schema=dict(TENSORS)),
        stacks=pl.DataFrame(schema=dict(STACKS)),
    )


ASCEND, NPY, TFDBG = "ascend", "npy", "tfdbg"
"""What traces say that they were captured by, of which the calls are operators of a network."""


def is_network(info: RankInfo) -> bool:
    """Whether the calls are operators of a network's graph, and no functions that Python could call."""
    return info.capture.get("tool") in (ASCEND, NPY, TFDBG)


def foreign_rank(
    *,
    tool: str,
    rank: int = 0,
    world_size: int = 1,
    level: Level = Level.API,
    save: Save = Save.TENSORS,
    framework: str = "",
    devices: tuple[str, ...] = (),
    pid: int | None = None,
    more: dict[str, Any] | None = None,
) -> RankInfo:
    """Its number, and what was captured; `more` is what only this tool tells of that."""
    return RankInfo(
        rank=rank,
        world_size=world_size,
        process={} if pid is None else {"pid": pid},
        framework={"name": framework} if framework else {},
        versions={},
        devices=devices,
        environment={},
        seeds={},
        capture={"level": level.value, "save": save.value, "tool": tool, **(more or {})},
        started="unknown",
        closed="unknown",
    )


Data = Callable[[Value], NDArray[Any] | None]


def with_summaries(values: pl.DataFrame, data: Data) -> pl.DataFrame:
    """The frame with stats, sketch and digest of the values whose data is there."""
    stored = [_value(row) for row in values.iter_rows(named=True) if row["data_file"] and row["dtype"] in DTYPES]
    rows = {value: summary_row(found, value.dtype) for value in stored if (found := data(value)) is not None}
    if not rows:
        return values
    own = frame_of_rows(
        list(rows.values()), dtypes=[value.dtype for value in rows], shapes=[value.shape for value in rows]
    ).with_columns(pl.Series("id", [value.id for value in rows]))
    joined = values.join(own, on="id", how="left", suffix=" of data", maintain_order="left")
    both = [name for name in VALUE_SUMMARY if name in values.columns]
    return joined.with_columns(pl.coalesce(f"{name} of data", name).alias(name) for name in both).drop(
        f"{name} of data" for name in both
    )


def summary_row(array: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """All numbers that a trace has of a tensor, in the order of numerics.rows."""
    row = empty_row()
    summarize_into(flat_elements(array, DTYPES[dtype]), dtype, row)
    return row


def stats_of(array: NDArray[Any], dtype: str) -> Stats:
    """Stats as a trace has them."""
    return stats_from_row(summary_row(array, dtype), dtype, array.shape)


def frame_of_rows(
    rows: Sequence[NDArray[np.float64]], *, dtypes: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> pl.DataFrame:
    """Summaries of values of these types and shapes, as the columns of a trace."""
    if not rows:
        return pl.DataFrame(schema=dict(VALUE_SUMMARY))
    columns = rows_to_columns(np.stack(rows), dtype_names=dtypes, shapes=shapes)
    return pl.DataFrame([_series(name, columns[name]) for name in VALUE_SUMMARY])


def _value(row: dict[str, Any]) -> Value:
    return value_from_row({**dict.fromkeys(VALUES), "process": None, **row})


def _series(name: str, column: Column) -> pl.Series:
    whole = pl.Series(name, column.values, dtype=VALUE_SUMMARY[name])
    return pl.select(pl.when(pl.Series(column.valid)).then(whole).alias(name)).to_series()
