"""Opens traces: the one door through which every command reads a run.

    trace = open_trace("runs/ref")
    trace.collect(trace.calls(step=0).group_by("op").len())
    rank = trace.ranks[0]
    rank.data(rank.value(17))

Opening lists files only. Frames are lazy and carry `rank` and `process` (the name of the rank's directory); objects are
made only of what is asked for. A lookup by id opens the files of the steps where the id should be; if it is not there,
those of all others.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PanicException, PolarsError

from ulpscope.records.calls import Call, Frame, Use, Value
from ulpscope.records.errors import TraceError
from ulpscope.records.remarks import remark, within
from ulpscope.records.runs import TWINS, RankInfo, StepInfo
from ulpscope.trace.blocks import rows_of
from ulpscope.trace.data import read_value
from ulpscope.trace.description import read_rank_info, read_summary_id, survey_rank
from ulpscope.trace.earlier_steps import Reach, StepFinder
from ulpscope.trace.files import damaged
from ulpscope.trace.objects import call_from_row, frame_from_row, use_from_row, value_from_row
from ulpscope.trace.schema import (
    LATER_COLUMNS,
    RANK_FILE,
    TABLES,
    Table,
    wrong_columns,
    wrong_content,
    wrong_rows,
    wrong_size,
)

Found = TypeVar("Found", Call, Value)
Steps: TypeAlias = int | Sequence[int] | None
"""One step, several or all."""
Look: TypeAlias = Callable[[Table, pl.LazyFrame], pl.LazyFrame]
"""What is shown of a table's rows."""


