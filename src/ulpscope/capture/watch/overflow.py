"""Keeps the steps in which numbers overflow, and throws all others away.

A step's tables wait in memory until it has ended; then they are asked where inf, nan or a saturated float16 was made of
other numbers. What an argument asks for, such as a mask, is none. Where a GradScaler has skipped the update, what
overflows behind a finite loss is what the scaler is there for, unless it goes on for so long that the scale cannot be
the reason.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray

from ulpscope.capture.recording import writing_process
from ulpscope.capture.recording.rows import Tables
from ulpscope.capture.recording.writing_process import PartReceiver, StepEnd, StepWriter
from ulpscope.capture.watch.ring import Ring
from ulpscope.records.calls import Call, Value
from ulpscope.records.enums import Kind, Phase
from ulpscope.records.errors import TraceError
from ulpscope.records.overflows import FLOAT16_LARGEST, NotFinite
from ulpscope.records.runs import RankInfo
from ulpscope.trace.frames import FrameRank, StepFrames
from ulpscope.trace.overflow.births import Births, BirthSearch, OverflowWays
from ulpscope.trace.overflow.steps import is_made
from ulpscope.trace.reader import RankTrace
from ulpscope.trace.schema import VALUES
from ulpscope.trace.writer import RankWriter

STEPS_AFTER = 1
"""Steps that are kept after one with an overflow: the way from a gradient to the next loss."""
MOST_SKIPS = 17
"""Updates that a GradScaler skips in a row because of its scale: it begins at 2^16 and is halved each time."""
ON_THE_HOST = 8 * 2**20
"""Rows of a running step that wait in memory, at most: a gigabyte or two."""

_NOBODY = RankInfo(0, 1, {}, {}, {}, (), {}, {}, {}, "")


class _OneStep:
    """The tables of one step, as a rank's source."""

    summary_id = ""
    missing: tuple[str, ...] = ()

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def load(self, step: int) -> StepFrames:
        return StepFrames(**self._tables)

    def data(self, value: Value) -> NDArray[Any] | None:
        return None


class _Carried:
    """Values of steps that were thrown away, as long as later ones may use them."""

    def __init__(self) -> None:
        self._values = pl.DataFrame(schema=dict(VALUES))
        self._on_disk: set[int] = set()

    def with_used(self, tables: Tables) -> pl.DataFrame:
        """The values of a step, and those of earlier steps that it uses."""
        used = self._values.filter(pl.col("id").is_in(tables["tensors"]["value"].unique().implode()))
        return tables["values"] if used.is_empty() else pl.concat([used, tables["values"]])

    def go_on(self, values: pl.DataFrame, known: Sequence[int]) -> None:
        """A step with these values has ended, and so many are known of all that there are."""
        both = pl.concat([self._values, values])
        self._values = both.filter(pl.col("id").is_in(known)).rechunk()  # or it would keep what it was cut from

    def not_on_disk(self, values: pl.DataFrame) -> pl.DataFrame:
        """Those that no earlier step has brought there, as this one does."""
        fresh = values.filter(~pl.col("id").is_in(list(self._on_disk)))
        self._on_disk.update(fresh["id"])
        return fresh


