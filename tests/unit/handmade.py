"""Traces written by hand: calls with the arrays that they read and made, summarised as a capture would.

run = HandmadeRun()
x = run.value([1.0, 2.0])
run.call("torch.relu", reads={"args.0": x}, makes={"output.0": [1.0, 2.0]}, module="model.act")
run.write(tmp_path / "ref")
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from tests.unit.traces import Row, call_row, frame, rank_info, use_row, value_row

from ulpscope.numerics.summaries.rows import rows_to_columns
from ulpscope.numerics.summaries.summary import summarize
from ulpscope.records.runs import StepInfo
from ulpscope.trace.schema import CALLS, STACKS, TENSORS, VALUES
from ulpscope.trace.writer import RankWriter, claim_rank_directory

Content = Any
"""An array, or what numpy makes one of."""


def summary_of(array: np.ndarray[Any, Any], dtype: str) -> Row:
    """The columns of a value that a capture computes from its elements."""
    columns = rows_to_columns(summarize(array, dtype)[None], dtype_names=[dtype], shapes=[array.shape])
    return {name: column.values[0].tolist() if column.valid[0] else None for name, column in columns.items()}


class HandmadeRun:
    """One rank's calls, values and uses, in execution order."""

    def __init__(self, *, first_call: int = 0, first_value: int = 0) -> None:
        self.calls: list[Row] = []
        self.values: dict[int, Row] = {}
        self.value_steps: dict[int, int] = {}
        self.uses: list[Row] = []
        self.numbers: Counter[tuple[str, int, str]] = Counter()
        self.first_call = first_call
        self.first_value = first_value
        self.step = 0

    def value(self, content: Content, *, dtype: str = "float32", **changes: Any) -> int:
        """A value that came from outside of the trace."""
        array = np.asarray(content, dtype=dtype)
        number = self.first_value + len(self.values)
        strides = [stride // array.itemsize for stride in array.strides]
        shaped = value_row(number, dtype=dtype, shape=list(array.shape), strides=strides)
        self.values[number] = shaped | summary_of(array, dtype) | changes
        self.value_steps[number] = self.step
        return number

    def call(
        self,
        op: str,
        *,
        reads: dict[str, int] | None = None,
        makes: dict[str, Content] | None = None,
        role: str = "input",
        made_role: str = "output",
        arguments: Any = None,
        **columns: Any,
    ) -> int:
        """A call with the values that it reads, and contents (or values) that it makes."""
        number = self.first_call + len(self.calls)
        phase = columns.get("phase", "forward")
        name = columns.pop("name", f"{op}.{self.numbers[op, self.step, phase]}")
        self.numbers[op, self.step, phase] += 1
        text = json.dumps({"args": []} if arguments is None else arguments)
        self.calls.append(call_row(number, name, op=op, step=self.step, arguments=text) | columns)
        self.uses += [use_row(number, role, place, value) for place, value in (reads or {}).items()]
        for place, content in (makes or {}).items():
            self.uses.append(use_row(number, made_role, place, self._made(content, number)))
        return number

    def use(self, call: int, role: str, place: str, value: int) -> None:
        self.uses.append(use_row(call, role, place, value))

    def output(self, call: int, place: str = "output.0") -> int:
        """The value that a call made at this place."""
        return next(use["value"] for use in self.uses if (use["call"], use["place"]) == (call, place))

    def _made(self, content: Content, call: int) -> int:
        if isinstance(content, int):
            return content
        dtype = str(content.dtype) if isinstance(content, np.ndarray) else "float32"
        return self.value(content, dtype=dtype, producer=call)

    def write(self, out: Path, *, rank: int = 0, **info: Any) -> Path:
        writer = RankWriter(claim_rank_directory(out, rank), rank_info(rank=rank, **info))
        for step in sorted({call["step"] for call in self.calls}):
            self._write_step(writer, step)
        writer.close(rank_info(rank=rank, closed="2025-01-01T00:01:00", exit="0", **info))
        return out

    def _write_step(self, writer: RankWriter, step: int) -> None:
        calls = [call for call in self.calls if call["step"] == step]
        ids = {call["id"] for call in calls}
        values = [row for number, row in self.values.items() if self.value_steps[number] == step]
        uses = [use for use in self.uses if use["call"] in ids]
        writer.write_part(
            step,
            calls=frame(CALLS, calls),
            values=frame(VALUES, values),
            tensors=frame(TENSORS, uses),
            stacks=frame(STACKS, []),
        )
        first = values[0]["id"] if values else 0
        counted = {"calls": len(calls), "values": len(values), "tensors": len(uses)}
        writer.finish_step(StepInfo(step=step, parts=1, first_value=first, seconds=0.1, **counted))
