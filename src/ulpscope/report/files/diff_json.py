"""The JSON object of `ulpscope diff --json`. Floats that JSON has no number for are text: "nan", "inf", "-inf"."""

from collections import Counter
from typing import Any

from ulpscope.records.tensor_diffs import Agreement, ElementPair, FileDiff, TensorDiff
from ulpscope.report.record_json import answer_json


def diff_json(diff: FileDiff) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    asked = diff.tolerances.asked
    return answer_json(
        "diff",
        {
            "verdict": _verdict(diff),
            "reference": diff.paths.reference,
            "target": diff.paths.target,
            "tolerance": {"atol": diff.tolerances.atol, "rtol": diff.tolerances.rtol} if asked else None,
            "counts": _counts(diff),
            "tensors": [_tensor(tensor, diff) for tensor in diff.tensors],
            "below": diff.below,
            "only_reference": diff.only_reference,
            "only_target": diff.only_target,
        },
    )


def _verdict(diff: FileDiff) -> str:
    if not diff.tensors:
        return "nothing_compared"
    return "agree" if diff.agrees else "differ"


def _counts(diff: FileDiff) -> dict[str, int]:
    counts = Counter(tensor.agreement for tensor in diff.tensors)
    compared = len(diff.tensors) - counts[Agreement.NOT_COMPARED]
    return {"tensors_compared": compared, **{agreement.value: counts[agreement] for agreement in Agreement}}


def _tensor(tensor: TensorDiff, diff: FileDiff) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "reference": tensor.sides.reference,
        "target": tensor.sides.target,
        "agreement": tensor.agreement.value,
        "problem": tensor.problem,
        "allclose": _allclose(tensor, diff),
        "outside": tensor.outside,
        "metrics": tensor.metrics,
        "worst": [_element(pair) for pair in tensor.worst],
    }


def _allclose(tensor: TensorDiff, diff: FileDiff) -> dict[str, Any] | None:
    if tensor.outside is None:
        return None
    return {"atol": diff.tolerances.atol, "rtol": diff.tolerances.rtol, "within": tensor.outside == 0}


def _element(pair: ElementPair) -> dict[str, Any]:
    return {"index": pair.index, "reference": pair.numbers.reference, "target": pair.numbers.target}
