"""Opens dumps of Ascend NPUs as a trace: a whole dump path, any directory of it, or one file.

One device's dumps as the tables of a trace, step by step: a call an operator, in the order in which they ran.

A dump has each tensor twice, as the output of one operator and the input of others; what has the same bits, shape and
type is one value, made by the last operator that had it as an output.

The tensors of a dump file, or of a whole dump, by name: what `ulpscope diff` compares.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray

from ulpscope.dialects.ascend.dump_file.records import Side
from ulpscope.dialects.ascend.executed import Executed, ExecutedTensor, read_executed, summary_frame
from ulpscope.dialects.ascend.tree import (
    DumpEntry,
    DumpFolder,
    Place,
    entries_of,
    entry_of,
    has_dumps,
    list_dumps,
    one_run,
    told_unnamed,
)
from ulpscope.dialects.files.stored import AnyArray, StoredTensor, TensorFile, unsupported
from ulpscope.dialects.tables import (
    ASCEND,
    CALL_COLUMNS,
    VALUE_COLUMNS,
    Row,
    call_row,
    foreign_rank,
    use_row,
    value_row,
)
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.constants import SUMMARY_ID
from ulpscope.records.enums import Role, Save
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.remarks import Counted, remark
from ulpscope.records.values import Value
from ulpscope.trace.frames import FrameRank, StepFrames
from ulpscope.trace.reader import Trace
from ulpscope.trace.schema import STACKS, TENSORS


def looks_like(path: Path) -> bool:
    """Whether this is a dump of an NPU, as far as names of files tell."""
    if path.is_file():
        return entry_of(path) is not None
    return path.is_dir() and has_dumps(path)


def open_npu_dump(path: Path) -> Trace:
    """A dump as a trace: devices are its ranks; a step is read when it is first asked for."""
    entry = entry_of(path) if path.is_file() else None
    if entry is not None:
        return Trace(path, [_rank(path, 0, {0: [entry]}, world_size=1)])
    run = one_run(path)
    devices = sorted({folder.device for folder in run.folders})
    ranks = [_rank(path, device, _by_step(run.folders, device), world_size=max(devices) + 1) for device in devices]
    return Trace(path, ranks, missing_ranks=run.left_out)


def _by_step(folders: Sequence[DumpFolder], device: int) -> dict[int, list[Place]]:
    steps: dict[int, list[Place]] = {}
    for folder in folders:
        if folder.device == device:
            steps.setdefault(folder.step, []).append(folder)
    return steps


def _rank(path: Path, device: int, steps: dict[int, list[Place]], *, world_size: int) -> FrameRank:
    has_data = any(not entry.is_stats for places in steps.values() for place in places for entry in entries_of(place))
    save = Save.TENSORS if has_data else Save.STATS
    info = foreign_rank(tool=ASCEND, rank=device, world_size=world_size, save=save, devices=(f"npu:{device}",))
    return FrameRank(
        path, name=f"device{device}", info=info, steps=sorted(steps), source=AscendRank(steps, device=device)
    )


STATS_ID = "ascend-stats"
_ROLES = {Side.INPUT: (Role.INPUT, "args"), Side.OUTPUT: (Role.OUTPUT, "output")}


class AscendRank:
    """A source of frames: the folders, or single files, of one device by step."""

    def __init__(self, places: Mapping[int, Sequence[Place]], *, device: int) -> None:
        self._places = places
        self._device = device
        self._missing: list[str] = []
        self._tensors: dict[int, ExecutedTensor] = {}
        self._calls = 0
        self._has_data = False

    @property
    def summary_id(self) -> str:
        return SUMMARY_ID if self._has_data else STATS_ID

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(self._missing)

    def load(self, step: int) -> StepFrames:
        executed, problems = read_executed(self._entries(step))
        self._tell(step, problems, nothing_left=not executed)
        first, self._calls = self._calls, self._calls + len(executed)
        uses = [(first + place, tensor) for place, one in enumerate(executed) for tensor in one.tensors]
        tensors = [tensor for _, tensor in uses]
        summaries = summary_frame(tensors)
        values, made = _values_of_uses(uses, summaries, first=len(self._tensors))
        kept = {value: place for place, value in reversed(list(enumerate(values)))}
        new = {value: kept[value] for value in sorted(kept)}
        self._tensors |= {value: tensors[place] for value, place in new.items()}
        self._has_data = self._has_data or any(tensor.read is not None for tensor in tensors)
        return StepFrames(
            calls=_calls_frame(executed, first=first, step=step),
            values=self._values_frame(new, tensors, summaries, made),
            tensors=_uses_frame(uses, values),
            stacks=pl.DataFrame(schema=dict(STACKS)),
        )

    def data(self, value: Value) -> NDArray[Any] | None:
        tensor = self._tensors[value.id]
        return None if tensor.read is None else tensor.read()

    def _entries(self, step: int) -> list[DumpEntry]:
        entries: list[DumpEntry] = []
        for place in self._places[step]:
            entries += entries_of(place)
            unnamed = told_unnamed(place.path) if isinstance(place, DumpFolder) else []
            self._missing += [remark("step", step=step, remark=told) for told in unnamed]
        return entries

    def _tell(self, step: int, problems: Mapping[Path, UlpscopeError], *, nothing_left: bool) -> None:
        if not problems:
            return
        first = next(iter(problems.values()))
        if nothing_left:
            raise first
        told = remark("dumps_unreadable", files=Counted(len(problems), "file"), problem=first.seen)
        self._missing.append(remark("step", step=step, remark=told))

    def _values_frame(
        self,
        new: Mapping[int, int],
        tensors: Sequence[ExecutedTensor],
        summaries: pl.DataFrame,
        made: Mapping[int, int],
    ) -> pl.DataFrame:
        rows = [self._value_row(value, tensors[place], producer=made.get(value)) for value, place in new.items()]
        own = summaries.select(pl.all().gather(list(new.values())))
        return pl.DataFrame(rows, schema=VALUE_COLUMNS).hstack(own)

    def _value_row(self, value: int, tensor: ExecutedTensor, *, producer: int | None) -> Row:
        return value_row(
            value,
            producer=producer,
            dtype=tensor.dtype,
            shape=tensor.shape,
            device=f"npu:{self._device}",
            layout=tensor.layout,
            saved=tensor.read is not None,
        )


def _values_of_uses(
    uses: Sequence[tuple[int, ExecutedTensor]], summaries: pl.DataFrame, *, first: int
) -> tuple[list[int], dict[int, int]]:
    """The value of each use, and the call that made each; an input is what has the same content, if anything has."""
    values: list[int] = []
    made: dict[int, int] = {}
    latest: dict[Hashable, int] = {}
    following = first
    contents = summaries.select("digest", "min", "max", "mean", "norm", "nan").rows()
    for (call, tensor), content in zip(uses, contents, strict=True):
        known = any(number is not None for number in content)
        key = (tensor.dtype, tensor.shape, content) if known else object()
        if tensor.side is Side.INPUT and key in latest:
            values.append(latest[key])
            continue
        if tensor.side is Side.OUTPUT:
            made[following] = call
        latest[key] = following
        values.append(following)
        following += 1
    return values, made


def _calls_frame(executed: Sequence[Executed], *, first: int, step: int) -> pl.DataFrame:
    counts: Counter[str] = Counter()
    rows = []
    for place, one in enumerate(executed):
        op = one.op_type
        rows.append(call_row(first + place, name=f"{op}.{counts[op]}", op=op, operator=one.op_name, step=step))
        counts[op] += 1
    return pl.DataFrame(rows, schema=CALL_COLUMNS)


def _uses_frame(uses: Sequence[tuple[int, ExecutedTensor]], values: Sequence[int]) -> pl.DataFrame:
    rows = []
    for (call, tensor), value in zip(uses, values, strict=True):
        role, word = _ROLES[tensor.side]
        rows.append(use_row(call, role, f"{word}.{tensor.index}", value))
    return pl.DataFrame(rows, schema=dict(TENSORS))


def holds_dumps(path: Path) -> bool:
    """Whether this is a dump file, or a directory with some below it, as far as names tell."""
    return has_dumps(path) if path.is_dir() else entry_of(path) is not None


def read_dump_tensors(path: Path) -> TensorFile:
    """`output.0` of a file; `fc1/Relu.output.0` of a directory, its newest run, of each operator what it did last.

    Of several devices or steps, names begin with `device1/` or `step3/`.
    """
    entry = None if path.is_dir() else entry_of(path)
    if entry is not None:
        return _tensors([entry], lambda _: "")
    folders: dict[tuple[int, int], list[DumpFolder]] = {}
    for folder in one_run(path).folders:
        folders.setdefault((folder.device, folder.step), []).append(folder)
    found: dict[str, StoredTensor] = {}
    for (device, step), several in sorted(folders.items()):
        place = f"device{device}/" if len({device for device, _ in folders}) > 1 else ""
        place += f"step{step}/" if len({step for _, step in folders}) > 1 else ""
        entries = [one for folder in several for one in list_dumps(folder.path)]
        tensors = _tensors(entries, lambda operator: f"{operator}.")
        found |= {f"{place}{name}": tensor for name, tensor in tensors.items()}
    return found


def _tensors(entries: Sequence[DumpEntry], prefix: Callable[[str], str]) -> dict[str, StoredTensor]:
    """Tensors by name, and under its own name each file that cannot be read."""
    executed, problems = read_executed(entries)
    if problems and not executed:
        raise next(iter(problems.values()))
    found = {file.name: StoredTensor("unreadable", (), partial(_refuse, error)) for file, error in problems.items()}
    for one in executed:
        for tensor in one.tensors:
            name = f"{prefix(one.op_name)}{tensor.side.value}.{tensor.index}"
            if tensor.read is not None:
                found[name] = StoredTensor(tensor.dtype, tensor.shape, tensor.read)
            elif tensor.dtype not in DTYPES:
                found[name] = unsupported(entries[0].path.parent, name, dtype=tensor.dtype, shape=tensor.shape)
    return found


def _refuse(error: UlpscopeError) -> AnyArray:
    raise error