class OverflowKeeper(StepWriter):
    """Writes steps with an overflow, and those just behind them."""

    def __init__(self, writer: RankWriter, most: int, ring: Ring | None = None) -> None:
        super().__init__(writer)
        self._ring = ring
        self._most = most
        self._kept = self._after = self._skips = 0
        self._waiting: list[Tables] = []
        self._rows = 0
        self._stacks: list[pl.DataFrame] = []
        """Of all steps: each is told once."""
        self._written = 0
        """Those that are on disk."""
        self._carried = _Carried()
        self._search: BirthSearch | None = None
        self._found: list[dict[str, Any]] = []
        self._scaled = False
        """Whether it was told that a GradScaler has found one."""

    def take_found(self) -> list[dict[str, Any]]:
        found, self._found = self._found, []
        return found

    def write(self, step: int, tables: Tables, end: StepEnd | None) -> int:
        if not tables["stacks"].is_empty():
            self._stacks.append(tables["stacks"])
        self._hold(step, tables)
        if end is None:
            return 0
        waiting, self._waiting, self._rows = self._waiting, [], 0
        whole = {name: pl.concat([each[name] for each in waiting]) for name in tables}
        own = whole["values"]
        whole["values"] = self._carried.with_used(whole)
        is_kept = not whole["calls"].is_empty() and self._is_kept(step, whole, skipped=end.skipped)
        size = self._keep(step, whole, end) if is_kept else 0
        self._carried.go_on(own, end.known)
        if self._ring is not None:
            self._ring.drop()
        return size

    def _keep(self, step: int, whole: Tables, end: StepEnd) -> int:
        if self._ring is not None:
            whole["values"] = self._ring.pack(step, whole["values"])
        fresh = self._stacks[self._written :]
        whole["stacks"] = pl.concat(fresh) if fresh else whole["stacks"].clear()
        self._written = len(self._stacks)
        whole["values"] = self._carried.not_on_disk(whole["values"])
        return super().write(step, whole, end)

    def _hold(self, step: int, tables: Tables) -> None:
        self._rows += sum(table.height for table in tables.values())
        if self._rows > ON_THE_HOST:
            raise TraceError(
                f"step {step} has more than {ON_THE_HOST:,} calls and tensors",
                expected="steps whose tables can wait in memory until they have ended",
                next_step="watch with --level module, or let the script mark its steps",
            )
        self._waiting.append(tables)

    def _is_kept(self, step: int, tables: Tables, *, skipped: bool) -> bool:
        self._skips = self._skips + 1 if skipped else 0
        if self._kept < self._most:
            found = self._look(step, tables, skipped=skipped)
            if found is not None:
                self._found.append(found)
                self._kept += 1
                self._after = STEPS_AFTER
                return True
        is_after, self._after = self._after > 0, max(0, self._after - 1)
        return is_after

    def _look(self, step: int, tables: Tables, *, skipped: bool) -> dict[str, Any] | None:
        """What is found in a step, if that is no one else's business."""
        tables["calls"] = tables["calls"].sort("id")
        rank = FrameRank(Path(), name="", info=_NOBODY, steps=[step], source=_OneStep(tables))
        if self._search is None:
            self._search = BirthSearch(rank)
        else:
            self._search.go_on_in(rank)
        births = self._search.look(step)
        calls = _alarming(rank, births)
        of_scale = [call for call in calls if _is_of_scale(rank, call)] if skipped and self._skips < MOST_SKIPS else []
        if of_scale and not self._scaled:
            self._found.append(_described(rank, of_scale[0], births, self._stacks) | {"skipped": True})
            self._scaled = True
        alarming = [call for call in calls if call not in of_scale]
        return None if not alarming else _described(rank, alarming[0], births, self._stacks)


def _alarming(rank: RankTrace, births: Births) -> list[Call]:
    """Calls that no mask explains, in the order of execution; what came from outside or from other ranks comes last."""
    ways = OverflowWays(rank)
    written = {call for call in births.written if ways.is_taken_on(call, births.step)}
    asked = {*births.stated, *births.written} - written
    given = () if births.given is None else (births.given,)
    calls = rank.find_calls([call for call in (*births.born, *given) if call not in asked])
    return sorted(calls.values(), key=lambda call: (call.id in given or call.kind is Kind.COLLECTIVE, call.id))


def _is_of_scale(rank: RankTrace, call: Call) -> bool:
    """Whether a smaller loss scale may help: inf, in a gradient."""
    if call.phase is Phase.FORWARD:
        return False
    shown = [value for value in _made(rank, call) if value.stats is not None]
    return any(_highest(value) or value.stats.neg_inf for value in shown if value.stats is not None)


def _highest(value: Value) -> bool:
    stats = value.stats
    return stats is not None and (stats.pos_inf > 0 or (stats.max or 0.0) >= FLOAT16_LARGEST)


def _made(rank: RankTrace, call: Call) -> list[Value]:
    uses = [use for use in rank.uses(call.id) if is_made(use.role, call.kind)]
    values = rank.find_values(use.value for use in uses)
    return [values[use.value] for use in uses if use.value in values]


def _described(rank: RankTrace, call: Call, births: Births, stacks: Sequence[pl.DataFrame]) -> dict[str, Any]:
    counts = [
        NotFinite(v.stats.nan, v.stats.pos_inf, v.stats.neg_inf) for v in _made(rank, call) if v.stats is not None
    ]
    worst = max(counts, key=lambda each: each.total, default=NotFinite())
    return {
        "step": births.step,
        "call": call.name,
        "module": call.module,
        "phase": call.phase.value,
        "skipped": False,
        "given": call.id == births.given and call.id not in births.born,
        "counts": str(worst) if worst.total else "65504 in float16",
        "source": _source(call, stacks),
    }


def _source(call: Call, stacks: Sequence[pl.DataFrame]) -> str | None:
    """The innermost line of the user's code."""
    if call.stack is None:
        return None
    frames = pl.concat(stacks).filter(pl.col("stack") == call.stack).sort("depth")
    return None if frames.is_empty() else f"{Path(frames['file'][0]).name}:{frames['line'][0]}"


def sentence_of(found: Mapping[str, Any]) -> str:
    """What a run that is watched says at once."""
    where = ", ".join(str(part) for part in (found["module"], found["source"]) if part)
    what = "was given" if found["given"] else "made"
    place = f" ({where})" if where else ""
    if found["skipped"]:
        return f"GradScaler skipped step {found['step']}: {found['call']}{place} {what} {found['counts']}"
    return f"overflow in step {found['step']}, {found['phase']}: {found['call']}{place} {what} {found['counts']}"


def serve(most: int) -> None:
    """As of any trace, but for the steps that are thrown away."""
    writing_process.serve(lambda writer: PartReceiver(OverflowKeeper(writer, most)))
