"""The JSON object of `ulpscope overflow --json`, which is also summary.json; docs/overflow.md tells its keys."""

from typing import Any

from ulpscope.records.findings import FindingKind
from ulpscope.records.overflows import OverflowFinding, OverflowSurvey, SeenTensor, WayCall
from ulpscope.report.record_json import answer_json, fields_of, finding_entry
from ulpscope.report.terminal.overflow import has_several_ranks
from ulpscope.report.words.language import Language, remark_texts
from ulpscope.report.words.overflow import next_command, overflow_sentence


def survey_json(survey: OverflowSurvey, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    several = has_several_ranks(survey)
    return answer_json(
        "overflow",
        {
            "verdict": "overflow" if survey.findings else "finite" if survey.counts.looked_at else "nothing_checked",
            "findings": [_finding(finding, language, several) for finding in survey.findings],
            "notes": [_finding(finding, language, several) for finding in survey.notes],
            "counts": survey.counts,
            "paths": list(survey.paths),
            "missing": remark_texts(survey.missing, language),
        },
    )


def _finding(finding: OverflowFinding, language: Language, several_ranks: bool) -> dict[str, Any]:
    return finding_entry(
        FindingKind.OVERFLOW,
        finding.place,
        evidence=_evidence(finding),
        sentence=overflow_sentence(finding, language, several_ranks=several_ranks),
        next_command=next_command(finding),
    )


def _evidence(finding: OverflowFinding) -> dict[str, Any]:
    return {
        "path": finding.path,
        "verdict": finding.verdict,
        "message": finding.message,
        "given": finding.given,
        "written": finding.written,
        "record": finding.record,
        "tensors": [_tensor(tensor) for tensor in finding.tensors],
        "way": [_way_call(call) for call in finding.way],
    }


def _way_call(call: WayCall) -> dict[str, Any]:
    named = fields_of(call, "step", "call", "op", "module", "phase", "tensor")
    return {**named, **fields_of(call.not_finite), "loss": call.is_loss}


def _tensor(tensor: SeenTensor) -> dict[str, Any]:
    stats = tensor.stats
    return {
        "side": tensor.side,
        "place": tensor.place,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "sign": tensor.sign,
        **fields_of(tensor.not_finite),
        **{name: None if stats is None else getattr(stats, name) for name in ("min", "max", "mean", "norm")},
    }