class RankTrace(ABC):
    """What one process of the run left, wherever its tables are kept."""

    def __init__(self, directory: Path, *, name: str, info: RankInfo) -> None:
        self.directory = directory
        self.name = name
        self.info = info
        self.where = StepFinder(self)
        self._look: Look | None = None

    def seen_through(self, look: Look) -> "RankTrace":
        """The same rank with another look at its tables."""
        seen = copy(self)
        seen.where, seen._look = StepFinder(seen), look
        return seen

    @property
    @abstractmethod
    def steps(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def missing(self) -> tuple[str, ...]:
        """What a complete trace would have and this one has not, one sentence each."""

    @property
    @abstractmethod
    def summary_id(self) -> str:
        """Which constants made the sketches and digests."""

    @abstractmethod
    def step_info(self, step: int) -> StepInfo | None:
        """What is known of a step as a whole; none while it is unfinished."""

    def reach(self, step: int) -> Reach | None:
        """What a step's rows point to in earlier steps; none if that is not known."""
        return None

    @abstractmethod
    def data(self, value: Value) -> NDArray[Any] | None:
        """The elements of a value whose data was saved."""

    @abstractmethod
    def broken_file(self) -> tuple[Path, str] | None:
        """The first table file that cannot be read to its end, and why."""

    @abstractmethod
    def _table(self, table: Table, steps: Iterable[int]) -> pl.LazyFrame:
        """All columns of a table's schema, in any order. collect() tells what is wrong with files."""

    @abstractmethod
    def _check(self, table: Table, steps: Iterable[int]) -> None:
        """Refuse files that do not hold a table's columns."""

    def calls(self, step: Steps = None) -> pl.LazyFrame:
        return self._frame("calls", self._steps(step))

    def tensors(self, step: Steps = None) -> pl.LazyFrame:
        return self._frame("tensors", self._steps(step))

    def values(self, step: Steps = None) -> pl.LazyFrame:
        """All values, or those that the calls of these steps use, whenever they were made."""
        if step is None:
            return self._frame("values", self.steps)
        used = self.collect(self.tensors(step).select(pl.col("value").unique()))["value"].to_list()
        return self._frame("values", self.where.of_values_surely(used)).filter(pl.col("id").is_in(used))

    def stacks(self) -> pl.LazyFrame:
        return self._frame("stacks", ())

    def call(self, call_id: int) -> Call:
        return self._one(self.find_calls([call_id]), call_id, "call")

    def value(self, value_id: int) -> Value:
        return self._one(self.find_values([value_id]), value_id, "value")

    def uses(self, call_id: int) -> list[Use]:
        """The tensors that a call read or made, in the order in which they were recorded."""
        uses = self.scan("tensors", self.where.of_uses(call_id)).filter(pl.col("call") == call_id)
        return [use_from_row(row) for row in self.collect(uses).iter_rows(named=True)]

    def stack(self, stack_id: int) -> tuple[Frame, ...]:
        """Innermost frame first; empty where the stack was not recorded."""
        frames = self.scan("stacks", ()).filter(pl.col("stack") == stack_id).sort("depth")
        return tuple(frame_from_row(row) for row in self.collect(frames).iter_rows(named=True))

    def find_calls(self, call_ids: Iterable[int]) -> dict[int, Call]:
        """Many calls in one read; those that are not there are left out."""
        return {row["id"]: call_from_row(row) for row in self.call_rows(call_ids).iter_rows(named=True)}

    def find_values(self, value_ids: Iterable[int]) -> dict[int, Value]:
        """Many values in one read; those that are not there are left out."""
        rows = self.value_rows(value_ids, columns=[*TABLES["values"], "process"])
        return {row["id"]: value_from_row(row) for row in rows.iter_rows(named=True)}

    def call_rows(self, call_ids: Iterable[int]) -> pl.DataFrame:
        """The rows of calls; those that are not there are left out."""
        ids = sorted(set(call_ids))
        return self._lookup("calls", ids, self.where.of_calls(ids), columns=[*TABLES["calls"], "rank", "process"])

    def value_rows(self, value_ids: Iterable[int], *, columns: Sequence[str]) -> pl.DataFrame:
        """Columns of values, `id` among them; values that are not there are left out."""
        ids = sorted(set(value_ids))
        return self._lookup("values", ids, self.where.of_values(ids), columns=columns)

    def scan(self, table: Table, steps: Iterable[int]) -> pl.LazyFrame:
        """A table of some steps; unlike the frames above, what is wrong with a file is told only by collect()."""
        frame = self._table(table, steps)
        return (frame if self._look is None else self._look(table, frame)).select(
            *TABLES[table],
            rank=pl.lit(self.info.rank, dtype=pl.Int64),
            process=pl.lit(self.name, dtype=pl.String),
        )

    def collect(self, query: pl.LazyFrame) -> pl.DataFrame:
        """Run a query over this rank's frames; a broken file is named."""
        return _collect(query, [self])

    def _steps(self, wanted: Steps) -> Sequence[int]:
        if wanted is None:
            return self.steps
        there = set(self.steps)
        return [step for step in ([wanted] if isinstance(wanted, int) else wanted) if step in there]

    def _lookup(self, table: Table, ids: list[int], likely: Sequence[int], *, columns: Sequence[str]) -> pl.DataFrame:
        """Rows by their ids: from the steps where they should be, and what is not there from all others."""

        def among(steps: Sequence[int], ids: list[int]) -> pl.DataFrame:
            return self.collect(self.scan(table, steps).filter(pl.col("id").is_in(ids)).select(columns))

        found = among(likely, ids)
        if found["id"].n_unique() == len(ids) or len(likely) == len(self.steps):
            return found
        absent, others = set(ids) - set(found["id"]), set(self.steps) - set(likely)
        return pl.concat([found, among(sorted(others), sorted(absent))]).sort("id")

    def _frame(self, table: Table, steps: Sequence[int]) -> pl.LazyFrame:
        self._check(table, steps)
        return self.scan(table, steps)

    def _one(self, found: dict[int, Found], wanted: int, word: str) -> Found:
        if wanted not in found:
            raise TraceError(
                f"{self.directory} has no {word} {wanted}",
                expected=f"the id of a {word} in this trace",
                next_step=f"list what is there: ulpscope show {self.directory}",
            )
        return found[wanted]


class StoredRank(RankTrace):
    """A rank's directory of a trace on disk."""

    def __init__(self, directory: Path, *, name: str | None = None) -> None:
        super().__init__(directory, name=name or directory.resolve().name, info=read_rank_info(directory / RANK_FILE))
        self._parts = survey_rank(directory)
        self._sizes_known: set[Path] = set()
        self._columns_known: set[Path] = set()
        self._rows_known: set[tuple[Path, ...]] = set()

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self._parts.steps)

    @property
    def missing(self) -> tuple[str, ...]:
        if self.info.closed is None:
            return (remark("not_closed"), *self._parts.missing)
        return self._parts.missing

    @cached_property
    def summary_id(self) -> str:
        return read_summary_id(self.directory / RANK_FILE)

    def step_info(self, step: int) -> StepInfo | None:
        return self._parts.steps[step].info if step in self._parts.steps else None

    def reach(self, step: int) -> Reach | None:
        return self._parts.steps[step].reach

    def data(self, value: Value) -> NDArray[Any] | None:
        if value.data is None:
            return None
        return read_value(self.directory, value.data, value.dtype, value.shape)

    def broken_file(self) -> tuple[Path, str] | None:
        files = [(table, file) for table in TABLES for file in self._parts.files(table, self.steps)]
        by_columns = ((file, wrong_columns(file, table)) for table, file in files)
        by_content = ((file, wrong_content(file)) for _, file in files)
        return next(((file, why) for file, why in chain(by_columns, by_content) if why is not None), None)

    def _table(self, table: Table, steps: Iterable[int]) -> pl.LazyFrame:
        wanted = () if table == "stacks" else tuple(steps)
        together = [step for step in wanted if self._parts.is_in_block(step)]
        single = [step for step in wanted if not self._parts.is_in_block(step)] if together else wanted
        frames = [self._scanned(files, table) for files in (self._parts.files(table, single),) if files]
        frames += [rows_of(self._scanned(self._parts.files(table, together), table), together)] if together else []
        frames = [frame.select(*TABLES[table]) for frame in frames]
        return pl.concat(frames) if frames else pl.LazyFrame(schema=dict(TABLES[table]))

    def _scanned(self, files: list[Path], table: Table) -> pl.LazyFrame:
        self._check_sizes(files, table)
        # polars takes the columns of the first file for those of all, and refuses others.
        self._check_columns(files[0], table)
        # A folder may be called `run[1]`, which polars would take for a pattern.
        frame = pl.scan_parquet(files, extra_columns="ignore", glob=False)
        absent = [name for name in LATER_COLUMNS.get(table, ()) if name not in frame.collect_schema()]
        return frame.with_columns(pl.lit(None, dtype=TABLES[table][name]).alias(name) for name in absent)

    def _check(self, table: Table, steps: Iterable[int]) -> None:
        files = self._parts.files(table, steps)
        self._check_sizes(files, table)
        for file in files:
            self._check_columns(file, table)
        # Of files together: two may hold a row of the same id.
        if files and tuple(files) not in self._rows_known:
            _refuse(files[-1], _refuse_one(files, wrong_rows, table))
            self._rows_known.add(tuple(files))

    def _check_sizes(self, files: list[Path], table: Table) -> None:
        unknown = [file for file in files if file not in self._sizes_known]
        if unknown:
            _refuse_one(unknown, wrong_size, table)
            self._sizes_known.update(unknown)

    def _check_columns(self, file: Path, table: Table) -> None:
        if file not in self._columns_known:
            _refuse(file, wrong_columns(file, table))
            self._columns_known.add(file)


