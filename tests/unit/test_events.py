import os
import subprocess
from pathlib import Path

import pytest

from ulpscope.capture.events import EventLog, EventReader, event_file
from ulpscope.records.runs import LastCall


def test_events_arrive_once_and_in_order(tmp_path: Path) -> None:
    log, reader = EventLog(event_file(tmp_path, 1)), EventReader(tmp_path)
    log.emit("started", rank=0)
    log.emit(event="progress", step=1)
    assert [event["event"] for event in reader.read_new()] == ["started", "progress"]
    assert reader.read_new() == []
    log.emit("finished", where=Path("x"))
    EventLog(event_file(tmp_path, 2)).emit("started", rank=1)
    assert [event["event"] for event in reader.read_new()] == ["finished", "started"]


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    reader, file = EventReader(tmp_path), event_file(tmp_path, 1)
    file.write_text('{"event": "sta')
    assert reader.read_new() == []
    with file.open("a") as more:
        more.write('rted"}\n')
    assert reader.read_new() == [{"event": "started"}]


def test_garbage_is_passed_over(tmp_path: Path) -> None:
    event_file(tmp_path, 1).write_text('nonsense\n[1]\n{"no": "event"}\n{"event": "python"}\n')
    assert EventReader(tmp_path).read_new() == [{"event": "python"}]


def test_emitting_never_raises(tmp_path: Path) -> None:
    EventLog(tmp_path / "not" / "there.jsonl").emit("started", rank=0)
    EventLog(Path("/dev/full")).emit("started", rank=0)


@pytest.mark.parametrize(("closed", "running"), [(False, True), (True, False)])
def test_the_last_call_outlives_its_process(tmp_path: Path, closed: bool, running: bool) -> None:
    file = EventLog(event_file(tmp_path, 7)).last_call_file()
    assert file is not None
    file.opened(2, "forward", "torch.a_longer_name.12", "layers.0")
    file.opened(3, "backward", "torch.add.0", None)
    if closed:
        file.closed()
    assert EventReader(tmp_path).last_call(7) == LastCall(3, "backward", "torch.add.0", "", running=running)


@pytest.mark.parametrize("content", [b"", bytes(1024), b"(x\nforward\na\nb\n\0", b"(3\nforward", b"(3\n\xff\n"])
def test_half_a_last_call_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "7.last_call").write_bytes(content)
    assert EventReader(tmp_path).last_call(7) is None


def test_a_name_longer_than_its_place_ends_nothing(tmp_path: Path) -> None:
    file = EventLog(event_file(tmp_path, 7)).last_call_file()
    assert file is not None
    file.opened(3, "forward", "a" * 5000, "")
    assert EventReader(tmp_path).last_call(7) is None


def test_where_nothing_can_be_written_there_is_no_last_call(tmp_path: Path) -> None:
    assert EventLog(event_file(tmp_path / "gone", 7)).last_call_file() is None


def test_who_works_for_a_dead_process_is_known_to_be_at_work(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    with EventLog(event_file(tmp_path, dead.pid)).held_for_child() as held:
        worker = subprocess.Popen(["sleep", "60"], pass_fds=held)
    reader = EventReader(tmp_path)
    assert reader.left_at_work()
    worker.kill()
    worker.wait()
    assert not reader.left_at_work()


def test_who_works_for_a_living_process_is_not_waited_for(tmp_path: Path) -> None:
    with EventLog(event_file(tmp_path, os.getpid())).held_for_child() as held:
        worker = subprocess.Popen(["sleep", "60"], pass_fds=held)
    assert not EventReader(tmp_path).left_at_work()
    worker.kill()
    worker.wait()
