"""Data on its way to disk: bounded, whole, and never waited for but where that is counted.

There is no accelerator here. Where one is needed, host memory plays its part, with streams and events that this file
makes: their copies are done at once and land when a test says so.
"""

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from watched import Watched, watch

from ulpscope.capture.recording import saving
from ulpscope.capture.recording.saving import ALIGNMENT, Content, Ring, Saver
from ulpscope.capture.recording.tensors import StorageState, StorageTable
from ulpscope.capture.torch.recorder import TorchTensors
from ulpscope.capture.torch.summaries import device as copied
from ulpscope.capture.torch.summaries.device import DeviceCopies
from ulpscope.numerics.summaries import compiled as copying
from ulpscope.numerics.summaries.rows import raw_digest_of_row
from ulpscope.numerics.summaries.summary import finish_digest, summarize
from ulpscope.trace import data
from ulpscope.trace.writer import RankWriter

KIB = 2**10


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 5)), max_size=60))
def test_rooms_of_a_ring_never_meet(steps: list[tuple[int, int]]) -> None:
    ring, used = Ring(torch.zeros(16 * ALIGNMENT, dtype=torch.uint8)), []
    for number, (nbytes, given_back) in enumerate(steps):
        room = ring.claim(nbytes)
        if room is not None:
            assert (room.start % ALIGNMENT, room.bytes.numel()) == (0, nbytes)
            room.bytes.fill_(number)
            used.append((number, room))
        assert all((room.bytes == written).all() for written, room in used)
        if given_back < len(used):
            used.pop(given_back)[1].give_back()
    for _, room in used:
        room.give_back()
    assert ring.claim(16 * ALIGNMENT) is not None


def test_a_ring_gives_no_more_than_it_has() -> None:
    ring = Ring(torch.zeros(4 * ALIGNMENT, dtype=torch.uint8))
    assert ring.claim(4 * ALIGNMENT + 1) is None
    first, second = ring.claim(2 * ALIGNMENT), ring.claim(ALIGNMENT)
    assert first is not None
    assert second is not None
    assert ring.claim(2 * ALIGNMENT) is None
    second.give_back()
    assert ring.claim(2 * ALIGNMENT) is None
    first.give_back()
    assert ring.claim(4 * ALIGNMENT) is not None


@dataclass(eq=False)
class FakeStream:
    device: torch.device | None = None
    waited_for: list["FakeStream"] = field(default_factory=list)

    def wait_stream(self, stream: "FakeStream") -> None:
        self.waited_for.append(stream)


@dataclass(eq=False)
class FakeDevice:
    """A module of streams and events: what `torch.cuda` is for CUDA. Its copies land after some queries."""

    queries_needed: int = 0
    main: FakeStream = field(default_factory=FakeStream)
    current: FakeStream | None = None
    events: list["FakeEvent"] = field(default_factory=list)

    Stream = FakeStream

    def current_stream(self, device: torch.device) -> FakeStream:
        return self.current or self.main

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.current = stream
        yield
        self.current = None

    def Event(self) -> "FakeEvent":  # noqa: N802 torch's name
        event = FakeEvent(self.queries_needed)
        self.events.append(event)
        return event


@dataclass(eq=False)
class FakeEvent:
    queries: int
    recorded: FakeStream | None = None

    def record(self, stream: FakeStream) -> None:
        self.recorded = stream

    def query(self) -> bool:
        self.queries -= 1
        return self.queries < 0


CPU = torch.device("cpu")


def test_copies_of_a_device_begin_together_after_what_made_them() -> None:
    module = FakeDevice()
    crossings = DeviceCopies(CPU, module)
    hosts = [torch.zeros(4) for _ in range(3)]
    source = torch.ones(4)
    begun = []
    for number, host in enumerate(hosts):
        source.fill_(number + 1)
        begun.append(crossings.begin(source, host))
    source.fill_(99)
    assert module.events == []
    crossings.send()
    crossings.send()
    (event,) = module.events
    side = event.recorded
    assert side is not None
    assert side.waited_for == [module.main]
    assert [host.tolist() for host in hosts] == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    assert {id(one) for one in begun} == {id(begun[0])}
    begun[0].wait()


