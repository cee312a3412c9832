"""What an expert would say to a result: the checks of MindStudio's expert system, and what to try next."""

from collections.abc import Sequence

import polars as pl

from ulpscope.records.findings import Advice, AdviceKind, Finding, FindingKind
from ulpscope.records.pairs import Measured

# MindStudio's measure of an acceptable tensor.
ACCEPTABLE_COSINE = 0.99

_BY_KIND = {
    FindingKind.INPUT: (AdviceKind.INPUT_INCONSISTENT, AdviceKind.SAME_DATA),
    FindingKind.PARAMETER: (AdviceKind.SAME_WEIGHTS,),
    FindingKind.RANDOMNESS: (AdviceKind.SAME_SEED,),
    FindingKind.OPTIMIZER: (AdviceKind.SAME_SETTING,),
    FindingKind.STRUCTURE: (AdviceKind.COMPARE_LOGIC,),
}
# What only moves data has no precision to raise.
_MOVING = frozenset("view reshape transpose permute flatten chunk split __getitem__ cat stack copy_".split())
_FUSED = ("scaled_dot_product_attention", "fused", "flash", "npu_", "multi_head_attention")


def advise(findings: Sequence[Finding], pairs: pl.DataFrame) -> list[Advice]:
    """Advice on the first finding, and on what it did to the final result."""
    if not findings:
        return [Advice(AdviceKind.GLOBAL_CONSISTENCY)]
    first = findings[0]
    found = [Advice(kind, _subject(first)) for kind in _of_finding(first)]
    return [*found, _of_result(first, pairs)]


def _subject(finding: Finding) -> str | None:
    if finding.kind is FindingKind.PARAMETER and finding.evidence.parameters:
        return finding.evidence.parameters[0]
    return finding.place.call


def _of_finding(finding: Finding) -> list[AdviceKind]:
    if finding.kind is FindingKind.OVERFLOW:
        is_fp16 = "float16" in (finding.evidence.dtype, *(finding.evidence.dtypes or ()))
        return [AdviceKind.FP16_OVERFLOW] * is_fp16 + [AdviceKind.RAISE_PRECISION]
    if finding.kind in _BY_KIND:
        return list(_BY_KIND[finding.kind])
    if finding.evidence.arguments:
        return [AdviceKind.SAME_ARGUMENT]
    if finding.evidence.only_reference or finding.evidence.only_target or finding.evidence.classes:
        return [AdviceKind.COMPARE_LOGIC]
    if finding.evidence.error_out is None or (finding.place.op or "").rpartition(".")[2] in _MOVING:
        return [AdviceKind.COMPARE_LOGIC]
    fused = any(word in (finding.place.op or "") for word in _FUSED)
    tries = [AdviceKind.RAISE_PRECISION, AdviceKind.RUN_ON_CPU] + [AdviceKind.UNFUSE] * fused
    return tries + [AdviceKind.SAVE_TENSORS] * (finding.evidence.measured is not Measured.DATA)


def _of_result(finding: Finding, pairs: pl.DataFrame) -> Advice:
    """Whether the last tensor is still acceptable: the error is a problem, or a single point."""
    # The cosine of a single number, such as the loss, says nothing.
    several = pl.col("shape_target").list.len() > 0
    judged = pairs.filter(pl.col("cosine").is_not_null(), pl.col("phase") == "forward", several)
    last = judged["cosine"].last() if not judged.is_empty() else None
    harmed = last is None or float(last) < ACCEPTABLE_COSINE  # type: ignore[arg-type]
    return Advice(AdviceKind.PROBLEM_NODE if harmed else AdviceKind.SINGLE_POINT_ERROR, finding.place.call)