class Trace:
    """A captured run: its ranks, and their tables as one."""

    def __init__(self, path: Path, ranks: Sequence[RankTrace], *, missing_ranks: Sequence[str] = ()) -> None:
        self.path = path
        self.ranks = tuple(sorted(ranks, key=lambda rank: (rank.info.rank, rank.name)))
        self.missing_ranks = tuple(missing_ranks)

    def __repr__(self) -> str:
        return f"Trace({str(self.path)!r}: ranks {[rank.info.rank for rank in self.ranks]}, steps {list(self.steps)})"

    @property
    def missing(self) -> tuple[str, ...]:
        """What is missing of any rank, one sentence each."""
        return (*self.missing_ranks, *(within(rank.name, told) for rank in self.ranks for told in rank.missing))

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted({step for rank in self.ranks for step in rank.steps}))

    def process(self, name: str) -> RankTrace:
        """The rank whose directory has this name."""
        for rank in self.ranks:
            if rank.name == name:
                return rank
        raise TraceError(
            f"{self.path} has no process {name!r}",
            expected=f"one of {', '.join(rank.name for rank in self.ranks)}",
            next_step=f"see what is there: ulpscope show {self.path}",
        )

    def calls(self, step: int | None = None) -> pl.LazyFrame:
        return pl.concat(rank.calls(step) for rank in self.ranks)

    def values(self, step: int | None = None) -> pl.LazyFrame:
        """All values, or those that the calls of a step use, whenever they were made."""
        return pl.concat(rank.values(step) for rank in self.ranks)

    def tensors(self, step: int | None = None) -> pl.LazyFrame:
        return pl.concat(rank.tensors(step) for rank in self.ranks)

    def stacks(self) -> pl.LazyFrame:
        return pl.concat(rank.stacks() for rank in self.ranks)

    def collect(self, query: pl.LazyFrame) -> pl.DataFrame:
        """Run a query over this trace's frames; a broken file is named."""
        return _collect(query, self.ranks)


