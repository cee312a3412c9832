"""`ulpscope overflow`: which operations overflowed, by what the device noted and by the numbers themselves."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from ulpscope.diagnose.overflow.births import Births, BirthSearch
from ulpscope.diagnose.overflow.steps import is_made
from ulpscope.diagnose.overflow.ways import OverflowWays
from ulpscope.dialects.ascend.overflow.search import RecordSearch, find_records
from ulpscope.dialects.opening import open_run
from ulpscope.graph.names import sanitised
from ulpscope.records.calls import Call
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Place
from ulpscope.records.overflows import (
    Overflow,
    OverflowCounts,
    OverflowFinding,
    OverflowSurvey,
    SeenTensor,
    Side,
)
from ulpscope.records.values import Use, Value
from ulpscope.report.terminal.overflow import survey_json, survey_text
from ulpscope.report.words.language import Language
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.workflows.overflow.execution import Verdicts, execute_births
from ulpscope.workflows.overflow.files import device_findings, write_survey
from ulpscope.workflows.report.command import write_report
from ulpscope.workflows.results import TellsItself, writing

Told = Callable[[str], None]
"""Hears which step is being looked at."""
Read = TypeVar("Read")
Identity = tuple[int, int, str]
"""Of an operator: device, step, and its name as files have it."""


@dataclass(frozen=True, slots=True, repr=False)
class OverflowAnswer(TellsItself):
    """What was found, to be told."""

    survey: OverflowSurvey
    searches: tuple[RecordSearch, ...]

    @property
    def code(self) -> ExitCode:
        return self.survey.code

    def text(self, *, width: int = 100, color: bool = False, language: Language = Language.EN) -> str:
        return survey_text(self.survey, width=width, color=color, language=language)

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        return survey_json(self.survey, language)

    def write(self, out: str | Path, *, language: Language = Language.EN) -> Path:
        """summary.json, overflow.csv, each record as JSON, and the page, which it gives; `out` is empty."""
        out = Path(out)
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        write_survey(out, self.survey, self.searches)
        return write_report(out, self, language=language)


def overflow(paths: Sequence[str | Path], *, told: Told = lambda text: None) -> OverflowAnswer:
    """Look at overflow records, dumps and traces. TraceError if one of them is none of these."""
    opened = [_Source.open(Path(path)) for path in paths]
    noted = [finding for source in opened for finding in source.noted()]
    noted.sort(key=lambda finding: finding.record.timestamp if finding.record else 0)
    seen = [finding for source in opened for finding in source.births(told)]
    told_already = {_identity(finding.place) for finding in noted}
    fresh = [finding for finding in seen if _identity(finding.place) not in told_already]
    survey = OverflowSurvey(
        paths=tuple(str(path) for path in paths),
        findings=(*noted, *(finding for finding in fresh if not _is_harmless(finding))),
        notes=tuple(filter(_is_harmless, fresh)),
        counts=_sum(source.counts for source in opened),
        missing=tuple(sentence for source in opened for sentence in source.missing),
    )
    if not survey.findings:
        _refuse_unread([source.records for source in opened])
    return OverflowAnswer(survey, tuple(source.records for source in opened))


def _refuse_unread(searches: Sequence[RecordSearch]) -> None:
    """A device writes a record because something overflowed: without it nobody can say that nothing did."""
    unread = [sentence for search in searches for sentence in search.unread]
    if unread:
        raise UlpscopeError(
            f"{len(unread)} of {sum(search.files for search in searches)} overflow records cannot be read: {unread[0]}",
            expected="records as the device wrote them: nothing else here tells of an overflow",
            next_step="copy the files from the device again, or take them away to look at the dumps alone",
        )


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
        source._read(source._open)
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

    def _open(self) -> None:
        self._trace = open_run(self.path)

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
        found = [(rank, each) for rank in self._trace.ranks for each in self._steps(rank, told)]
        self.counts = _sum([self.counts, *(_counts(each) for _, each in found)])
        unstated = [(rank.name, _unasked(each)) for rank, each in found]
        verdicts = execute_births(self._trace, unstated)
        ways = {rank.name: OverflowWays(rank) for rank in self._trace.ranks}
        findings = [
            finding
            for rank, each in found
            for finding in _findings(str(self.path), rank, each, verdicts, ways[rank.name])
        ]
        return sorted(findings, key=lambda finding: (finding.place.step, finding.place.call_id or 0))

    def _steps(self, rank: RankTrace, told: Told) -> Iterator[Births]:
        search = BirthSearch(rank)
        for step in rank.steps:
            told(f"{rank.name}, step {step}")
            yield search.look(step)


def _counts(found: Births) -> OverflowCounts:
    return OverflowCounts(
        calls=found.calls,
        born=len(found.born),
        inherited=found.inherited,
        unknown=found.unknown,
        untold=found.untold,
    )


def _unasked(found: Births) -> list[int]:
    """Births that no argument asks for."""
    return [call for call in found.born if call not in found.stated and call not in found.written]


def _findings(
    path: str, rank: RankTrace, found: Births, verdicts: Verdicts, ways: OverflowWays
) -> Iterator[OverflowFinding]:
    given = [] if found.given is None else [found.given]
    for call in rank.find_calls([*found.born, *given]).values():
        uses = rank.uses(call.id)
        values = rank.find_values(use.value for use in uses)
        tensors = tuple(_seen(call, use, values[use.value]) for use in uses if use.value in values)
        verdict, message = verdicts.get((rank.name, call.id), (Overflow.UNCLEAR, ""))
        if call.id in found.stated or call.id in found.written:
            verdict, message = Overflow.STATED, ""
        way = () if call.id in found.stated else ways.way_of(call.id, found.step)
        written = call.id in found.written and ways.is_taken_on(call.id, found.step)
        whole = OverflowFinding(
            path, _place(rank, call), tensors, None, verdict, message, call.id in given, way, written
        )
        yield replace(whole, place=replace(whole.place, tensor=whole.worst.place if whole.worst else None))


def _seen(call: Call, use: Use, value: Value) -> SeenTensor:
    side = Side.OUTPUT if is_made(use.role, call.kind) else Side.INPUT
    return SeenTensor(side, use.place, value.dtype, value.shape, value.stats)


def _place(rank: RankTrace, call: Call) -> Place:
    frames = () if call.stack is None else rank.stack(call.stack)
    return Place(
        rank=call.rank,
        step=call.step,
        phase=call.phase,
        call=call.name,
        call_id=call.id,
        op=call.op,
        module=call.module,
        source=f"{frames[0].file}:{frames[0].line}" if frames else None,
    )
