"""Opens dumps of Ascend NPUs as a trace: a whole dump path, any directory of it, or one file.

Devices are its ranks, and a call is an operator, in the order in which they ran. A dump has each tensor twice, as the
output of one operator and the input of others; what has the same bits, shape and type is one value, made by the last
operator that had it as an output.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
from numpy.typing import NDArray

from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.dialects.ascend.executed import DumpedStep, Executed, ExecutedTensor, dumped_run, summary_frame
from ulpscope.dialects.ascend.tree import entry_of, has_dumps
from ulpscope.dialects.files.stored import AnyArray, StoredTensor, TensorFile, unsupported
from ulpscope.dialects.registry import Dialect
from ulpscope.dialects.tables import ASCEND, Row, call_row, foreign_rank, operator_frames, use_row, value_row
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.constants import SUMMARY_ID
from ulpscope.records.calls import Value
from ulpscope.records.enums import Role, Save
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.remarks import Counted, remark
from ulpscope.trace.frames import FrameRank, StepFrames
from ulpscope.trace.reader import Trace


def looks_like(path: Path) -> bool:
    """Whether this is a dump of an NPU, as far as names of files tell."""
    return path.exists() and (has_dumps(path) if path.is_dir() else entry_of(path) is not None)


def open_npu_dump(path: Path) -> Trace:
    """A dump as a trace: devices are its ranks; a step is read when it is first asked for."""
    steps, left_out = dumped_run(path)
    devices = sorted({dumped.device for dumped in steps})
    ranks = [_rank(path, [dumped for dumped in steps if dumped.device == device], devices) for device in devices]
    return Trace(path, ranks, missing_ranks=tuple(left_out))


def _rank(path: Path, steps: Sequence[DumpedStep], devices: Sequence[int]) -> FrameRank:
    device = steps[0].device
    has_data = any(not entry.is_stats for dumped in steps for entry in dumped.entries)
    info = foreign_rank(
        tool=ASCEND,
        rank=device,
        world_size=max(devices) + 1,
        save=Save.TENSORS if has_data else Save.STATS,
        devices=(f"npu:{device}",),
    )
    source = OperatorRank({dumped.step: partial(_read, dumped) for dumped in steps}, device=f"npu:{device}")
    return FrameRank(path, name=f"device{device}", info=info, steps=[dumped.step for dumped in steps], source=source)


def _read(dumped: DumpedStep) -> tuple[list[Executed], list[str]]:
    """The operators of a step, and what is told of it."""
    told = dumped.unnamed
    executed, problems = dumped.read()
    if problems:
        first = next(iter(problems.values()))
        if not executed:
            raise first
        unreadable = remark("dumps_unreadable", files=Counted(len(problems), "file"), problem=first.seen)
        told.append(remark("step", step=dumped.step, remark=unreadable))
    return executed, told


STATS_ID = "ascend-stats"
_ROLES = {Side.INPUT: (Role.INPUT, "args"), Side.OUTPUT: (Role.OUTPUT, "output")}

ReadStep: TypeAlias = Callable[[], tuple[Sequence[Executed], Sequence[str]]]
"""Reads the operators of a step, and says what is told of it."""


class OperatorRank:
    """A source of frames: the operators that one device executed, by step."""

    def __init__(
        self, steps: Mapping[int, ReadStep], *, device: str = "", missing: Sequence[str] = (), has_data: bool = False
    ) -> None:
        self._steps = steps
        self._device = device
        self._missing = list(missing)
        self._has_data = has_data
        self._tensors: dict[int, ExecutedTensor] = {}
        self._calls = 0

    @property
    def summary_id(self) -> str:
        return SUMMARY_ID if self._has_data else STATS_ID

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(self._missing)

    def load(self, step: int) -> StepFrames:
        executed, told = self._steps[step]()
        self._missing += told
        first, self._calls = self._calls, self._calls + len(executed)
        uses = [(first + place, tensor) for place, one in enumerate(executed) for tensor in one.tensors]
        tensors = [tensor for _, tensor in uses]
        summaries = summary_frame(tensors)
        values, made = _values_of_uses(uses, summaries, first=len(self._tensors))
        kept = {value: place for place, value in reversed(list(enumerate(values)))}
        new = {value: kept[value] for value in sorted(kept)}
        self._tensors |= {value: tensors[place] for value, place in new.items()}
        self._has_data = self._has_data or any(tensor.read is not None for tensor in tensors)
        return operator_frames(
            calls=[
                call_row(first + place, name=one.name, op=one.op_type, operator=one.op_name, step=step)
                for place, one in enumerate(executed)
            ],
            values=[self._value_row(value, tensors[place], made.get(value)) for value, place in new.items()],
            uses=[
                use_row(call, _ROLES[tensor.side][0], f"{_ROLES[tensor.side][1]}.{tensor.index}", value)
                for (call, tensor), value in zip(uses, values, strict=True)
            ],
            summaries=summaries.select(pl.all().gather(list(new.values()))),
        )

    def data(self, value: Value) -> NDArray[Any] | None:
        tensor = self._tensors[value.id]
        return None if tensor.read is None else tensor.read()

    def _value_row(self, value: int, tensor: ExecutedTensor, producer: int | None) -> Row:
        return value_row(
            value,
            producer=producer,
            dtype=tensor.dtype,
            shape=tensor.shape,
            device=tensor.device or self._device,
            layout=tensor.layout,
            saved=tensor.read is not None,
        )


def _values_of_uses(
    uses: Sequence[tuple[int, ExecutedTensor]], summaries: pl.DataFrame, *, first: int
) -> tuple[list[int], dict[int, int]]:
    """The value of each use, and the call that made each; an input is what has the same key, or the same content."""
    values: list[int] = []
    made: dict[int, int] = {}
    latest: dict[Hashable, int] = {}
    following = first
    contents = summaries.select("digest", "min", "max", "mean", "norm", "nan").rows()
    for (call, tensor), content in zip(uses, contents, strict=True):
        known = any(number is not None for number in content)
        key = tensor.key or ((tensor.dtype, tensor.shape, content) if known else object())
        if tensor.side is Side.INPUT and key in latest:
            values.append(latest[key])
            continue
        if tensor.side is Side.OUTPUT:
            made[following] = call
        latest[key] = following
        values.append(following)
        following += 1
    return values, made


def read_dump_tensors(path: Path) -> TensorFile:
    """`output.0` of a file; `fc1/Relu.output.0` of a directory, its newest run, of each operator what it did last.

    Of several devices or steps, names begin with `device1/` or `step3/`.
    """
    steps, _ = dumped_run(path)
    if not path.is_dir():
        return _tensors(steps[0], lambda _: "")
    found: dict[str, StoredTensor] = {}
    for dumped in steps:
        place = f"device{dumped.device}/" if len({each.device for each in steps}) > 1 else ""
        place += f"step{dumped.step}/" if len({each.step for each in steps}) > 1 else ""
        tensors = _tensors(dumped, lambda operator: f"{operator}.")
        found |= {f"{place}{name}": tensor for name, tensor in tensors.items()}
    return found


def _tensors(dumped: DumpedStep, prefix: Callable[[str], str]) -> dict[str, StoredTensor]:
    """Tensors by name, and under its own name each file that cannot be read."""
    executed, problems = dumped.read()
    if problems and not executed:
        raise next(iter(problems.values()))
    found = {file.name: StoredTensor("unreadable", (), partial(_refuse, error)) for file, error in problems.items()}
    for one in executed:
        for tensor in one.tensors:
            name = f"{prefix(one.op_name)}{tensor.place}"
            if tensor.read is not None:
                found[name] = StoredTensor(tensor.dtype, tensor.shape, tensor.read)
            elif tensor.dtype not in DTYPES:
                folder = dumped.entries[0].path.parent
                found[name] = unsupported(folder, name, dtype=tensor.dtype, shape=tensor.shape)
    return found


def _refuse(error: UlpscopeError) -> AnyArray:
    raise error


NPU = Dialect(
    what="a dump of an NPU",
    next_step="ulpscope show {path}, ulpscope convert {path} --to npy -o DIR, or set it beside a reference: "
    "ulpscope compare REFERENCE {path} --graph GRAPH",
    recognises=looks_like,
    open=open_npu_dump,
    tensors=read_dump_tensors,
)