def test_many_or_large_copies_do_not_wait_for_more() -> None:
    module = FakeDevice()
    crossings = DeviceCopies(CPU, module)
    for _ in range(copied.BATCH_COPIES):
        crossings.begin(torch.ones(1), torch.zeros(1))
    assert len(module.events) == 1
    large = torch.ones(copied.BATCH_BYTES, dtype=torch.uint8)
    crossings.begin(large, torch.zeros_like(large))
    assert len(module.events) == 2


def test_a_copy_on_the_device_lives_until_it_has_landed() -> None:
    module = FakeDevice(queries_needed=2)
    crossings = DeviceCopies(CPU, module)
    begun = crossings.begin(torch.ones(4), torch.zeros(4))
    copy = weakref.ref(begun.copies[0][0])
    crossings.send()
    assert not crossings.make_room(4)
    assert copy() is not None
    begun.wait()
    assert copy() is None


def test_device_memory_of_copies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied, "DEVICE_BYTES", 10 * KIB)
    module = FakeDevice(queries_needed=3)
    crossings = DeviceCopies(CPU, module)
    copies: list[weakref.ref[torch.Tensor]] = []
    waits = 0
    for _ in range(20):
        source = torch.ones(3 * KIB, dtype=torch.uint8)
        waits += crossings.make_room(3 * KIB)
        begun = crossings.begin(source, torch.zeros_like(source))
        copies.append(weakref.ref(begun.copies[-1][0]))
        assert sum(copy() is not None for copy in copies) <= 3
    assert waits >= 5
    assert crossings.make_room(100 * KIB)
    assert not any(copy() is not None for copy in copies)


class Writing:
    """A writer that keeps copies of what it is given, in a thread of its own."""

    def __init__(self, saver: Saver) -> None:
        self.written: list[bytes] = []
        self._saver = saver
        self._contents: queue.Queue[Content | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def put(self, contents: list[Content]) -> None:
        for content in contents:
            self._contents.put(content)

    def close(self) -> list[bytes]:
        self._contents.put(None)
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()
        return self.written

    def _work(self) -> None:
        while (content := self._contents.get()) is not None:
            self.written.append(content.raw().tobytes())
            self._saver.release(content)


def state_of(tensor: torch.Tensor) -> StorageState:
    return StorageTable(TorchTensors()).of(tensor)


def save(saver: Saver, tensor: torch.Tensor) -> None:
    assert saver.save(tensor, state_of(tensor), (None, *TorchTensors().key(tensor)[1:])) is not None


def test_a_fast_run_waits_for_the_writer_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "PENDING_BYTES", 64 * KIB)
    saver = Saver(TorchTensors(), None)
    handed: list[Content] = []
    expected = [np.full(64 + 61 * number, number, np.float32).tobytes() for number in range(100)]

    def run() -> None:
        for number in range(100):
            save(saver, torch.full((64 + 61 * number,), float(number)))
            handed.extend(saver.take_fresh())

    running = threading.Thread(target=run, daemon=True)
    running.start()
    written: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(written) < 100 and time.monotonic() < deadline:
        if saver.waits and len(handed) > len(written):  # not before the run has had to wait
            assert sum(content.nbytes for content in handed if content.room is not None) <= 64 * KIB
            content = handed[len(written)]
            written.append(content.raw().tobytes())
            saver.release(content)
    assert written == expected


@pytest.mark.parametrize("elements", [20 * KIB, 1])
def test_more_than_the_bound_is_saved_where_waiting_would_not_help(
    monkeypatch: pytest.MonkeyPatch, elements: int
) -> None:
    monkeypatch.setattr(saving, "PENDING_BYTES", 16 * KIB)
    saver = Saver(TorchTensors(), None)
    writer = Writing(saver)
    tensors = [torch.full((KIB,), float(number)) for number in range(6)] + [torch.ones(elements)]
    for tensor in tensors:  # more than the bound, and the writer has not been told
        save(saver, tensor)
    writer.put(saver.take_fresh())
    save(saver, torch.ones(elements))
    writer.put(saver.take_fresh())
    assert writer.close() == [tensor.numpy().tobytes() for tensor in [*tensors, torch.ones(elements)]]


