"""A reference dump as the tables of a trace: a call an operator, a value an output."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray

from ulpscope.dialects.operator_rows import CALL_COLUMNS, VALUE_COLUMNS, call_row, use_row, value_row
from ulpscope.dialects.rank_infos import foreign_rank
from ulpscope.dialects.reference import ReferenceTensor
from ulpscope.dialects.stored import StoredTensor
from ulpscope.dialects.summaries import with_summaries
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.constants import SUMMARY_ID
from ulpscope.records.enums import Role
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.remarks import Counted, remark
from ulpscope.records.values import Value
from ulpscope.trace.frames import FrameRank, StepFrames
from ulpscope.trace.reader import Trace
from ulpscope.trace.schema import STACKS, TENSORS


@dataclass(frozen=True, slots=True)
class ReferenceCall:
    """One execution of an operator."""

    op: str
    """Its type, or its name where the dump does not tell types."""
    name: str
    outputs: tuple[ReferenceTensor, ...]
    inputs: tuple[tuple[str, int], ...] = ()
    """The operator and output that each input is; where the dump tells."""


@dataclass(slots=True)
class _Rows:
    """Rows of the step that is being read."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    uses: list[dict[str, Any]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    latest: dict[tuple[str, int], int] = field(default_factory=dict)
    """The value that an operator's output has by now."""


class ReferenceRank:
    """A source of frames: the calls of each step."""

    def __init__(self, steps: Mapping[int, Sequence[ReferenceCall]], *, missing: Sequence[str]) -> None:
        self._steps = steps
        self._missing = list(missing)
        self._stored: dict[str, StoredTensor] = {}
        self._calls = 0

    @property
    def summary_id(self) -> str:
        return SUMMARY_ID

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(self._missing)

    def load(self, step: int) -> StepFrames:
        rows, skipped = _Rows(), Counter[str]()
        for call in self._steps[step]:
            self._add_call(rows, call, step=step, skipped=skipped)
        self._missing += [
            remark("step", step=step, remark=remark("type_not_read", tensors=Counted(count, "tensor"), dtype=dtype))
            for dtype, count in skipped.items()
        ]
        values = pl.DataFrame(rows.values, schema=VALUE_COLUMNS)
        return StepFrames(
            calls=pl.DataFrame(rows.calls, schema=CALL_COLUMNS),
            values=with_summaries(values, self.data),
            tensors=pl.DataFrame(rows.uses, schema=dict(TENSORS)),
            stacks=pl.DataFrame(schema=dict(STACKS)),
        )

    def data(self, value: Value) -> NDArray[Any] | None:
        return None if value.data is None else self._stored[value.data.file].array()

    def _add_call(self, rows: _Rows, call: ReferenceCall, *, step: int, skipped: Counter[str]) -> None:
        number, self._calls = self._calls, self._calls + 1
        name = f"{call.op}.{rows.counts[call.op]}"
        rows.calls.append(call_row(number, name=name, op=call.op, operator=call.name, step=step))
        rows.counts[call.op] += 1
        for place, source in enumerate(call.inputs):
            if source in rows.latest:
                rows.uses.append(use_row(number, Role.INPUT, f"args.{place}", rows.latest[source]))
        for tensor in call.outputs:
            stored = self._describe(tensor, skipped)
            if stored is not None:
                value = self._add_value(rows, tensor, stored, producer=number)
                rows.uses.append(use_row(number, Role.OUTPUT, f"output.{tensor.index}", value))

    def _describe(self, tensor: ReferenceTensor, skipped: Counter[str]) -> StoredTensor | None:
        try:
            stored = tensor.stored()
            if stored.dtype not in DTYPES:
                skipped[stored.dtype] += 1
                return None
            # A file that is cut off is told here, once, instead of by every command that meets its value.
            stored.array()
        except UlpscopeError as error:
            self._missing.append(remark("problem", problem=error.seen))
            return None
        return stored

    def _add_value(self, rows: _Rows, tensor: ReferenceTensor, stored: StoredTensor, *, producer: int) -> int:
        number = len(self._stored)
        self._stored[str(number)] = stored
        described = value_row(number, producer=producer, dtype=stored.dtype, shape=stored.shape, device=tensor.device)
        rows.values.append(described)
        rows.latest[tensor.op, tensor.index] = number
        return number


def open_reference(
    path: Path, steps: Mapping[int, Sequence[ReferenceCall]], *, tool: str, framework: str, missing: Sequence[str]
) -> Trace:
    """A reference dump as a trace; a step is read when it is first asked for."""
    info = foreign_rank(tool=tool, framework=framework)
    source = ReferenceRank(steps, missing=missing)
    return Trace(path, [FrameRank(path, name="rank0", info=info, steps=sorted(steps), source=source)])
