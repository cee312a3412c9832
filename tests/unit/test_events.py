from pathlib import Path

from ulpscope.capture.events import EventLog, EventReader, event_file


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
