"""The JSON object of `ulpscope check --json`, which is also summary.json; docs/check.md tells its keys.

Floats that JSON has no number for are written as text: "nan", "inf", "-inf".
"""

from dataclasses import replace
from typing import Any

from ulpscope.records.check_runs import CheckedCall, CheckRun
from ulpscope.records.checks import OutputResult, Verdict
from ulpscope.records.findings import FindingKind
from ulpscope.report.check_words import check_sentence, next_command
from ulpscope.report.finding_json import finding_entry
from ulpscope.report.language import Language
from ulpscope.report.remark_words import remark_texts
from ulpscope.report.strict_json import strict

SCHEMA = 1


def check_json(run: CheckRun, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    content: dict[str, Any] = strict(
        {
            "schema": SCHEMA,
            "command": "check",
            "verdict": run.soundness,
            "findings": [_finding(call, run, language) for call in run.wrong],
            "notes": [_finding(call, run, language) for call in run.calls if call.verdict is Verdict.WARN],
            "counts": _counts(run),
            "trace": run.trace,
            "graph": run.graph,
            "scope": _scope(run),
            "skipped": _reasons(run, Verdict.SKIP),
            "untested": _reasons(run, Verdict.UNTESTED),
            "interrupted": run.interrupted,
            "remarks": remark_texts(run.remarks, language),
            "missing": remark_texts(run.missing, language),
        }
    )
    return content


def _finding(call: CheckedCall, run: CheckRun, language: Language) -> dict[str, Any]:
    output = call.output
    return finding_entry(
        FindingKind.COMPUTATION,
        replace(call.place, tensor=None if output is None else output.place),
        evidence=_evidence(call, output),
        sentence=check_sentence(call, language, several_ranks=run.processes > 1),
        next_command=next_command(call, run),
    )


def _evidence(call: CheckedCall, output: OutputResult | None) -> dict[str, Any]:
    decisive = call.decisive
    case = {
        "verdict": call.verdict,
        "forward": call.forward,
        "backward": call.backward,
        "variant": decisive.result.case.variant,
        "data": decisive.result.case.source,
        "device": decisive.device,
        "message": call.message,
    }
    if output is None:
        return case
    shown = ("direction", "statistic", "dtype", "shape", "worst", "worst_computed", "worst_exact")
    return case | {name: getattr(output, name) for name in shown} | {"metrics": dict(output.metrics)}


def _counts(run: CheckRun) -> dict[str, int]:
    outputs = sum(len(case.result.outputs) for call in run.calls for case in call.cases)
    totals = {"apis": len(run.calls), "repeated": run.repeated, "cases": run.executed, "outputs": outputs}
    totals["outputs_untested"] = run.untested_outputs
    return totals | {verdict.value.lower(): run.count(verdict) for verdict in Verdict}


def _scope(run: CheckRun) -> dict[str, Any]:
    options = run.options
    return {
        "devices": options.devices,
        "ranks": sorted({call.place.rank for call in run.calls}),
        "steps": sorted({call.place.step for call in run.calls}),
        "only": options.only,
        "skip": options.skip,
        "all": options.every,
        "stress": options.stress,
        "data": options.source,
        "standard": options.standard,
        "seed": options.seed,
        "references": [str(path) for path in options.references],
    }


def _reasons(run: CheckRun, verdict: Verdict) -> list[dict[str, Any]]:
    reasons: dict[str, int] = {}
    for call in run.calls:
        if call.verdict is verdict:
            reasons[call.message] = reasons.get(call.message, 0) + 1
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    return [{"reason": reason, "apis": number} for reason, number in ordered]
