"""`ulpscope overflow`: which operations overflowed, by what the device noted and by the numbers themselves.

Whether an overflow is the type's own limit, its call tells, executed again on the CPU where that is possible.
"""

import importlib.util
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.dialects.ascend.executed import read_executed
from ulpscope.dialects.ascend.overflow_records import (
    RecordSearch,
    find_records,
    read_overflow_record,
    record_json,
)
from ulpscope.dialects.opening import open_run
from ulpscope.graph.names import sanitised
from ulpscope.operations.registry import is_collective
from ulpscope.records.check_runs import CheckOptions
from ulpscope.records.checks import OutputResult
from ulpscope.records.enums import Phase, Watch
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Place
from ulpscope.records.overflows import (
    DeviceRecord,
    Overflow,
    OverflowCounts,
    OverflowFinding,
    OverflowSurvey,
    SeenTensor,
    Side,
)
from ulpscope.records.runs import IntRanges
from ulpscope.report.files.check_tables import write_overflow_table
from ulpscope.report.terminal.overflow import survey_json, survey_text
from ulpscope.trace.overflow.births import Births, BirthSearch, OverflowWays
from ulpscope.trace.overflow.steps import is_made
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.trace.watched import refuse_gradients
from ulpscope.workflows.answers import SpokenAnswer
from ulpscope.workflows.traces import place_of

MOST_EXECUTED = 20
"""The first answer the question; `ulpscope check --overflow` executes all of them."""
TABLE = "overflow.csv"
RECORDS = "records"

CallKey: TypeAlias = tuple[str, int]
"""Process and call."""
Verdicts: TypeAlias = Mapping[CallKey, tuple[Overflow, str]]
Told = Callable[[str], None]
"""Hears which step is being looked at."""
Read = TypeVar("Read")
Identity = tuple[int, int, str]
"""Of an operator: device, step, and its name as files have it."""

_KINDS = {kind.value: kind for kind in Overflow}


def execute_births(trace: Trace, born: Sequence[tuple[str, Sequence[int]]]) -> Verdicts:
    """Verdicts on the first of these calls; none where this is no run of torch, or torch is not installed."""
    wanted = [(process, call) for process, calls in born for call in calls][:MOST_EXECUTED]
    is_torch = all(rank.info.framework.get("name") == "torch" for rank in trace.ranks)
    if not wanted or not is_torch or importlib.util.find_spec("torch") is None:
        return {}
    executed: dict[CallKey, CallKey] = {}
    steps = set()
    for rank in trace.ranks:
        calls = rank.find_calls(call for process, call in wanted if process == rank.name)
        for number, call in calls.items():
            steps.add(call.step)
            # A backward is executed with its forward, and told by it.
            executed[rank.name, number] = rank.name, call.id if call.forward is None else call.forward
    checked = _execute(trace, set(executed.values()), IntRanges(tuple((step, step) for step in sorted(steps))))
    outputs = {birth: checked[key] for birth, key in executed.items() if key in checked}
    return {birth: (_KINDS[found.statistic], found.message) for birth, found in outputs.items()}


def _execute(trace: Trace, calls: Collection[CallKey], steps: IntRanges) -> dict[CallKey, OutputResult]:
    """What came of these calls; those that cannot be executed are left out."""
    from ulpscope.workflows.check.command import check_overflow, plan_overflow

    options = CheckOptions(steps=steps, every=True, stress=False)
    try:
        whole = plan_overflow(trace.path, options)
    except UlpscopeError:
        # A trace without API calls, such as one of modules: its overflows stay unclear.
        return {}
    cases = tuple(case for case in whole.plan.cases if (case.process, case.call) in calls)
    if not cases:
        return {}
    run = check_overflow(replace(whole, plan=replace(whole.plan, cases=cases)), options).found.run
    return {
        (call.process, call.place.call_id): call.output
        for call in run.calls
        if call.place.call_id is not None and call.output is not None and call.output.statistic in _KINDS
    }


def device_findings(path: Path, search: RecordSearch, missing: list[str]) -> Iterator[OverflowFinding]:
    """What the device noted, each with the tensors of its operator; `missing` gets what cannot be read of these."""
    for found in search.found:
        executed, problems = read_executed([] if found.operator is None else [found.operator])
        missing += [error.seen for error in problems.values()]
        tensors = tuple(
            SeenTensor(Side(tensor.side.value), tensor.place, tensor.dtype, tensor.shape, tensor.stats())
            for each in executed
            for tensor in each.tensors
        )
        operator = None if found.operator is None else found.operator.name
        name = next((each.op_name for each in executed), None if operator is None else operator.operator)
        place = Place(
            rank=found.folder.device,
            step=found.folder.step,
            phase=Phase.FORWARD,
            op=None if operator is None else operator.op_type,
            module=name,
            tensor=next((tensor.place for tensor in tensors if tensor.side is Side.OUTPUT and tensor.sign), None),
        )
        record = DeviceRecord(
            file=str(found.entry.path),
            unit=found.unit.unit.value,
            status=found.unit.status,
            meanings=tuple(meaning.value for meaning in found.unit.meanings),
            task=found.task,
            stream=found.stream,
            timestamp=found.entry.name.timestamp,
        )
        yield OverflowFinding(str(path), place, tensors, record=record)


