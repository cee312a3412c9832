"""Rows of a trace's tables as objects. A row that cannot be one is named by table, id and field.

The garbage collector, out of the way while many small objects are made that all stay.
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any, TypeAlias, TypeVar

from ulpscope.records.calls import Call, DataPlace, Frame, Stats, Use, Value
from ulpscope.records.errors import TraceError
from ulpscope.trace.files import damaged, parse_json
from ulpscope.trace.schema import RULES, Table

Row: TypeAlias = Mapping[str, Any]
Record = TypeVar("Record")

DEEPEST_ARGUMENT = 100
"""Lists in lists in a call's arguments. Whoever follows them by recursion stays far below Python's limit of 1,000."""

_COUNTS = ("nan", "pos_inf", "neg_inf", "set_aside", "subnormal")
"""Ints and bools have none of what only floats can be; other tools' dumps know a few of these numbers."""


def call_from_row(row: Row) -> Call:
    where = f"call {row['id']} of {row['process']}"
    made = {"recompute": bool(row["recompute"]), "random": bool(row["random"])}
    return _record(Call, "calls", row, where, **made, arguments=_arguments(row["arguments"], where))


def value_from_row(row: Row) -> Value:
    where = f"value {row['id']} of {row['process']}"
    return _record(
        Value,
        "values",
        row,
        where,
        shape=tuple(row["shape"] or ()),
        strides=tuple(row["strides"] or ()),
        requires_grad=bool(row["requires_grad"]),
        initialized=bool(row["initialized"]),
        stats=_stats(row),
        sketch=_sketch(row),
        data=_data(row, where),
    )


def use_from_row(row: Row) -> Use:
    return _record(Use, "tensors", row, f"a tensor of call {row['call']} of {row['process']}")


def frame_from_row(row: Row) -> Frame:
    return _record(Frame, "stacks", row, f"stack {row['stack']} of {row['process']}")


def _record(kind: Callable[..., Record], table: Table, row: Row, where: str, **made: Any) -> Record:
    """A row that keeps the rules of its table: words as members of their enums, the rest as it is or as `made` says."""
    for field, words in RULES[table].words:
        try:
            made[field] = words(row[field])
        except ValueError:
            known = ", ".join(str(word.value) for word in words)
            raise _bad_field(where, field, f"says {row[field]!r}, which is none of {known}") from None
    for field in RULES[table].required:
        if row[field] is None:
            raise _bad_field(where, field, "is empty")
    return kind(**made, **{name: row[name] for name in _names(kind) if name not in made})


@cache
def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def _stats(row: Row) -> Stats | None:
    found = {name: row[name] for name in _names(Stats)}
    if all(number is None for number in found.values()):
        return None
    counts = {name: found[name] or 0 for name in _COUNTS}
    return Stats(**found | counts | {"exponents": tuple(found["exponents"] or ())})


def _sketch(row: Row) -> tuple[float, ...] | None:
    if row["sketch"] is None:
        return None
    rest = row.get("sketch_rest") or [0.0] * len(row["sketch"])
    return tuple(stored + left for stored, left in zip(row["sketch"], rest, strict=True))


def _data(row: Row, where: str) -> DataPlace | None:
    found = {name: row[f"data_{name}"] for name in _names(DataPlace)}
    if found["file"] is None:
        return None
    for name, held in found.items():
        if held is None:
            raise _bad_field(where, f"data_{name}", "is empty")
    return DataPlace(**found | {"strides": tuple(found["strides"])})


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


def _bad_field(where: str, field: str, problem: str) -> TraceError:
    expected = "a row as the capture wrote it (docs/trace-format.md)"
    return damaged(f"field {field} of {where} {problem}", expected=expected)


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
