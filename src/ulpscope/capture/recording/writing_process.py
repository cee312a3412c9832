"""Tables of a trace out of rows and summaries; the process that makes them of what a compiled recorder leaves behind.

It is a process of its own: in the run's, every line of Python would hold the run up.
"""

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.capture.events import EventLog
from ulpscope.capture.recording.rows import Tables, shard_columns, spread
from ulpscope.capture.recording.tensors import Batch
from ulpscope.numerics.summaries.constants import ROW_LENGTH
from ulpscope.numerics.summaries.rows import rows_to_columns
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.records.runs import StepInfo
from ulpscope.trace.schema import (
    CALLS,
    STACKS,
    TENSORS,
    VALUE_DATA,
    VALUE_IDENTITY,
)
from ulpscope.trace.writer import RankWriter


@dataclass(frozen=True, slots=True)
class StepEnd:
    """What is known of a step when it is whole."""

    seconds: float
    """How long it took."""
    skipped: bool = False
    """A GradScaler has skipped an update of it."""
    known: Sequence[int] = ()
    """Values that later steps may use, where that is asked for."""


class StepWriter:
    """Adds up what the parts of the running step hold."""

    def __init__(self, writer: RankWriter) -> None:
        self._writer = writer
        self._totals: Counter[str] = Counter()

    def take_found(self) -> list[dict[str, Any]]:
        """What the tables have told since this was asked last; this one does not look into them."""
        return []

    def write(self, step: int, tables: Tables, end: StepEnd | None) -> int:
        """Write a part, with which its step may be whole. Gives the bytes written."""
        totals, size = self._totals, 0
        # A step that is written up to its last call has nothing to add at its end.
        if not totals or not all(table.is_empty() for table in tables.values()):
            calls = tables["calls"]
            in_order = calls if calls["id"].is_sorted() else calls.sort("id")
            size = self._writer.write_part(step, **tables | {"calls": in_order})
            totals.update({name: tables[name].height for name in ("calls", "values", "tensors")}, parts=1)
            if tables["values"].height:
                totals.setdefault("first_value", tables["values"]["id"][0])
        if end is not None:
            totals.setdefault("first_value", 0)
            self._writer.finish_step(StepInfo(step=step, seconds=end.seconds, **totals))
            totals.clear()
        return size


Buffer = bytes | bytearray | memoryview
Taking = tuple[int, list[dict[str, Any]]]
"""How much has come to the disk, and what tables tell."""

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


class Readable(Protocol):
    """What messages are read from."""

    def read(self, length: int, /) -> bytes | bytearray: ...


def receive(stream: Readable) -> tuple[dict[str, Any], list[Buffer]] | None:
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

    def write(self, directory: Path, taken: Taken, others: dict[str, Any]) -> Taking:
        """Have a part of a compiled recorder written into a rank's directory."""
        told, self._told_words = self._told_words, len(taken.words)
        others |= {"words": taken.words[told : self._told_words]}
        return self.ask(directory, taken.described() | others, taken.buffers())

    def settle(self, directory: Path) -> Taking:
        """Have everything written that waits there."""
        return self.ask(directory, {"settle": True}, [])

    def ask(self, directory: Path, told: dict[str, Any], buffers: Sequence[Buffer]) -> Taking:
        """Send a part that belongs into a rank's directory."""
        try:
            send(told | {"directory": str(directory)}, buffers, self._stdin)
            line = self._stdout.readline()
        except OSError as error:
            raise _gone(str(error)) from error
        if not line:
            raise _gone(f"exit code {self._process.wait(STOP_SECONDS)}")
        answer = _Answer(**json.loads(line))
        if answer.error is not None:
            seen, expected, next_step = answer.error
            raise TraceError(seen, expected=expected, next_step=next_step)
        return answer.size, answer.found

    def close(self) -> None:
        """Wait until everything is on disk."""
        with contextlib.suppress(OSError):
            # Not by closing the pipe alone: processes that the run has forked hold it, too.
            send({"stop": True}, [], self._stdin)
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


class Receiver(Protocol):
    """What becomes of parts in the process that writes."""

    def receive(self, told: dict[str, Any], buffers: list[Buffer]) -> Taking:
        """Take a part over."""

    @property
    def seconds_left(self) -> float | None:
        """After which something that waits should be written; none while nothing does."""

    def settle(self) -> Taking:
        """Write everything that waits."""


class PartReceiver:
    """Writes parts of a compiled recorder as they come."""

    seconds_left = None

    def __init__(self, steps: StepWriter) -> None:
        self._steps = steps
        self._words: list[str] = []

    def receive(self, told: dict[str, Any], buffers: list[Buffer]) -> Taking:
        self._words += told["words"]
        end = None if told["end"] is None else StepEnd(**told["end"])
        size = self._steps.write(told["step"], tables_of(told, buffers, self._words), end)
        return size, self._steps.take_found()

    def settle(self) -> Taking:
        return 0, []


class _Stream:
    """What the run sends; nothing of it is read ahead, so that it can be asked whether there is more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def has_more(self, seconds: float | None) -> bool:
        """Waits so long for more, or for the end."""
        return bool(select.select([self._descriptor], [], [], seconds)[0])

    def read(self, length: int) -> bytearray:
        """So much, or what there was until the end."""
        content = bytearray(length)
        view, held = memoryview(content), 0
        while held < length and (count := os.readv(self._descriptor, [view[held:]])):
            held += count
        return content if held == length else bytearray(view[:held])


def _plain_parts(writer: RankWriter) -> Receiver:
    return PartReceiver(StepWriter(writer))


def serve(make_receiver: Callable[[RankWriter], Receiver] = _plain_parts) -> None:
    """Take parts as they come in, until there are no more."""
    for number in (signal.SIGINT, signal.SIGTERM):  # what becomes of them is the run's business: this ends with it
        signal.signal(number, signal.SIG_IGN)
    answers, stream = sys.stdout, _Stream(sys.stdin.fileno())
    sys.stdout = sys.stderr
    writer = RankWriter(Path(), None)
    receiver, overdue = make_receiver(writer), _Answer()
    while True:
        if not stream.has_more(receiver.seconds_left):
            overdue += _tried(receiver.settle)
            continue
        message = receive(stream)
        if message is None or "stop" in message[0]:
            _tried(receiver.settle)
            return
        writer.directory = Path(message[0]["directory"])  # it may have been moved
        settles = "settle" in message[0]
        answer = overdue + _tried(receiver.settle if settles else functools.partial(receiver.receive, *message))
        overdue = _Answer()
        try:
            answers.write(json.dumps(asdict(answer)) + "\n")
            answers.flush()
        except BrokenPipeError:  # the run has died; what it sent is written
            os.dup2(os.open(os.devnull, os.O_WRONLY), answers.fileno())  # or Python would complain about it at its end


@dataclass(frozen=True)
class _Answer:
    """What became of parts: how much has come to the disk, what tables tell, or what went wrong and what to do."""

    size: int = 0
    found: list[dict[str, Any]] = field(default_factory=list)
    error: tuple[str, str, str] | None = None

    def __add__(self, other: "_Answer") -> "_Answer":
        return _Answer(self.size + other.size, self.found + other.found, self.error or other.error)


def _tried(work: Callable[[], Taking]) -> _Answer:
    try:
        return _Answer(*work())
    except UlpscopeError as error:
        return _Answer(error=(error.seen, error.expected, error.next_step))
    except BaseException as error:  # polars' panics are no Exceptions
        return _Answer(error=(f"{type(error).__name__}: {error}", "a part that can be written", ""))