def test_memory_beyond_the_bound_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "PENDING_BYTES", 16 * KIB)
    saver = Saver(TorchTensors(), None)
    save(saver, torch.ones(20 * KIB))
    (large,) = saver.take_fresh()
    running = threading.Thread(target=save, args=(saver, torch.ones(1)), daemon=True)
    running.start()
    deadline = time.monotonic() + 60
    while not saver.waits and time.monotonic() < deadline:
        time.sleep(0.001)
    assert saver.take_fresh() == []
    saver.release(large)
    running.join(timeout=60)
    assert len(saver.take_fresh()) == 1


def test_a_copy_that_fails_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "PENDING_BYTES", 16 * KIB)
    saver = Saver(TorchTensors(), None)
    broken = pytest.MonkeyPatch()
    broken.setattr(copied.TorchCopies, "on_host", lambda _, tensor: False)
    broken.setattr(copied.TorchCopies, "allocate", lambda _, nbytes, *, pinned: torch.empty(nbytes, dtype=torch.uint8))
    broken.setattr(torch, "get_device_module", lambda device: 1 / 0)
    for _ in range(10):
        with pytest.raises(ZeroDivisionError):
            save(saver, torch.ones(KIB))
    broken.undo()
    assert saver.take_fresh() == []
    save(saver, torch.ones(4 * KIB))
    (content,) = saver.take_fresh()
    assert content.room is not None
    assert content.room.ring is not None


def test_a_content_is_released_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "PENDING_BYTES", 8 * KIB)
    saver = Saver(TorchTensors(), None)
    save(saver, torch.ones(KIB))
    save(saver, torch.ones(KIB))
    first, second = saver.take_fresh()
    for _ in range(3):
        saver.release(first)
    save(saver, torch.zeros(KIB))
    assert second.raw().tobytes() == torch.ones(KIB).numpy().tobytes()


def test_memory_of_inference_mode_is_used_outside_of_it(tmp_path: Path) -> None:
    def work() -> None:
        with torch.inference_mode():
            torch.relu(torch.full((5,), 3.0))
        torch.relu(torch.full((5,), 4.0))
        with torch.inference_mode():
            torch.relu(torch.full((5,), 5.0))

    watched = watch(tmp_path, work, save="tensors")
    found = [watched.data(watched.call("relu", number), "output")[0] for number in range(3)]
    assert found == [3.0, 4.0, 5.0]


def views() -> list[torch.Tensor]:
    base = torch.arange(60.0).reshape(3, 4, 5)
    wave = torch.arange(6.0).view(3, 2).to(torch.complex64) * (1 + 2j)
    return [
        base,
        base.transpose(0, 2),
        base[1:, ::2],
        base[:, 0, 0],
        base.flip(0),
        torch.tensor(7.0).expand(4, 3),
        torch.empty(0, 3),
        torch.tensor(2.5),
        torch.arange(7, dtype=torch.int8)[1:],
        torch.ones(3, dtype=torch.bool),
        torch.ones(3, 5, dtype=torch.bfloat16)[:, 1:],
        wave.conj(),
        wave.conj().imag,
    ]


@pytest.mark.parametrize("number", range(len(views())))
@pytest.mark.parametrize("device", [False, True])
def test_every_view_is_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, device: bool
) -> None:
    if device:
        play_device(monkeypatch, FakeDevice(queries_needed=1))
    tensor = views()[number]
    expected = tensor.resolve_conj().resolve_neg().to(torch.complex128).numpy().copy()

    watched = watch(tmp_path, lambda: torch.isfinite(tensor), save="tensors")
    found = watched.data(watched.call("isfinite"), "input")
    assert np.array_equal(np.asarray(found).astype(np.complex128), expected)


def play_device(monkeypatch: pytest.MonkeyPatch, module: FakeDevice) -> None:
    """Let the host's memory be a device's, as far as saving is concerned."""

    def allocate(_: copied.TorchCopies, nbytes: int, *, pinned: bool) -> torch.Tensor:
        return torch.from_numpy(np.empty(nbytes, np.uint8))

    monkeypatch.setattr(copied.TorchCopies, "on_host", lambda _, tensor: False)
    monkeypatch.setattr(copied.TorchCopies, "allocate", allocate)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)


