"""Rows of a trace's tables as objects. A row that cannot be one is named by table, id and field.

The garbage collector, out of the way while many small objects are made that all stay.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from ulpscope.records.calls import Call, Frame
from ulpscope.records.enums import Kind, Phase, Role
from ulpscope.records.errors import TraceError
from ulpscope.records.values import DataPlace, Stats, Use, Value
from ulpscope.trace.files import parse_json
from ulpscope.trace.schema import VALUE_SUMMARY

Row: TypeAlias = Mapping[str, Any]
Word = TypeVar("Word", bound=Enum)

DEEPEST_ARGUMENT = 100
"""Lists in lists in a call's arguments. Whoever follows them by recursion stays far below Python's limit of 1,000."""

_STATS = [name for name in VALUE_SUMMARY if name not in ("sketch", "sketch_rest", "digest")]


def call_from_row(row: Row) -> Call:
    where = f"call {row['id']} of {row['process']}"
    return Call(
        id=_required(row, "id", where),
        name=_required(row, "name", where),
        kind=_word(Kind, row, "kind", where),
        op=_required(row, "op", where),
        module=row["module"],
        module_class=row["module_class"],
        phase=_word(Phase, row, "phase", where),
        rank=row["rank"],
        step=_required(row, "step", where),
        micro_step=_required(row, "micro_step", where),
        parent=row["parent"],
        forward=row["forward"],
        stack=row["stack"],
        autocast=row["autocast"],
        recompute=bool(row["recompute"]),
        random=bool(row["random"]),
        generator=row["generator"],
        arguments=_arguments(row["arguments"], where),
        error=row["error"],
    )


def value_from_row(row: Row) -> Value:
    where = f"value {row['id']} of {row['process']}"
    return Value(
        id=_required(row, "id", where),
        storage=row["storage"],
        version=row["version"],
        producer=row["producer"],
        dtype=_required(row, "dtype", where),
        shape=tuple(_required(row, "shape", where)),
        strides=tuple(row["strides"] or ()),
        device=_required(row, "device", where),
        layout=_required(row, "layout", where),
        requires_grad=bool(row["requires_grad"]),
        initialized=bool(_required(row, "initialized", where)),
        stats=_stats(row),
        sketch=_sketch(row),
        digest=row["digest"],
        data=_data(row, where),
    )


def _sketch(row: Row) -> tuple[float, ...] | None:
    if row["sketch"] is None:
        return None
    rest = row.get("sketch_rest") or [0.0] * len(row["sketch"])
    return tuple(stored + left for stored, left in zip(row["sketch"], rest, strict=True))


def use_from_row(row: Row) -> Use:
    where = f"a tensor of call {row['call']} of {row['process']}"
    return Use(
        call=_required(row, "call", where),
        role=_word(Role, row, "role", where),
        place=_required(row, "place", where),
        value=_required(row, "value", where),
    )


def frame_from_row(row: Row) -> Frame:
    where = f"stack {row['stack']} of {row['process']}"
    return Frame(
        file=_required(row, "file", where),
        line=_required(row, "line", where),
        function=_required(row, "function", where),
    )


def _stats(row: Row) -> Stats | None:
    # Ints and bools have none of what only floats can be; other tools' dumps know a few of these numbers.
    if all(row[name] is None for name in _STATS):
        return None
    return Stats(
        min=row["min"],
        max=row["max"],
        mean=row["mean"],
        norm=row["norm"],
        abs_sum=row["abs_sum"],
        nan=row["nan"] or 0,
        pos_inf=row["pos_inf"] or 0,
        neg_inf=row["neg_inf"] or 0,
        set_aside=row["set_aside"] or 0,
        zero=row["zero"],
        subnormal=row["subnormal"] or 0,
        exponents=tuple(row["exponents"] or ()),
    )


def _data(row: Row, where: str) -> DataPlace | None:
    if row["data_file"] is None:
        return None
    return DataPlace(
        file=row["data_file"],
        key=_required(row, "data_key", where),
        offset=_required(row, "data_offset", where),
        strides=tuple(_required(row, "data_strides", where)),
    )


def parse_arguments(text: str | None) -> dict[str, Any]:
    """The arguments of a call; ValueError says why a text holds none."""
    if text is None:
        return {}
    try:
        arguments = parse_json(text.encode())
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from error
    if not isinstance(arguments, dict):
        raise ValueError("is not a JSON object")
    level: list[Any] = [arguments]
    for _ in range(DEEPEST_ARGUMENT):
        level = [item for held in level for item in (held.values() if isinstance(held, dict) else held)]
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return arguments
    raise ValueError("is nested too deeply")


def _arguments(text: str | None, where: str) -> dict[str, Any]:
    try:
        return parse_arguments(text)
    except ValueError as error:
        raise _bad_field(where, "arguments", str(error)) from error


def _required(row: Row, field: str, where: str) -> Any:
    if row[field] is None:
        raise _bad_field(where, field, "is empty")
    return row[field]


def _word(words: type[Word], row: Row, field: str, where: str) -> Word:
    try:
        return words(row[field])
    except ValueError:
        known = ", ".join(str(word.value) for word in words)
        raise _bad_field(where, field, f"says {row[field]!r}, which is none of {known}") from None


def _bad_field(where: str, field: str, problem: str) -> TraceError:
    return TraceError(
        f"field {field} of {where} {problem}",
        expected="a row as the capture wrote it (docs/trace-format.md)",
        next_step="copy the trace again or capture again",
    )


@contextmanager
def collector_paused() -> Iterator[None]:
    """Making a million small objects is more than twice as fast without looking for cycles among them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
