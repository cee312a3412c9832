"""From overflow records to findings, and what `ulpscope overflow --out` writes."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ulpscope.dialects.ascend.dump_file import read_dump
from ulpscope.dialects.ascend.dump_records import DumpFile, DumpTensor
from ulpscope.dialects.ascend.logical import has_data, logical_array, logical_form, logical_type
from ulpscope.dialects.ascend.overflow_records import read_overflow_record, record_json
from ulpscope.dialects.ascend.overflow_search import FoundRecord, RecordSearch
from ulpscope.numerics.compiled import summarize_into
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.rows import stats_from_row
from ulpscope.numerics.summary import empty_row, flat_elements
from ulpscope.records.enums import Phase
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Place
from ulpscope.records.overflow_findings import DeviceRecord, OverflowFinding, OverflowSurvey, SeenTensor, Side
from ulpscope.records.values import Stats
from ulpscope.report.overflow_table import write_overflow_table
from ulpscope.workflows.results import SUMMARY, write_json, writing

TABLE = "overflow.csv"
RECORDS = "records"


def device_findings(path: Path, search: RecordSearch) -> Iterator[OverflowFinding]:
    """What the device noted, each with the tensors of its operator."""
    for found in search.found:
        dump = _operator_dump(found)
        tensors = () if dump is None else tuple(map(_seen, dump.tensors))
        yield OverflowFinding(str(path), _place(found, dump, tensors), tensors, record=_record(found))


def write_survey(
    out: Path, survey: OverflowSurvey, summary: Mapping[str, Any], searches: tuple[RecordSearch, ...]
) -> None:
    """summary.json, a row an overflow, and each record as the older tools write it."""
    with writing(out):
        for search in searches:
            for path in sorted({found.entry.path for found in search.found}):
                # Several devices may have written records of one name.
                folder = out / RECORDS / (path.parent.relative_to(search.root) if search.root.is_dir() else "")
                folder.mkdir(parents=True, exist_ok=True)
                content = json.dumps(record_json(read_overflow_record(read_dump(path))), indent=4)
                (folder / f"{path.name}.output.0.json").write_text(content, encoding="utf-8")
        write_overflow_table(survey, out / TABLE)
        write_json(out / SUMMARY, summary)


def _operator_dump(found: FoundRecord) -> DumpFile | None:
    if found.operator is None:
        return None
    try:
        return read_dump(found.operator.path)
    except UlpscopeError:
        return None


def _place(found: FoundRecord, dump: DumpFile | None, tensors: tuple[SeenTensor, ...]) -> Place:
    operator = None if found.operator is None else found.operator.name
    name = None if operator is None else operator.operator
    shows = next((tensor.place for tensor in tensors if tensor.side is Side.OUTPUT and tensor.sign), None)
    return Place(
        rank=found.folder.device,
        step=found.folder.step,
        phase=Phase.FORWARD,
        op=None if operator is None else operator.op_type,
        module=dump.op_name if dump is not None and dump.op_name else name,
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


def _seen(tensor: DumpTensor) -> SeenTensor:
    side = Side.INPUT if tensor.side.value == Side.INPUT.value else Side.OUTPUT
    try:
        shape, stats = _stats(tensor)
    except UlpscopeError:
        shape, stats = tensor.shape or (), None
    return SeenTensor(side, tensor.name, logical_type(tensor), shape, stats)


def _stats(tensor: DumpTensor) -> tuple[tuple[int, ...], Stats | None]:
    form, dtype = logical_form(tensor), logical_type(tensor)
    if not has_data(tensor) or dtype not in DTYPES:
        return form.shape, None
    row = empty_row()
    summarize_into(flat_elements(logical_array(tensor, form), DTYPES[dtype]), dtype, row)
    return form.shape, stats_from_row(row, dtype, form.shape)
