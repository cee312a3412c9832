"""From overflow records to findings, and what `ulpscope overflow --out` writes."""

import json
from collections.abc import Iterator
from pathlib import Path

from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.dialects.ascend.executed import ExecutedTensor, executed_stats, read_executed
from ulpscope.dialects.ascend.overflow.records import read_overflow_record, record_json
from ulpscope.dialects.ascend.overflow.search import FoundRecord, RecordSearch
from ulpscope.records.enums import Phase
from ulpscope.records.findings import Place
from ulpscope.records.overflows import DeviceRecord, OverflowFinding, OverflowSurvey, SeenTensor, Side
from ulpscope.report.files.check_tables import write_overflow_table
from ulpscope.workflows.results import writing

TABLE = "overflow.csv"
RECORDS = "records"


def device_findings(path: Path, search: RecordSearch, missing: list[str]) -> Iterator[OverflowFinding]:
    """What the device noted, each with the tensors of its operator; `missing` gets what cannot be read of these."""
    for found in search.found:
        executed, problems = read_executed([] if found.operator is None else [found.operator])
        missing += [error.seen for error in problems.values()]
        tensors = tuple([_seen(tensor) for each in executed for tensor in each.tensors])
        name = next((each.op_name for each in executed), None)
        yield OverflowFinding(str(path), _place(found, name, tensors), tensors, record=_record(found))


def write_survey(out: Path, survey: OverflowSurvey, searches: tuple[RecordSearch, ...]) -> None:
    """A row an overflow, and each record as the older tools write it."""
    with writing(out):
        for number, search in enumerate(searches, start=1):
            # Several devices, and several runs, may have written records of one name.
            own = out / RECORDS / (str(number) if len(searches) > 1 else "")
            for path in sorted({found.entry.path for found in search.found}):
                folder = own / (path.parent.relative_to(search.root) if search.root.is_dir() else "")
                folder.mkdir(parents=True, exist_ok=True)
                content = json.dumps(record_json(read_overflow_record(read_dump(path))), indent=4)
                (folder / f"{path.name}.output.0.json").write_text(content, encoding="utf-8")
        write_overflow_table(survey, out / TABLE)


def _place(found: FoundRecord, name: str | None, tensors: tuple[SeenTensor, ...]) -> Place:
    operator = None if found.operator is None else found.operator.name
    shows = next((tensor.place for tensor in tensors if tensor.side is Side.OUTPUT and tensor.sign), None)
    return Place(
        rank=found.folder.device,
        step=found.folder.step,
        phase=Phase.FORWARD,
        op=None if operator is None else operator.op_type,
        module=name if name is not None or operator is None else operator.operator,
        tensor=shows,
    )


def _record(found: FoundRecord) -> DeviceRecord:
    return DeviceRecord(
        file=str(found.entry.path),
        unit=found.unit.unit.value,
        status=found.unit.status,
        meanings=tuple(meaning.value for meaning in found.unit.meanings),
        task=found.task,
        stream=found.stream,
        timestamp=found.entry.name.timestamp,
    )


def _seen(tensor: ExecutedTensor) -> SeenTensor:
    side = Side(tensor.side.value)
    return SeenTensor(side, f"{side.value}.{tensor.index}", tensor.dtype, tensor.shape, executed_stats(tensor))
