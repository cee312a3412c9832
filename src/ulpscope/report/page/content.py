"""What the page of a comparison, a check, a search for overflows or a single run holds, made of the files of a result.

told.json beside summary.json has a result's sentences in every language.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from ulpscope.judge.rounding.limits import unit_roundoff
from ulpscope.records.calls import Frame
from ulpscope.report.page.assembling import Content
from ulpscope.report.program import place_of, source_line
from ulpscope.report.words.language import Language, phrases


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of one result."""

    summary: Mapping[str, Any]
    """summary.json."""
    told: Mapping[str, Any]
    """told.json: sentences in every language, stacks of findings."""
    tables: Mapping[str, pl.DataFrame]
    """Tables by the name of their file without its ending."""
    plan: Mapping[str, Any] | None = None
    """plan.json of a comparison."""

    def content(self, kind: str, *parts: str, **more: Any) -> dict[str, Any]:
        """What every page of a result has, and more."""
        told = {"told": self._told_of(*parts), "stacks": self.told["stacks"]}
        return {"kind": kind, "summary": self.summary, **told, **more}

    def _told_of(self, *parts: str) -> dict[str, Any]:
        """Sentences of parts of the answer, and of what is missing: told.json of earlier versions lacks these."""
        return {part: self.told[part] for part in parts} | {"missing": self.told.get("missing")}


UNMATCHED = {
    "rank": pl.Int64,
    "side": pl.String,
    "id": pl.Int64,
    "step": pl.Int64,
    "name": pl.String,
    "module": pl.String,
    "phase": pl.String,
}
"""Columns of the calls that only one run has."""


def compare_content(sources: Sources) -> Content:
    """The pairs of tensors, the calls without a partner, and what is told of them."""
    pairs = sources.tables["pairs"]
    ranks = (sources.plan or {}).get("ranks", [])
    meta = sources.content(
        "compare",
        *("findings", "notes", "advice"),
        rounding=_rounding(pairs),
        reasons={reason: _in_each_language(reason) for reason in _reasons(sources.summary)},
        modules={str(rank["rank"]): rank.get("modules", {}) for rank in ranks},
    )
    unmatched = pl.DataFrame(list(_unmatched(ranks)), schema=UNMATCHED)
    return Content(meta, {"pairs": pairs, "unmatched": unmatched})


def _rounding(pairs: pl.DataFrame) -> dict[str, float]:
    """The rounding of one number, by dtype."""
    columns = [column for column in ("dtype_reference", "dtype_target") if column in pairs.columns]
    names = sorted({name for column in columns for name in pairs[column].drop_nulls().unique()})
    return {name: roundoff for name in names if (roundoff := unit_roundoff(name))}


def _reasons(summary: Mapping[str, Any]) -> list[str]:
    return [left["reason"] for left in summary["scope"].get("not_compared", ())]


def _in_each_language(reason: str) -> dict[str, str]:
    """Why tensors were not compared; what has no phrase is a text for all."""
    return {language.value: phrases(language).templates.get(f"reason.{reason}", reason) for language in Language}


def _unmatched(ranks: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for rank in ranks:
        for side in ("reference", "target"):
            for call in rank.get(f"unmatched_{side}", ()):
                known = {name: call[name] for name in UNMATCHED if name in call}
                yield {**known, "rank": rank["rank"], "side": side}


SHOWN = (
    "name", "op", "phase", "variant", "data", "device", "place", "direction", "dtype", "shape", "verdict", "statistic",
    "limit_share", "worst", "worst_computed", "worst_exact", "message",
)  # fmt: skip
"""Columns of details.csv that the page shows; every figure of an output is in the file."""


def check_content(sources: Sources) -> Content:
    """The outputs of all cases, and what is told of them; modes of check have the latter only."""
    summary, details = sources.summary, sources.tables.get("details")
    about = f"{summary['trace']} ({', '.join(map(str, summary['scope']['devices']))})"
    meta = sources.content("check", "findings", "notes", about=about)
    if details is None:
        return Content(meta, {})
    return Content(meta, {"details": details.select(name for name in SHOWN if name in details.columns)})


def overflow_content(sources: Sources) -> Content:
    """The operations that overflowed, with their tensors and their ways, as summary.json has them."""
    meta = sources.content("overflow", "findings", "notes", about=", ".join(sources.summary["paths"]))
    return Content(meta, {})


def trace_content(path: str, stats: pl.DataFrame, missing: tuple[str, ...]) -> Content:
    """Statistics by module and step (trace.trends), and what the trace lacks."""
    return Content({"kind": "trace", "about": path, "missing": list(missing)}, {"stats": stats})


def stack_line(frame: Frame) -> dict[str, Any]:
    """A line of a call stack with its text, if that can be read here."""
    text = source_line(frame.file, frame.line)
    return {"file": frame.file, "line": frame.line, "function": frame.function, "text": text}


def innermost_line(finding: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All that the `source` of a finding tells of its call stack; nothing where it names no line."""
    place = place_of(finding.get("source"))
    return [] if place is None else [stack_line(Frame(*place, ""))]


PARTS = ("findings", "notes", "advice")


def told_json(answer: Callable[[Language], Mapping[str, Any]], stacks: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Sentences of findings, notes, advice and what is missing, each as {"en": ..., "zh": ...}; stacks of findings.

    Where no stacks are given the lines stand for them that the findings name.
    """
    answers = {language.value: answer(language) for language in Language}
    findings = answers[Language.EN.value].get("findings", ())
    return _told(answers, stacks or [innermost_line(finding) for finding in findings])


def told_once(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a result that has only its summary: one language stands for all."""
    return _told({language.value: summary for language in Language}, [])


def _told(answers: Mapping[str, Mapping[str, Any]], stacks: list[list[dict[str, Any]]]) -> dict[str, Any]:
    sentences = {part: _texts(answers, part, lambda entry: entry["sentence"]) for part in PARTS}
    return {"schema": 1, **sentences, "missing": _texts(answers, "missing", str), "stacks": stacks}


def _texts(answers: Mapping[str, Mapping[str, Any]], part: str, text: Callable[[Any], str]) -> list[dict[str, str]]:
    by_language: Iterable[list[str]] = ([text(entry) for entry in answer.get(part, ())] for answer in answers.values())
    return [dict(zip(answers, texts, strict=True)) for texts in zip(*by_language, strict=True)]
