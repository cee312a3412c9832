"""The JSON objects of `ulpscope check --overflow` and `--perturb`: those of a check, with what else these ask."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from ulpscope.records.check_modes import OverflowRun, PerturbRun
from ulpscope.records.check_runs import CheckedCall, CheckRun
from ulpscope.records.checks import Verdict
from ulpscope.records.findings import FindingKind
from ulpscope.records.overflows import Overflow
from ulpscope.report.check_json import check_json
from ulpscope.report.check_modes_words import overflow_sentence, perturb_sentence
from ulpscope.report.language import Language


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