def train(steps: int = 2) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(8, 16)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def check_data(watched: Watched) -> int:
    """Every value's data has the digest that was computed from the tensor itself; gives how many have data."""
    ids = watched.trace.values().collect()["id"].to_list()
    checked = 0
    for value in watched.trace.find_values(ids).values():
        found: Any = watched.trace.data(value)
        if value.digest is not None:
            row = summarize(found, value.dtype)
            assert finish_digest(raw_digest_of_row(row), value.dtype, value.shape) == value.digest
            checked += 1
    return checked


@pytest.mark.parametrize("device", [False, True])
def test_a_training_through_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, device: bool) -> None:
    monkeypatch.setattr(saving, "PENDING_BYTES", 12 * KIB)
    monkeypatch.setattr("ulpscope.capture.recording.recorder.PART_DATA_BYTES", 2 * KIB)
    monkeypatch.setattr(data, "PACK_BYTES", KIB)
    module = FakeDevice(queries_needed=2)
    if device:
        play_device(monkeypatch, module)
    watched = watch(tmp_path, train, save="tensors")
    assert check_data(watched) > 50
    assert bool(module.events) == device


def test_large_contents_go_past_the_caches_and_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, streamed = copying._streamer(), []

    def counted(target: int, source: int, nbytes: int) -> None:
        streamed.append(nbytes)
        stream(target, source, nbytes)

    def change_often() -> None:
        tensor = torch.arange(copying.STREAMED_BYTES // 4 + 4, dtype=torch.float32)[1:]  # it begins in mid-line
        for _ in range(20):
            tensor.add_(1.0)

    monkeypatch.setattr(copying, "_streamer", lambda: counted)
    monkeypatch.setattr(saving, "PENDING_BYTES", 4 * copying.STREAMED_BYTES)
    monkeypatch.setattr("ulpscope.capture.recording.recorder.PART_DATA_BYTES", copying.STREAMED_BYTES)
    watched = watch(tmp_path, change_often, save="tensors")
    assert check_data(watched) >= 21
    assert len(streamed) >= 21


def test_no_memory_is_held_after_the_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate, memory = copied.TorchCopies.allocate, []

    def allocated(self: copied.TorchCopies, nbytes: int, *, pinned: bool) -> torch.Tensor:
        made = allocate(self, nbytes, pinned=pinned)
        memory.append(weakref.ref(made))
        return made

    monkeypatch.setattr(copied.TorchCopies, "allocate", allocated)
    watch(tmp_path, train, save="tensors")
    assert len(memory) == 1
    assert memory[0]() is None


def test_memory_is_given_back_before_the_tables_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents: list[Content] = []
    kept, left = Saver.take_fresh, []
    written = RankWriter.write_part

    def take(saver: Saver) -> list[Content]:
        fresh = kept(saver)
        contents.extend(fresh)
        return fresh

    def write(writer: RankWriter, step: int, **tables: Any) -> int:
        left.append(sum(content.room is not None for content in contents))
        return written(writer, step, **tables)

    monkeypatch.setattr(Saver, "take_fresh", take)
    monkeypatch.setattr(RankWriter, "write_part", write)
    monkeypatch.setattr(data, "PACK_BYTES", 1)
    watch(tmp_path, lambda: torch.ones(5).add(1).mul(2).sub(3), save="tensors")
    assert len(contents) > 3
    assert left == [0]


def test_an_optimizer_of_many_parameters_keeps_to_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "PENDING_BYTES", 64 * KIB)
    monkeypatch.setattr("ulpscope.capture.recording.recorder.PART_DATA_BYTES", 16 * KIB)
    most = []
    claim = Saver._claim

    def claimed(saver: Saver, nbytes: int, *, pinned: bool) -> Any:
        room = claim(saver, nbytes, pinned=pinned)
        most.append(saver._pending)
        return room

    monkeypatch.setattr(Saver, "_claim", claimed)

    def work() -> None:
        parameters = [nn.Parameter(torch.randn(KIB)) for _ in range(50)]
        optimizer = torch.optim.AdamW(parameters)
        for _ in range(2):
            torch.stack(list(parameters)).pow(2).sum().backward()
            optimizer.step()

    watched = watch(tmp_path, work, save="tensors")
    assert check_data(watched) > 500
    assert max(most) <= 64 * KIB + 4 * 50 * KIB