def write_records(survey: OverflowSurvey, out: Path, *, searches: Sequence[RecordSearch]) -> None:
    """Each record as the older tools write it."""
    for number, search in enumerate(searches, start=1):
        # Several devices, and several runs, may have written records of one name.
        own = out / (str(number) if len(searches) > 1 else "")
        for path in sorted({found.entry.path for found in search.found}):
            folder = own / (path.parent.relative_to(search.root) if search.root.is_dir() else "")
            folder.mkdir(parents=True, exist_ok=True)
            content = json.dumps(record_json(read_overflow_record(read_dump(path))), indent=4)
            (folder / f"{path.name}.output.0.json").write_text(content, encoding="utf-8")


class OverflowAnswer(SpokenAnswer):
    """What was found; written as summary.json, overflow.csv, each record as JSON, and the page."""

    __slots__ = ()

    @property
    def survey(self) -> OverflowSurvey:
        found: OverflowSurvey = self.found
        return found


def overflow(paths: Sequence[str | Path], *, told: Told = lambda text: None) -> OverflowAnswer:
    """Look at overflow records, dumps and traces. TraceError if one of them is none of these."""
    opened = [_Source.open(Path(path)) for path in paths]
    noted = [finding for source in opened for finding in source.noted()]
    noted.sort(key=lambda finding: finding.record.timestamp if finding.record else 0)
    seen = [finding for source in opened for finding in source.births(told)]
    seen = _across_ranks(seen)
    told_already = {_identity(finding.place) for finding in noted}
    fresh = [finding for finding in seen if _identity(finding.place) not in told_already]
    survey = OverflowSurvey(
        paths=tuple(str(path) for path in paths),
        findings=(*noted, *(finding for finding in fresh if not _is_harmless(finding))),
        notes=tuple(filter(_is_harmless, fresh)),
        counts=_sum(source.counts for source in opened),
        missing=tuple(sentence for source in opened for sentence in source.missing),
    )
    searches = [source.records for source in opened]
    unread = [sentence for search in searches for sentence in search.unread]
    if unread and not survey.findings:
        # A device writes a record because something overflowed: without it nobody can say that nothing did.
        raise UlpscopeError(
            f"{len(unread)} of {sum(search.files for search in searches)} overflow records cannot be read: {unread[0]}",
            expected="records as the device wrote them: nothing else here tells of an overflow",
            next_step="copy the files from the device again, or take them away to look at the dumps alone",
        )
    write = partial(write_records, searches=searches)
    tables: dict[str, Callable[..., None]] = {TABLE: write_overflow_table, RECORDS: write}
    return OverflowAnswer(survey, survey.code, survey_text, survey_json, tables)


def _across_ranks(findings: Sequence[OverflowFinding]) -> list[OverflowFinding]:
    """What ranks were given by each other after what one of them has made, each step by itself."""
    makers = {finding.place.step: finding.place for finding in reversed(findings) if not _is_received(finding)}
    told = [
        replace(finding, came_from=source)
        if _is_received(finding)
        and (source := makers.get(finding.place.step)) is not None
        and source.rank != finding.place.rank
        else finding
        for finding in findings
    ]
    return sorted(told, key=lambda finding: (finding.place.step, finding.came_from is not None))


def _is_received(finding: OverflowFinding) -> bool:
    """Whether it may have come from another rank: by a collective, or where nobody looked."""
    return finding.given or is_collective(finding.place.op or "")


def _is_harmless(finding: OverflowFinding) -> bool:
    """An argument asks for it, as for a mask: nan that others take on is none."""
    return finding.verdict is Overflow.STATED and not finding.written


def _identity(place: Place) -> Identity:
    return place.rank, place.step, sanitised(place.module or place.call or "")


def _sum(counts: Iterable[OverflowCounts]) -> OverflowCounts:
    several = list(counts)
    names = [field.name for field in fields(OverflowCounts)]
    return OverflowCounts(**{name: sum(getattr(each, name) for each in several) for name in names})


