"""Overflow records: all layouts, what their status means, and which operator they are about."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.dialects.ascend.overflow_records import (
    MAGIC,
    OLD_SIZE,
    Meaning,
    RecordSearch,
    Unit,
    find_records,
    meanings,
    read_overflow_record,
    record_json,
)
from ulpscope.records.errors import UlpscopeError

DATA = Path(__file__).parents[1] / "data" / "ascend"
EXPECTED = DATA / "expected" / "msprobe_26.2.0"
RECORD = "Opdebug.Node_OpDebug.59.2.1767225600027623"
FIXTURES = {
    "ov_v1": DATA / "precision_data/overflow/dump/20260101000000/0/ge_default_20260101000000_11/1/0" / RECORD,
    "ov_v2": DATA / "overflow_v2" / RECORD,
    "ov_v2_aic1": DATA / "overflow_v2_aic_v1" / RECORD,
}
AIC, AIV, AICPU, SDMA = range(4)
NO = 65535


def new_record(acc_type: int, *numbers: int, version: int = 0, length: int | None = None, valid: int = 1) -> bytes:
    body = struct.pack(f"<{len(numbers)}Q", *numbers)
    head = struct.pack("<6I", MAGIC, version, valid, acc_type, 0, len(body) if length is None else length)
    return (head + body).ljust(OLD_SIZE, b"\0")


def old_record(**status: int) -> bytes:
    """DHA, L2 and AI Core, each with a model, stream and task of its own."""
    data = bytearray(OLD_SIZE)
    for number, place in enumerate((0, 128, 256)):
        struct.pack_into("<6Q", data, place, 500 + number, 10 + number, 20 + number, 0, 0xABC, 0xDEF)
    struct.pack_into("<Q", data, 512, status.get("dha", 0))
    struct.pack_into("<Q", data, 768, status.get("l2", 0))
    struct.pack_into("<3Q", data, 1024, 0x1234, 3, status.get("core", 0))
    return bytes(data)


def varint(number: int) -> bytes:
    head = b""
    while number >= 0x80:
        head, number = head + bytes([number & 0x7F | 0x80]), number >> 7
    return head + bytes([number])


def dump(data: bytes) -> bytes:
    """A dump file with one output of bytes."""
    shape = varint(1 << 3 | 2) + varint(len(varint(len(data)))) + varint(len(data))
    output = bytes([8, 4, 16, 2, 26]) + varint(len(shape)) + shape + bytes([48]) + varint(len(data))
    head = b"\x0a\x032.0" + b"\x1a" + varint(len(output)) + output
    return struct.pack("<Q", len(head)) + head + data


def core(task: int, stream: int, *, context: int = NO, thread: int = NO, status: int = 0x20) -> bytes:
    return new_record(AIC, 1, stream, task, 0, context, thread, 0x10, 0x20, 3, 1, status)


def write(folder: Path, files: dict[str, bytes]) -> RecordSearch:
    for name, content in files.items():
        (folder / name).write_bytes(dump(content))
    return find_records(folder)


def operators(search: RecordSearch) -> list[str | None]:
    return [None if found.operator is None else found.operator.path.name for found in search.found]


@pytest.mark.parametrize("layout", FIXTURES)
def test_records_are_the_json_of_the_older_tool_byte_by_byte(layout: str) -> None:
    record = read_overflow_record(read_dump(FIXTURES[layout]))
    expected = (EXPECTED / layout / f"{RECORD}.output.0.json").read_text()
    assert json.dumps(record_json(record), indent=4) == expected


def test_a_record_of_the_aicpu() -> None:
    record = read_overflow_record(new_record(AICPU, 1, 2, 3, 4, NO, 6, 7, 0x99))
    assert record_json(record) == {
        "magic": "0x5a5a5a5a",
        "version": 0,
        "acc_list": {
            "valid": 1,
            "acc_type": "AICPU",
            "rsv": 0,
            "data_len": 64,
            "data": {
                "model_id": 1,
                "stream_id": 2,
                "task_id": 3,
                "task_type": 4,
                "context_id": NO,
                "cpu_id": 6,
                "thread_id": 7,
                "status": 0x99,
            },
        },
    }
    (unit,) = record.overflowed
    assert (unit.unit, unit.task, unit.stream, unit.context, unit.thread) == (Unit.AICPU, 3, 2, None, 7)


def test_a_record_of_sdma_has_addresses() -> None:
    record = read_overflow_record(new_record(SDMA, 1, 2, 3, 4, 5, 6, 0xAA0, 0xBB0, 9, 0x0B00))
    fields = record_json(record)["acc_list"]["data"]
    assert (fields["src_addr"], fields["dst_addr"], fields["channel_id"]) == ("0xaa0", "0xbb0", 9)
    assert record.units[0].meanings == (Meaning.SOURCE_NAN,)


@pytest.mark.parametrize(("acc_type", "unit"), [(AIC, Unit.AIC), (AIV, Unit.AIV)])
def test_a_status_of_four_words_is_read_whole(acc_type: int, unit: Unit) -> None:
    numbers = (1, 2, 3, 4, NO, NO, 7, 8, 9, 10, 0x20, 0, 0x400, 0x100)
    (found,) = read_overflow_record(new_record(acc_type, *numbers, version=1)).units
    assert (found.unit, found.status) == (unit, (0x20, 0, 0x400, 0x100))
    assert found.meanings == (Meaning.FLOAT, Meaning.CUBE, Meaning.TO_FLOAT16)


def test_a_record_that_is_not_valid_tells_nothing() -> None:
    record = read_overflow_record(new_record(AICPU, 1, 2, 3, 4, NO, 6, 7, 0x99, valid=0))
    assert (record.units[0].status, record.overflowed) == ((0x99,), ())


def test_the_length_tells_how_many_words_a_status_has() -> None:
    (short,) = read_overflow_record(new_record(AIC, *range(1, 12), version=1)).units
    (long,) = read_overflow_record(new_record(AIV, *range(1, 15), version=2)).units
    assert (short.status, long.status) == ((11,), (11, 12, 13, 14))


def test_only_units_with_a_status_overflowed() -> None:
    assert read_overflow_record(old_record()).overflowed == ()
    record = read_overflow_record(old_record(dha=0x900, core=0x10))
    assert [(unit.unit, unit.task, unit.stream) for unit in record.overflowed] == [
        (Unit.DHA, 20, 10),
        (Unit.AI_CORE, 22, 12),
    ]


@pytest.mark.parametrize(
    ("unit", "status", "expected"),
    [
        (Unit.AI_CORE, 0x008, [Meaning.NEGATED_SMALLEST]),
        (Unit.AI_CORE, 0x010, [Meaning.INTEGER]),
        (Unit.AI_CORE, 0x120, [Meaning.FLOAT, Meaning.TO_FLOAT16]),
        (Unit.AIV, 0x080, [Meaning.NEGATIVE_TO_UNSIGNED]),
        (Unit.AIC, 0x400, [Meaning.CUBE]),
        (Unit.AIC, 0x420, [Meaning.FLOAT, Meaning.CUBE]),
        (Unit.AI_CORE, 0x1000, [Meaning.UNKNOWN]),
        (Unit.AI_CORE, 0x1020, [Meaning.FLOAT, Meaning.UNKNOWN]),
        (Unit.DHA, 0x0900, [Meaning.OVERFLOW]),
        (Unit.DHA, 0x0A00, [Meaning.UNDERFLOW]),
        (Unit.DHA, 0x0B12, [Meaning.SOURCE_NAN]),
        (Unit.DHA, 0x0C00, [Meaning.TARGET_NAN]),
        (Unit.DHA, 0x0D00, [Meaning.BOTH_NAN]),
        (Unit.DHA, 0x0100, [Meaning.UNKNOWN]),
        (Unit.L2, 0x10000, [Meaning.OVERFLOW]),
        (Unit.L2, 0x20000, [Meaning.UNDERFLOW]),
        (Unit.L2, 0x30000, [Meaning.SOURCE_NAN]),
        (Unit.L2, 0x40000, [Meaning.TARGET_NAN]),
        (Unit.L2, 0x5FFFF, [Meaning.BOTH_NAN]),
        (Unit.AI_CORE, 0, []),
    ],
)
def test_what_a_status_means(unit: Unit, status: int, expected: list[Meaning]) -> None:
    assert list(meanings(unit, (status,))) == expected


@pytest.mark.parametrize("layout", FIXTURES)
def test_the_operator_of_a_real_record_is_found(layout: str) -> None:
    search = find_records(FIXTURES[layout].parent)
    assert operators(search) == ["Muls.scale_Mul.27.1.1767225600027123"]
    assert (search.files, search.silent, search.problems) == (1, 0, ())
    assert operators(find_records(FIXTURES[layout])) == operators(search)


def test_task_and_stream_must_both_fit(tmp_path: Path) -> None:
    files = {
        "Mul.a.27.2.1767225600000001": b"",
        "Mul.b.28.1.1767225600000002": b"",
        "Mul.c.27.1.1767225600000004": b"",
        "Mul.d.27.1.1767225600000003": b"",
        "Opdebug.Node_OpDebug.59.2.1767225600000009": core(27, 1),
    }
    assert operators(write(tmp_path, files)) == ["Mul.d.27.1.1767225600000003"]


def test_a_task_that_is_not_known_is_that_of_the_files_name(tmp_path: Path) -> None:
    files = {
        "Mul.a.59.2.1767225600000001": b"",
        "Opdebug.Node_OpDebug.59.2.1767225600000009": core(2**64 - 1, 2**64 - 1),
    }
    search = write(tmp_path, files)
    assert operators(search) == ["Mul.a.59.2.1767225600000001"]
    assert (search.found[0].task, search.found[0].stream) == (59, 2)


def test_of_ffts_tasks_context_and_thread_must_fit(tmp_path: Path) -> None:
    files = {
        "Mul.a.27.1.1767225600000001.4.7.0.0": b"",
        "Mul.b.27.1.1767225600000002.4.7.1.0": b"",
        "Mul.c.27.1.1767225600000003.4.8.1.0": b"",
        "Opdebug.Node_OpDebug.59.2.1767225600000009.4.0.0.0": core(27, 1, context=7, thread=1),
    }
    assert operators(write(tmp_path, files)) == ["Mul.b.27.1.1767225600000002.4.7.1.0"]


def test_records_come_in_time_order_and_may_lack_their_operator(tmp_path: Path) -> None:
    files = {
        "Opdebug.Node_OpDebug.59.2.1767225600000020": core(28, 1),
        "Mul.b.28.1.1767225600000002": b"",
        "Opdebug.Node_OpDebug.60.2.1767225600000010": core(99, 1),
        "Opdebug.Node_OpDebug.61.2.1767225600000015": core(28, 1, status=0),
    }
    search = write(tmp_path, files)
    assert operators(search) == [None, "Mul.b.28.1.1767225600000002"]
    assert (search.files, search.silent) == (3, 1)


def test_a_hashed_name_is_found_by_its_mapping(tmp_path: Path) -> None:
    (tmp_path / "mapping.csv").write_text("123456789,Opdebug.Node_OpDebug.59.2.1767225600000020\n")
    search = write(tmp_path, {"123456789": core(28, 1), "Mul.b.28.1.1767225600000002": b""})
    assert operators(search) == ["Mul.b.28.1.1767225600000002"]


def test_of_several_runs_the_newest_is_told(tmp_path: Path) -> None:
    for time, task in (("20260101000000", 28), ("20260102000000", 29)):
        folder = tmp_path / "dump" / time / "0"
        folder.mkdir(parents=True)
        (folder / "Opdebug.Node_OpDebug.59.2.1767225600000020").write_bytes(dump(core(task, 1)))
    search = find_records(tmp_path / "dump")
    assert [found.unit.task for found in search.found] == [29]
    assert "20260101000000" in search.problems[0]
    assert [found.unit.task for found in find_records(tmp_path / "dump/20260101000000").found] == [28]


def test_a_record_in_a_file_of_digits_is_read_by_itself(tmp_path: Path) -> None:
    (tmp_path / "mapping.csv").write_text("123456789,Opdebug.Node_OpDebug.59.2.1767225600000020\n")
    write(tmp_path, {"123456789": core(28, 1), "Opdebug.Node_OpDebug.60.2.1767225600000021": core(29, 1)})
    assert [found.unit.task for found in find_records(tmp_path / "123456789").found] == [28]


def test_a_broken_record_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    files = {
        "Opdebug.Node_OpDebug.59.2.1767225600000020": b"\0" * 100,
        "Opdebug.Node_OpDebug.59.2.1767225600000021": core(28, 1),
    }
    search = write(tmp_path, files)
    assert (search.files, len(search.found)) == (2, 1)
    assert "Opdebug.Node_OpDebug.59.2.1767225600000020" in search.problems[0]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "0 bytes"),
        (b"\0" * 2047, "2,047 bytes"),
        (struct.pack("<I", MAGIC), "shorter than its head"),
        (new_record(4, 1), "accelerator type 4"),
        (new_record(AIC, *range(10)), "says 80 bytes of data"),
        (new_record(AIC, *range(12), version=1), "88 or 112 are needed"),
        (new_record(AICPU, *range(8))[:80], "it holds 56"),
        (new_record(SDMA, *range(10), length=2**32 - 1), "says 4294967295 bytes"),
    ],
)
def test_what_is_no_record_is_told(data: bytes, told: str) -> None:
    with pytest.raises(UlpscopeError) as raised:
        read_overflow_record(data, path=Path("somewhere/record"))
    assert told in raised.value.seen
    assert "somewhere/record" in raised.value.seen


def read_or_error(data: bytes) -> str:
    try:
        return json.dumps(record_json(read_overflow_record(data)))
    except UlpscopeError as error:
        return error.seen


def test_mutated_records_give_an_answer_or_an_error() -> None:
    draw = np.random.default_rng(0)
    records = [old_record(core=0x20), core(27, 1), new_record(AIC, *range(14), version=1), new_record(SDMA, *range(10))]
    for number in range(2000):
        mutated = bytearray(records[number % len(records)])
        for place in draw.integers(0, 64, draw.integers(1, 5)):
            mutated[place] = draw.integers(0, 256)
        assert read_or_error(bytes(mutated[: draw.integers(0, len(mutated) + 1)]))
