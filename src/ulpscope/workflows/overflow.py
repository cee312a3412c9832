"""`ulpscope overflow`: which operations overflowed, by what the device noted and by the numbers themselves."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ulpscope.diagnose.overflow_births import MADE, Births, BirthSearch
from ulpscope.dialects.ascend.names import sanitised
from ulpscope.dialects.ascend.overflow_search import RecordSearch, find_records
from ulpscope.dialects.opening import open_run
from ulpscope.records.calls import Call
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Place
from ulpscope.records.overflow_findings import (
    OverflowCounts,
    OverflowFinding,
    OverflowSurvey,
    SeenTensor,
    Side,
)
from ulpscope.records.overflows import Overflow
from ulpscope.records.values import Use, Value
from ulpscope.report.language import Language
from ulpscope.report.overflow import survey_text
from ulpscope.report.overflow_json import survey_json
from ulpscope.trace.reader import RankTrace, Trace
from ulpscope.workflows.overflow_execution import Verdicts, execute_births
from ulpscope.workflows.overflow_files import device_findings, write_survey

Told = Callable[[str], None]
"""Hears which step is being looked at."""


@dataclass(frozen=True, slots=True)
class OverflowAnswer:
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

    def write(self, out: Path, *, language: Language = Language.EN) -> None:
        """summary.json, overflow.csv, and each record as JSON; `out` is there and empty."""
        write_survey(out, self.survey, self.json(language), self.searches)


def overflow(paths: Sequence[str | Path], *, told: Told = lambda text: None) -> OverflowAnswer:
    """Look at overflow records, dumps and traces. TraceError if one of them is none of these."""
    opened = [_Source.open(Path(path)) for path in paths]
    noted = [source.with_call(finding) for source in opened for finding in device_findings(source.path, source.records)]
    noted.sort(key=lambda finding: finding.record.timestamp if finding.record else 0)
    seen = [finding for source in opened for finding in source.births(told)]
    told_already = {_identity(finding.place) for finding in noted}
    fresh = [finding for finding in seen if _identity(finding.place) not in told_already]
    survey = OverflowSurvey(
        paths=tuple(str(path) for path in paths),
        findings=(*noted, *(finding for finding in fresh if finding.verdict is not Overflow.STATED)),
        notes=tuple(finding for finding in fresh if finding.verdict is Overflow.STATED),
        counts=_sum(source.counts for source in opened),
        missing=tuple(sentence for source in opened for sentence in source.missing),
    )
    return OverflowAnswer(survey, tuple(source.records for source in opened))


def _identity(place: Place) -> tuple[int, int, str]:
    return place.rank, place.step, sanitised(place.module or place.call or "")


def _sum(counts: Iterable[OverflowCounts]) -> OverflowCounts:
    several = list(counts)
    names = [field.name for field in fields(OverflowCounts)]
    return OverflowCounts(**{name: sum(getattr(each, name) for each in several) for name in names})


class _Source:
    """One directory: its records, and its trace if it can be opened as one."""

    def __init__(self, path: Path, records: RecordSearch, trace: Trace | None) -> None:
        self.path = path
        self.records = records
        self.counts = OverflowCounts(records=records.files, silent=records.silent)
        self._trace = trace

    @classmethod
    def open(cls, path: Path) -> "_Source":
        records = find_records(path)
        try:
            return cls(path, records, open_run(path))
        except UlpscopeError:
            if not records.files:
                raise
            # Records without the dumps of their operators are an answer too.
            return cls(path, records, None)

    @property
    def missing(self) -> tuple[str, ...]:
        return (*self.records.problems, *(() if self._trace is None else self._trace.missing))

    def with_call(self, finding: OverflowFinding) -> OverflowFinding:
        """The finding with the call of the trace that its operator is, if there is one."""
        place, name = finding.place, sanitised(finding.place.module or "")
        for rank in () if self._trace is None or not name else self._trace.ranks:
            calls = rank.collect(rank.calls(place.step).select("id", "module", "rank").drop_nulls("module"))
            for number, module, device in calls.iter_rows():
                if device == place.rank and sanitised(module) == name:
                    return replace(finding, place=replace(place, call=rank.call(number).name, call_id=number))
        return finding

    def births(self, told: Told) -> list[OverflowFinding]:
        """What the numbers of the trace tell, in the order of execution."""
        if self._trace is None:
            return []
        found = [(rank, each) for rank in self._trace.ranks for each in self._steps(rank, told)]
        self.counts = _sum([self.counts, *(_counts(each) for _, each in found)])
        unstated = [(rank.name, [call for call in each.born if call not in each.stated]) for rank, each in found]
        verdicts = execute_births(self._trace, unstated)
        findings = [finding for rank, each in found for finding in _findings(str(self.path), rank, each, verdicts)]
        return sorted(findings, key=lambda finding: (finding.place.step, finding.place.call_id or 0))

    def _steps(self, rank: RankTrace, told: Told) -> Iterator[Births]:
        search = BirthSearch(rank)
        for step in rank.steps:
            told(f"{rank.name}, step {step}")
            yield search.look(step)


def _counts(found: Births) -> OverflowCounts:
    return OverflowCounts(calls=found.calls, born=len(found.born), inherited=found.inherited, unknown=found.unknown)


def _findings(path: str, rank: RankTrace, found: Births, verdicts: Verdicts) -> Iterator[OverflowFinding]:
    given = [] if found.given is None else [found.given]
    for call in rank.find_calls([*found.born, *given]).values():
        uses = rank.uses(call.id)
        values = rank.find_values(use.value for use in uses)
        tensors = tuple(_seen(use, values[use.value]) for use in uses if use.value in values)
        verdict, message = verdicts.get((rank.name, call.id), (Overflow.UNCLEAR, ""))
        if call.id in found.stated:
            verdict, message = Overflow.STATED, ""
        whole = OverflowFinding(path, _place(rank, call), tensors, None, verdict, message, given=call.id in given)
        yield replace(whole, place=replace(whole.place, tensor=whole.worst.place if whole.worst else None))


def _seen(use: Use, value: Value) -> SeenTensor:
    return SeenTensor(Side.OUTPUT if use.role in MADE else Side.INPUT, use.place, value.dtype, value.shape, value.stats)


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