def open_trace(path: str | Path) -> Trace:
    """Open a trace directory, or one rank's directory of it."""
    root = Path(path)
    if not root.is_dir():
        raise _no_trace(root, "is not a directory" if root.exists() else "does not exist")
    if has_rank_file(root):
        return Trace(root, [StoredRank(root)])
    folders = _folders(root)
    # A link to another rank is a process of its own name.
    ranks = [StoredRank(folder, name=folder.name) for folder in folders if has_rank_file(folder)]
    if not ranks:
        raise _no_trace(root, f"holds no directory with a {RANK_FILE}")
    empty = [folder.name for folder in folders if not has_rank_file(folder)]
    return Trace(root, ranks, missing_ranks=[remark("no_rank_file", name=name, file=RANK_FILE) for name in empty])


def has_rank_file(folder: Path) -> bool:
    """Whether something bears the name of a rank's description; what it is, reading it tells."""
    return os.path.lexists(folder / RANK_FILE)


def _folders(root: Path) -> list[Path]:
    try:
        folders = (entry for entry in root.iterdir() if entry.is_dir() and entry.name != TWINS)
        return sorted(entry for entry in folders if not entry.name.startswith("."))
    except OSError as error:
        raise _no_trace(root, f"cannot be listed: {error.strerror}") from error


def _collect(query: pl.LazyFrame, ranks: Iterable[RankTrace]) -> pl.DataFrame:
    try:
        return query.collect()
    except (PolarsError, PanicException, OSError) as error:
        broken = next((found for rank in ranks if (found := rank.broken_file()) is not None), None)
        if broken is None:
            raise
        raise _broken(broken[0], broken[1]) from error


def _no_trace(path: Path, problem: str) -> TraceError:
    return TraceError(
        f"no trace: {path} {problem}",
        expected="a directory that `ulpscope run -o DIR` wrote, or one rank's directory of it",
        next_step="check the path, or capture a run: ulpscope run -o DIR -- python train.py",
    )


def _refuse_one(files: list[Path], problem_of: Callable[[list[Path], Table], str | None], table: Table) -> str | None:
    """Look at files at once, and only where something is wrong at each; gives what is wrong with none alone."""
    told = problem_of(files, table)
    for file in files if told is not None else ():
        _refuse(file, problem_of([file], table))
    return told


def _refuse(file: Path, problem: str | None) -> None:
    if problem is not None:
        raise _broken(file, problem)


def _broken(file: Path, problem: str) -> TraceError:
    told = problem.splitlines()[0] if problem else "unknown reason"
    return damaged(f"{file} cannot be read: {told}", expected="the Parquet file that the capture wrote")
