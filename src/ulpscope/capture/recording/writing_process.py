"""What a compiled recorder leaves behind: columns of numbers on their way to the process that makes tables of them.

Tables are made and written by a process of their own: in this one, every line of Python would hold the run up.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.capture.events import EventLog
from ulpscope.capture.recording.tables import StepWriter, Tables, shard_columns, spread
from ulpscope.capture.recording.tensors import Batch
from ulpscope.numerics.summaries.constants import ROW_LENGTH
from ulpscope.numerics.summaries.rows import rows_to_columns
from ulpscope.records.errors import TraceError, UlpscopeError
from ulpscope.trace.schema import CALLS, STACKS, TENSORS, VALUE_DATA, VALUE_IDENTITY
from ulpscope.trace.writer import RankWriter

_WORDS = ("kind", "op", "module", "module_class", "phase", "autocast")
_NUMBERS = ("id", "number", "step", "micro_step", "parent", "forward", "stack")
_CALL_BUFFERS = (*_NUMBERS, "words")
_USE_BUFFERS = ("call", "role", "place", "value")
_VALUE_BUFFERS = "storage version producer geometry dtype device layout batch row requires_grad initialized".split()
_LENGTH = 8

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Columns:
    """A part: what is short as JSON, long columns as they are."""

    described: dict[str, Any]
    buffers: list[Buffer]
    words: Sequence[str]
    """Those of all parts so far."""

    @property
    def finished_after(self) -> float | None:
        seconds: float | None = self.described["finished_after"]
        return seconds

    @property
    def step(self) -> int:
        step: int = self.described["step"]
        return step

    def tables(self) -> Tables:
        return Tables(self._calls(), self._values(), self._tensors(), self._stacks())

    def _calls(self) -> pl.DataFrame:
        told = self.described
        raw = self._named(_CALL_BUFFERS, 0)
        columns: dict[str, Any] = {name: _integers(raw[name]).tolist() for name in _NUMBERS}
        codes = _codes(raw["words"]).reshape(-1, len(_WORDS))
        columns |= {name: self._texts(codes[:, index]) for index, name in enumerate(_WORDS)}
        ids, count = columns["id"], len(columns["id"])
        draws = {call: draw[0] for call, draw in told["draws"].items()}
        drew = {call: draw[1] for call, draw in told["draws"].items()}
        columns |= {name: _null_if_negative(columns[name]) for name in ("parent", "forward", "stack")}
        columns |= {
            "name": [f"{op}.{number}" for op, number in zip(columns["op"], columns.pop("number"), strict=True)],
            "arguments": told["arguments"],
            "error": _sparse(ids, told["errors"], None),
            "generator": _sparse(ids, draws, None),
            "random": _sparse(ids, drew, False),
            "recompute": [False] * count,
        }
        others = told["calls"]
        return pl.DataFrame({name: [*columns[name], *others[name]] for name in CALLS}, schema=CALLS)

    def _tensors(self) -> pl.DataFrame:
        raw = self._named(_USE_BUFFERS, len(_CALL_BUFFERS))
        return pl.DataFrame(
            {
                "call": _integers(raw["call"]),
                "role": self._texts(_codes(raw["role"])),
                "place": self._texts(_codes(raw["place"])),
                "value": _integers(raw["value"]),
            },
            schema=TENSORS,
        )

    def _values(self) -> pl.DataFrame:
        raw = self._named(_VALUE_BUFFERS, len(_CALL_BUFFERS) + len(_USE_BUFFERS))
        having = _codes(raw["batch"]) >= 0
        names = [self.words[code] for code in _codes(raw["dtype"])[having].tolist()]
        shapes = [tuple(shape) for shape in self.described["shapes"]]
        summary = rows_to_columns(
            self._rows(_codes(raw["batch"])[having], _codes(raw["row"])[having]),
            dtype_names=names,
            shapes=[shapes[number] for number in _codes(raw["geometry"])[having].tolist()],
        )
        identity = self._identity(raw)
        known = self.described["shards"]
        return identity.with_columns(
            *spread(summary, having),
            *(pl.lit(None, dtype=dtype).alias(name) for name, dtype in VALUE_DATA.items()),
            *shard_columns([known.get(str(number)) for number in identity["id"].to_list()]),
        )

    def _identity(self, raw: dict[str, Buffer]) -> pl.DataFrame:
        first = self.described["first_value"]
        geometry = _codes(raw["geometry"])
        return pl.DataFrame(
            {
                "id": np.arange(first, first + len(geometry)),
                **{
                    name: _null_if_negative(_integers(raw[name]).tolist())
                    for name in ("storage", "version", "producer")
                },
                "dtype": self._texts(_codes(raw["dtype"])),
                "shape": _gathered(self.described["shapes"], geometry),
                "strides": _gathered(self.described["strides"], geometry),
                "device": self._texts(_codes(raw["device"])),
                "layout": self._texts(_codes(raw["layout"])),
                "requires_grad": np.frombuffer(raw["requires_grad"], dtype=np.bool_),
                "initialized": np.frombuffer(raw["initialized"], dtype=np.bool_),
            },
            schema=VALUE_IDENTITY,
        )

    def _rows(self, numbers: NDArray[np.int32], indices: NDArray[np.int32]) -> NDArray[np.float64]:
        """The summaries out of the batches, which are the last buffers."""
        rows = np.empty((len(numbers), ROW_LENGTH))
        batches = self.buffers[len(_CALL_BUFFERS) + len(_USE_BUFFERS) + len(_VALUE_BUFFERS) :]
        for number, batch in enumerate(batches):
            positions = np.flatnonzero(numbers == number)
            rows[positions] = np.frombuffer(batch, dtype=np.float64).reshape(-1, ROW_LENGTH)[indices[positions]]
        return rows

    def _stacks(self) -> pl.DataFrame:
        return pl.DataFrame(self.described["stacks"], schema=STACKS, orient="row")

    def _named(self, names: Sequence[str], first: int) -> dict[str, Buffer]:
        return dict(zip(names, self.buffers[first : first + len(names)], strict=True))

    def _texts(self, codes: NDArray[np.int32]) -> list[str | None]:
        words = self.words
        return [words[code] if code >= 0 else None for code in codes.tolist()]


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


def _integers(raw: Buffer) -> NDArray[np.int64]:
    return np.frombuffer(raw, dtype=np.int64)


def _codes(raw: Buffer) -> NDArray[np.int32]:
    return np.frombuffer(raw, dtype=np.int32)


def _gathered(lists: list[list[int]], index: NDArray[np.int32]) -> pl.Series:
    return pl.Series(lists, dtype=pl.List(pl.Int64)).gather(index.astype(np.int64))


def _null_if_negative(numbers: list[int]) -> list[int | None]:
    return [number if number >= 0 else None for number in numbers]


def _sparse(ids: list[int], known: dict[str, Any], other: Any) -> list[Any]:
    """A column of what is known of few calls."""
    return [known.get(str(number), other) for number in ids] if known else [other] * len(ids)


class Taken:
    """What the compiled core gives; `seen` of the calls are not counted anywhere else."""

    def __init__(self, taken: tuple[Any, ...], seen: int) -> None:
        self._calls, self._uses, (self._values, self._shards), self.words = taken
        self.seen = seen
        self.recorded = len(self._calls[0]) // 8

    @property
    def on_device(self) -> bool:
        """Whether summaries of it were made on a device."""
        batches: Sequence[Batch] = self._values[-1]
        return any(batch.on_device for batch in batches)

    def described(self) -> dict[str, Any]:
        """What is short, as JSON has it."""
        *_, arguments, errors, draws = self._calls
        first, *_, shapes, strides, _ = self._values
        return {
            "arguments": arguments,
            "errors": _by_text(errors),
            "draws": _by_text(draws),
            "first_value": first,
            "shapes": shapes,
            "strides": strides,
            "shards": _by_text(self._shards),
        }

    def buffers(self) -> list[Buffer]:
        """The columns, and the rows of all batches; waits for the copies from the device."""
        batches: Sequence[Batch] = self._values[-1]
        rows = [batch.rows()[: batch.used].reshape(-1).view(np.uint8).data for batch in batches]
        return [*self._calls[:-3], *self._uses, *self._values[1:-3], *rows]


def _by_text(known: dict[int, Any]) -> dict[str, Any]:
    return {str(number): entry for number, entry in known.items()}


_START = "import sys; sys.path[:] = {path!r}; from ulpscope.capture.recording.writing_process import serve; serve()"
STOP_SECONDS = 600.0


class WritingProcess:
    """The process that writes; everything here waits for its answer without holding the run's Python up."""

    def __init__(self, events: EventLog | None) -> None:
        code = _START.format(path=sys.path)
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
        self._told_words = 0

    def write(self, directory: Path, described: dict[str, Any], buffers: list[Buffer], words: list[str]) -> int:
        """Have a part written into a rank's directory; gives its size."""
        told, self._told_words = self._told_words, len(words)
        fresh = words[told : self._told_words]
        size: int = self._ask(described | {"directory": str(directory), "words": fresh}, buffers)["bytes"]
        return size

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
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _ask(self, described: dict[str, Any], buffers: list[Buffer]) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            send(described, buffers, self._stdin)
            line = self._process.stdout.readline()
        except OSError as error:
            raise _gone(str(error)) from error
        if not line:
            raise _gone(f"exit code {self._process.wait(STOP_SECONDS)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TraceError(answer["error"], expected=answer["expected"], next_step=answer["next"])
        return answer


def _gone(why: str) -> TraceError:
    return TraceError(
        f"the process that writes the trace has ended ({why})",
        expected="it to live as long as the run",
        next_step="see whether memory is short, or set ULPSCOPE_HOST=python to write without it",
    )


def serve() -> None:
    """Write parts as they come in, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = sys.stdout
    sys.stdout = sys.stderr
    scribe = _Scribe()
    while (message := receive(sys.stdin.buffer)) is not None and "end" not in message[0]:
        try:
            answer: dict[str, Any] = scribe.take(*message)
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


class _Scribe:
    def __init__(self) -> None:
        self._tables = RankWriter(Path(), None)
        self._steps = StepWriter(self._tables)
        self._words: list[str] = []

    def take(self, described: dict[str, Any], buffers: list[Buffer]) -> dict[str, int]:
        self._tables.directory = Path(described["directory"])  # it may have been moved
        self._words += described["words"]
        columns = Columns(described, buffers, self._words)
        return {"bytes": self._steps.write(columns.step, columns.tables(), finished_after=columns.finished_after)}