class _Source:
    """One directory: its records, and its trace if it can be opened as one."""

    def __init__(self, path: Path, records: RecordSearch) -> None:
        self.path = path
        self.records = records
        self.counts = OverflowCounts(records=records.files, silent=records.silent)
        self._trace: Trace | None = None
        self._unreadable: list[str] = []

    @classmethod
    def open(cls, path: Path) -> "_Source":
        source = cls(path, find_records(path))
        source._trace = source._read(lambda: _opened(path))
        return source

    @property
    def missing(self) -> tuple[str, ...]:
        told = (*self.records.problems, *self._unreadable, *(() if self._trace is None else self._trace.missing))
        return tuple(dict.fromkeys(told))

    def noted(self) -> list[OverflowFinding]:
        """What the records tell, each with the call of the trace that its operator is, if there is one."""
        findings = list(device_findings(self.path, self.records, self._unreadable))
        steps = sorted({finding.place.step for finding in findings})
        calls = dict(self._read(lambda: [pair for step in steps for pair in self._calls(step)]) or [])
        places = [(finding.place, calls.get(_identity(finding.place))) for finding in findings]
        return [
            finding if call is None else replace(finding, place=replace(place, call=call[0], call_id=call[1]))
            for finding, (place, call) in zip(findings, places, strict=True)
        ]

    def _calls(self, step: int) -> Iterator[tuple[Identity, tuple[str, int]]]:
        """Name and id of each operator's call; of several, the first."""
        for rank in () if self._trace is None else self._trace.ranks:
            table = rank.collect(rank.calls(step).select("id", "name", "module", "rank").drop_nulls("module"))
            for number, name, module, device in reversed(table.rows()):
                yield (device, step, sanitised(module)), (name, number)

    def births(self, told: Told) -> list[OverflowFinding]:
        """What the numbers of the trace tell, in the order of execution."""
        return self._read(lambda: self._births(told)) or []

    def _read(self, reading: Callable[[], Read]) -> Read | None:
        """None if it cannot be read, and there are records: without the dumps of their operators they are an answer."""
        try:
            return reading()
        except UlpscopeError as error:
            if not self.records.files:
                raise
            if self._trace is not None:
                self._unreadable.append(error.seen)
            self._trace = None
            return None

    def _births(self, told: Told) -> list[OverflowFinding]:
        if self._trace is None:
            return []
        found: list[tuple[RankTrace, Births]] = []
        for rank in self._trace.ranks:
            search = BirthSearch(rank)
            for step in rank.steps:
                told(f"{rank.name}, step {step}")
                found.append((rank, search.look(step)))
        counts = [
            OverflowCounts(
                calls=each.calls,
                born=len(each.born),
                inherited=each.inherited,
                unknown=each.unknown,
                untold=each.untold,
            )
            for _, each in found
        ]
        self.counts = _sum([self.counts, *counts, *map(_watched, self._trace.ranks)])
        # Births that no argument asks for.
        unasked = [
            (rank.name, [call for call in each.born if call not in each.stated and call not in each.written])
            for rank, each in found
        ]
        verdicts = execute_births(self._trace, unasked)
        ways = {rank.name: OverflowWays(rank) for rank in self._trace.ranks}
        findings = [
            finding
            for rank, each in found
            for finding in _findings(str(self.path), rank, each, verdicts, ways[rank.name])
        ]
        return sorted(findings, key=lambda finding: (finding.place.step, finding.place.call_id or 0))


def _opened(path: Path) -> Trace:
    trace = open_run(path)
    refuse_gradients(trace)
    return trace


def _watched(rank: RankTrace) -> OverflowCounts:
    """Calls that were looked at while the run was watched, and not kept."""
    if rank.info.capture.get("watch") != Watch.OVERFLOW.value or rank.info.closed is None or rank.steps:
        return OverflowCounts()
    return OverflowCounts(calls=rank.info.coverage.calls_recorded)


def _findings(
    path: str, rank: RankTrace, found: Births, verdicts: Verdicts, ways: OverflowWays
) -> Iterator[OverflowFinding]:
    given = [] if found.given is None else [found.given]
    for call in rank.find_calls([*found.born, *given]).values():
        uses = rank.uses(call.id)
        values = rank.find_values(use.value for use in uses)
        seen = [(use, values[use.value]) for use in uses if use.value in values]
        sides = [Side.OUTPUT if is_made(use.role, call.kind) else Side.INPUT for use, _ in seen]
        tensors = tuple(
            SeenTensor(side, use.place, value.dtype, value.shape, value.stats)
            for side, (use, value) in zip(sides, seen, strict=True)
        )
        verdict, message = verdicts.get((rank.name, call.id), (Overflow.UNCLEAR, ""))
        if call.id in found.stated or call.id in found.written:
            verdict, message = Overflow.STATED, ""
        way = () if call.id in found.stated else ways.way_of(call.id, found.step)
        written = call.id in found.written and ways.is_taken_on(call.id, found.step)
        frames = () if call.stack is None else rank.stack(call.stack)
        place = place_of(call, f"{frames[0].file}:{frames[0].line}" if frames else None)
        whole = OverflowFinding(path, place, tensors, None, verdict, message, call.id in given, way, written)
        yield replace(whole, place=replace(place, tensor=whole.worst.place if whole.worst else None))
