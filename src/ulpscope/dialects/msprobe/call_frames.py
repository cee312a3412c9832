"""The calls and uses of a step as frames."""

from typing import Any

import numpy as np
import polars as pl

from ulpscope.dialects.msprobe.entry_names import Direction, forward_name
from ulpscope.dialects.msprobe.stacks import Stack
from ulpscope.dialects.msprobe.structure import PlannedCall
from ulpscope.dialects.msprobe.uses import UseRow
from ulpscope.trace.schema import CALLS, TENSORS


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
