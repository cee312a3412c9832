"""Tables of a trace out of rows and summaries; the process that makes them of what a compiled recorder leaves behind.

It is a process of its own: in the run's, every line of Python would hold the run up.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.datatypes import DataType, DataTypeClass

from ulpscope.capture.events import EventLog
from ulpscope.capture.recording.tensors import Batch
from ulpscope.numerics.summaries.constants import ROW_LENGTH
from ulpscope.numerics.summaries.rows import Column, rows_to_columns
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.records.runs import StepInfo
from ulpscope.trace.schema import (
    CALLS,
    STACKS,
    TENSORS,
    VALUE_DATA,
    VALUE_IDENTITY,
    VALUE_SHARD,
    VALUE_SUMMARY,
    Columns,
)
from ulpscope.trace.writer import RankWriter

Tables = dict[str, pl.DataFrame]
"""Those of one part: calls, values, tensors, stacks."""


def attributes(rows: Sequence[Any], names: Columns) -> dict[str, Sequence[Any]]:
    """The attributes of these names, one column each."""
    return turned(map(attrgetter(*names), rows), names)


def turned(rows: Iterable[tuple[Any, ...]], names: Columns) -> dict[str, Sequence[Any]]:
    columns = tuple(zip(*rows, strict=True)) or ((),) * len(names)
    return dict(zip(names, columns, strict=True))


def series(name: str, column: Sequence[Any], dtype: DataType | DataTypeClass) -> pl.Series:
    if not isinstance(dtype, pl.List):
        return pl.Series(name, column, dtype=dtype)
    # Of lists there are few that differ, and polars takes each by itself.
    numbers: dict[Any, int] = {}
    index = [numbers.setdefault(item, len(numbers)) for item in column]
    return pl.Series(name, list(numbers), dtype=dtype).gather(np.array(index, dtype=np.int64))


def shard_columns(shards: Sequence[Any]) -> list[pl.Series]:
    """Of each value the global shape and the mesh that it is a shard of, or None."""
    columns: dict[str, Sequence[Any]] = {
        "global_shape": [None if shard is None else tuple(shard[0]) for shard in shards],
        "global_offset": [None] * len(shards),
        "mesh": [None if shard is None else shard[1] for shard in shards],
    }
    return [series(name, columns[name], dtype) for name, dtype in VALUE_SHARD.items()]


def spread(summary: dict[str, Column], having: NDArray[np.bool_]) -> list[pl.Series]:
    """Summary columns over all values, null for those without a summary."""
    rows = np.flatnonzero(having)
    plain: list[pl.Series] = []
    nulls: list[pl.Expr] = []
    for name, dtype in VALUE_SUMMARY.items():
        column = summary[name]
        if not column.valid.any():
            plain.append(pl.Series(name, [None], dtype=dtype).new_from_index(0, len(having)))
            continue
        entries = np.zeros((len(having), *column.values.shape[1:]), dtype=column.values.dtype)
        entries[rows] = column.values
        plain.append(pl.Series(name, entries, dtype=dtype))
        valid = np.zeros(len(having), dtype=np.bool_)
        valid[rows] = column.valid
        if not valid.all():
            plain.append(pl.Series(f"{name} is there", valid))
            nulls.append(pl.when(f"{name} is there").then(name).alias(name))
    spread_out = pl.DataFrame(plain).with_columns(nulls)
    return [spread_out.get_column(name) for name in VALUE_SUMMARY]


class StepWriter:
    """Adds up what the parts of the running step hold."""

    def __init__(self, writer: RankWriter) -> None:
        self._writer = writer
        self._totals: Counter[str] = Counter()

    def take_found(self) -> list[dict[str, Any]]:
        """What the tables have told since this was asked last; this one does not look into them."""
        return []

    def write(self, step: int, tables: Tables, *, finished_after: float | None, skipped: bool) -> int:
        """Write a part; `finished_after` so many seconds its step was whole. Gives the bytes written."""
        totals, size = self._totals, 0
        # A step that is written up to its last call has nothing to add at its end.
        if not totals or not all(table.is_empty() for table in tables.values()):
            size = self._writer.write_part(step, **tables | {"calls": tables["calls"].sort("id")})
            totals.update({name: tables[name].height for name in ("calls", "values", "tensors")}, parts=1)
            if tables["values"].height:
                totals.setdefault("first_value", tables["values"]["id"][0])
        if finished_after is not None:
            totals.setdefault("first_value", 0)
            self._writer.finish_step(StepInfo(step=step, seconds=finished_after, **totals))
            totals.clear()
        return size


Buffer = bytes | bytearray | memoryview

# Columns as the core gives them. Words are told by their number among all words so far, none by a negative one.
_WORDS = ("kind", "op", "module", "module_class", "phase", "autocast")
_CALLS = dict.fromkeys(("id", "number", "step", "micro_step", "parent", "forward", "stack"), "i8") | {"words": "i4"}
_USES = {"call": "i8", "role": "i4", "place": "i4", "value": "i8"}
_VALUES = {
    **dict.fromkeys(("storage", "version", "producer"), "i8"),
    **dict.fromkeys(("geometry", "dtype", "device", "layout", "batch", "row"), "i4"),
    **dict.fromkeys(("requires_grad", "initialized"), "?"),
}
_LENGTH = 8


def tables_of(told: dict[str, Any], buffers: Sequence[Buffer], words: Sequence[str]) -> Tables:
    """Of a part: what is short was told, long columns are as they were, and so are batches of summary rows."""
    waiting = iter(buffers)
    calls, uses, values = (_arrays(columns, waiting) for columns in (_CALLS, _USES, _VALUES))
    uses |= {name: _texts(uses[name], words) for name in ("role", "place")}
    return {
        "calls": _calls_frame(told, calls, words),
        "values": _values_frame(told, values, words, list(waiting)),
        "tensors": pl.DataFrame(uses, schema=TENSORS),
        "stacks": pl.DataFrame(told["stacks"], schema=STACKS, orient="row"),
    }


def _arrays(columns: Mapping[str, str], buffers: Iterator[Buffer]) -> dict[str, Any]:
    return {name: np.frombuffer(next(buffers), dtype=dtype) for name, dtype in columns.items()}


def _texts(codes: NDArray[np.int32], words: Sequence[str]) -> list[str | None]:
    return [words[code] if code >= 0 else None for code in codes.tolist()]


def _optional(numbers: NDArray[np.int64]) -> list[int | None]:
    return [number if number >= 0 else None for number in numbers.tolist()]


def _calls_frame(told: dict[str, Any], raw: dict[str, Any], words: Sequence[str]) -> pl.DataFrame:
    codes = raw["words"].reshape(-1, len(_WORDS))
    columns: dict[str, Any] = {name: _texts(codes[:, index], words) for index, name in enumerate(_WORDS)}
    columns |= {name: raw[name].tolist() for name in ("id", "step", "micro_step")}
    columns |= {name: _optional(raw[name]) for name in ("parent", "forward", "stack")}
    ids = [str(call) for call in columns["id"]]  # few have raised or drawn
    draws = [told["draws"].get(call, (None, False)) for call in ids]
    columns |= {
        "name": [f"{op}.{number}" for op, number in zip(columns["op"], raw["number"].tolist(), strict=True)],
        "arguments": told["arguments"],
        "error": [told["errors"].get(call) for call in ids],
        "generator": [generator for generator, _ in draws],
        "random": [drew for _, drew in draws],
        "recompute": [False] * len(ids),
    }
    others = told["calls"]
    return pl.DataFrame({name: [*columns[name], *others[name]] for name in CALLS}, schema=CALLS)


def _values_frame(
    told: dict[str, Any], raw: dict[str, Any], words: Sequence[str], batches: list[Buffer]
) -> pl.DataFrame:
    geometry, first, having = raw["geometry"], told["first_value"], raw["batch"] >= 0
    shapes = [tuple(shape) for shape in told["shapes"]]
    summary = rows_to_columns(
        _rows(batches, raw["batch"][having], raw["row"][having]),
        dtype_names=[words[code] for code in raw["dtype"][having].tolist()],
        shapes=[shapes[number] for number in geometry[having].tolist()],
    )
    lists = {name: pl.Series(told[f"{name}s"], dtype=pl.List(pl.Int64)) for name in ("shape", "stride")}
    index = geometry.astype(np.int64)
    identity = {
        "id": np.arange(first, first + len(geometry)),
        **{name: _optional(raw[name]) for name in ("storage", "version", "producer")},
        **{name: _texts(raw[name], words) for name in ("dtype", "device", "layout")},
        **{name: raw[name] for name in ("requires_grad", "initialized")},
        "shape": lists["shape"].gather(index),
        "strides": lists["stride"].gather(index),
    }
    return pl.DataFrame({name: identity[name] for name in VALUE_IDENTITY}, schema=VALUE_IDENTITY).with_columns(
        *spread(summary, having),
        *(pl.lit(None, dtype=dtype).alias(name) for name, dtype in VALUE_DATA.items()),
        *shard_columns([told["shards"].get(str(number)) for number in range(first, first + len(geometry))]),
    )


def _rows(batches: list[Buffer], numbers: NDArray[np.int32], indices: NDArray[np.int32]) -> NDArray[np.float64]:
    """Summaries out of the batches of these numbers."""
    rows = np.empty((len(numbers), ROW_LENGTH))
    for number, batch in enumerate(batches):
        positions = np.flatnonzero(numbers == number)
        rows[positions] = np.frombuffer(batch, dtype=np.float64).reshape(-1, ROW_LENGTH)[indices[positions]]
    return rows


def send(described: dict[str, Any], buffers: Sequence[Buffer], stream: IO[bytes]) -> None:
    """Lengths, the JSON, and the buffers as they are."""
    text = json.dumps(described, separators=(",", ":")).encode()
    lengths = [len(text), *(memoryview(buffer).nbytes for buffer in buffers)]
    stream.write(np.array([len(lengths), *lengths], dtype="<i8").tobytes())
    stream.write(text)
    for buffer in buffers:
        stream.write(buffer)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], list[Buffer]] | None:
    """What send() has sent; None at the end."""
    head = stream.read(_LENGTH)
    if len(head) < _LENGTH:
        return None
    count = int(np.frombuffer(head, dtype="<i8")[0])
    lengths = np.frombuffer(stream.read(count * _LENGTH), dtype="<i8").tolist()
    parts = [stream.read(length) for length in lengths]
    if [len(part) for part in parts] != lengths:
        return None  # whoever sent it died in the middle
    described: dict[str, Any] = json.loads(parts[0])
    return described, list(parts[1:])


class Taken:
    """What the compiled core gives: calls and values that it has kept."""

    def __init__(self, taken: tuple[Any, ...]) -> None:
        self._calls, self._uses, (self._values, self._shards), self.words = taken
        self.recorded = len(self._calls[0]) // 8
        self.batches: Sequence[Batch] = self._values[-1]

    def described(self) -> dict[str, Any]:
        """What is short, as JSON has it: there, numbers by which something is known become texts."""
        *_, arguments, errors, draws = self._calls
        first, *_, shapes, strides, _ = self._values
        told = {"arguments": arguments, "errors": errors, "draws": draws, "first_value": first}
        return told | {"shapes": shapes, "strides": strides, "shards": self._shards}

    def buffers(self) -> list[Buffer]:
        """The columns, and the rows of all batches; waits for the copies from the device."""
        rows = [batch.rows()[: batch.used].reshape(-1).view(np.uint8).data for batch in self.batches]
        return [*self._calls[:-3], *self._uses, *self._values[1:-3], *rows]


_START = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve(*{arguments!r})"
STOP_SECONDS = 600.0


class WritingProcess:
    """The process that writes; everything here waits for its answer without holding the run's Python up."""

    def __init__(
        self, events: EventLog | None, *, module: str = __name__, arguments: tuple[int | str, ...] = ()
    ) -> None:
        """It runs `serve` of a module, with these arguments."""
        code = _START.format(path=sys.path, module=module, arguments=arguments)
        # -I: neither the user's variables nor our own, by which children are captured, concern this one. A session of
        # its own: it goes on writing when the run is interrupted, and what it was sent whole when the run has died.
        with contextlib.nullcontext(()) if events is None else events.held_for_child() as held:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                pass_fds=held,
                env=os.environ | {"POLARS_MAX_THREADS": "1"},  # its parts are small, and the cores are the run's
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._told_words = 0

    def write(self, directory: Path, taken: Taken, others: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
        """Have a part written into a rank's directory; gives its size, and what its tables tell."""
        told, self._told_words = self._told_words, len(taken.words)
        others |= {"directory": str(directory), "words": taken.words[told : self._told_words]}
        try:
            send(taken.described() | others, taken.buffers(), self._stdin)
            line = self._stdout.readline()
        except OSError as error:
            raise _gone(str(error)) from error
        if not line:
            raise _gone(f"exit code {self._process.wait(STOP_SECONDS)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TraceError(answer["error"], expected=answer["expected"], next_step=answer["next"])
        return int(answer["bytes"]), answer["found"]

    def close(self) -> None:
        """Wait until everything is on disk."""
        with contextlib.suppress(OSError):
            # Not by closing the pipe alone: processes that the run has forked hold it, too.
            send({"end": True}, [], self._stdin)
            self._stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._stdout.close()


def _gone(why: str) -> TraceError:
    return TraceError(
        f"the process that writes the trace has ended ({why})",
        expected="it to live as long as the run",
        next_step="see whether memory is short, or set ULPSCOPE_HOST=python to write without it",
    )


def serve(make_steps: Callable[[RankWriter], StepWriter] = StepWriter) -> None:
    """Write parts as they come in, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = sys.stdout
    sys.stdout = sys.stderr
    writer = RankWriter(Path(), None)
    steps, words = make_steps(writer), list[str]()
    while (message := receive(sys.stdin.buffer)) is not None and "end" not in message[0]:
        told, buffers = message
        try:
            writer.directory = Path(told["directory"])  # it may have been moved
            words += told["words"]
            tables, finished = tables_of(told, buffers, words), told["finished_after"]
            size = steps.write(told["step"], tables, finished_after=finished, skipped=told["skipped"])
            answer: dict[str, Any] = {"bytes": size, "found": steps.take_found()}
        except UlpscopeError as error:
            answer = {"error": error.seen, "expected": error.expected, "next": error.next_step}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "expected": "a part that can be written", "next": ""}
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:  # the run has died; what it sent is written
            os.dup2(os.open(os.devnull, os.O_WRONLY), answers.fileno())  # or Python would complain about it at its end
            return
