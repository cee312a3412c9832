"""The JSON object of `ulpscope compare --json`, which is also summary.json; docs/compare.md tells its keys.

Floats that JSON has no number for are written as text: "nan", "inf", "-inf".
"""

from dataclasses import asdict
from typing import Any

from ulpscope.records.evidence import evidence_json
from ulpscope.records.findings import Comparison, Extent, Finding, Scope, extent_of
from ulpscope.report.files.finding_json import finding_entry, strict
from ulpscope.report.terminal.compare_ledger import ledger_object
from ulpscope.report.terminal.compare_lines import verdict
from ulpscope.report.words.comparison import advice_sentence, has_several_ranks, next_command, note_sentence, sentence
from ulpscope.report.words.language import Language
from ulpscope.report.words.remarks import remark_texts

SCHEMA = 1


def compare_json(comparison: Comparison, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    content: dict[str, Any] = strict(
        {
            "schema": SCHEMA,
            "command": "compare",
            "verdict": verdict(comparison),
            "findings": [finding_json(finding, comparison, language) for finding in comparison.findings],
            "notes": [note_json(note, comparison, language) for note in comparison.notes],
            "counts": asdict(comparison.counts),
            "reference": comparison.reference,
            "target": comparison.target,
            "scope": _scope(comparison.scope),
            "extent": _extent(extent_of(comparison)),
            "anchor": [asdict(part) for part in comparison.anchor],
            "neighbours": [asdict(neighbour) for neighbour in comparison.neighbours],
            "advice": [
                {**asdict(advice), "sentence": advice_sentence(advice, language)} for advice in comparison.advice
            ],
            "missing": remark_texts(comparison.missing, language),
            "ledger": ledger_object(comparison.ledger),
        }
    )
    return content


def finding_json(finding: Finding, comparison: Comparison, language: Language = Language.EN) -> dict[str, Any]:
    """One finding with its sentence."""
    told = sentence(finding, language, several_ranks=has_several_ranks(comparison), ledger=comparison.ledger)
    return _entry(finding, comparison, told)


def note_json(note: Finding, comparison: Comparison, language: Language = Language.EN) -> dict[str, Any]:
    """One note with its sentence: the shape of a finding."""
    told = note_sentence(note, language, several_ranks=has_several_ranks(comparison))
    return _entry(note, comparison, told)


def _entry(finding: Finding, comparison: Comparison, told: str) -> dict[str, Any]:
    return finding_entry(
        finding.kind,
        finding.place,
        evidence=evidence_json(finding.evidence),
        sentence=told,
        next_command=next_command(finding, comparison),
    )


def _scope(scope: Scope) -> dict[str, Any]:
    return {
        **asdict(scope),
        "levels": {"reference": scope.levels[0], "target": scope.levels[1]},
        "measured": {measured.value: number for measured, number in scope.measured},
        "not_compared": [{"reason": reason, "tensors": number} for reason, number in scope.not_compared],
        "unresolved": [{"reason": reason, "tensors": number} for reason, number in scope.unresolved],
        "filters": None if scope.filters is None else {"reference": scope.filters[0], "target": scope.filters[1]},
    }


def _extent(extent: Extent) -> dict[str, Any]:
    return {"complete": extent.is_all, **asdict(extent)}
