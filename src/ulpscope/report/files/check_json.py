"""The JSON object of `ulpscope check --json`, which is also summary.json; docs/check.md tells its keys.

Floats that JSON has no number for are written as text: "nan", "inf", "-inf".

The JSON objects of `ulpscope check --overflow` and `--perturb`: those of a check, with what else these ask.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ulpscope.records.check_runs import CheckedCall, CheckRun, OverflowRun, PerturbRun
from ulpscope.records.checks import OutputResult, Verdict
from ulpscope.records.findings import FindingKind
from ulpscope.records.overflows import Overflow
from ulpscope.report.record_json import answer_json, finding_entry
from ulpscope.report.words.check import check_sentence, next_command, overflow_sentence, perturb_sentence
from ulpscope.report.words.language import Language, remark_texts


def check_json(run: CheckRun, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    return answer_json(
        "check",
        {
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
        },
    )


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


def overflow_json(found: OverflowRun, language: Language) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    content = check_json(found.run, language)
    _retell(content, found.run, lambda call, several: overflow_sentence(call, language, several_ranks=several))
    for finding in content["findings"]:
        finding["kind"] = FindingKind.OVERFLOW.value
    outputs = [output for call in found.run.calls for case in call.cases for output in case.result.outputs]
    kinds = Counter(output.statistic for output in outputs)
    content["counts"] |= {kind.value: kinds.get(kind.value, 0) for kind in Overflow} | {"inherited": found.inherited}
    content["counts"]["unrecorded"] = len(found.untold)
    # Nothing that overflows is an answer too.
    verdict = "unsound" if found.run.wrong else "sound" if found.tells else "nothing_checked"
    return content | {"mode": "overflow", "verdict": verdict}


def perturb_json(found: PerturbRun, language: Language) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    content = check_json(found.run, language)
    _retell(content, found.run, lambda call, several: perturb_sentence(call, language, several_ranks=several))
    content["scope"] |= {"perturbation": found.mode.value, "standard": found.standard.value}
    return content | {"mode": "perturb"}


def _retell(content: dict[str, Any], run: CheckRun, sentence: Callable[[CheckedCall, bool], str]) -> None:
    """Say it in the words of this question."""
    several = run.processes > 1
    warned = [call for call in run.calls if call.verdict is Verdict.WARN]
    for told, calls in ((content["findings"], run.wrong), (content["notes"], warned)):
        for finding, call in zip(told, calls, strict=True):
            finding["sentence"] = sentence(call, several)
