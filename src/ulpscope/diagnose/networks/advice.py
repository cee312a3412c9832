"""What an expert would say to a result: the checks of MindStudio's expert system, and what to try next."""

from collections.abc import Sequence

import polars as pl

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.operations.registry import operation
from ulpscope.operations.traits import Trait
from ulpscope.records.evidence import Evidence
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
_FUSED = ("scaled_dot_product_attention", "fused", "flash", "npu_", "multi_head_attention")


def advise(findings: Sequence[Finding], pairs: pl.DataFrame, *, on_device: bool = True) -> list[Advice]:
    """Advice on the first finding, and on what it did to the final result; whether a run was on a device at all."""
    if not findings:
        return [Advice(AdviceKind.GLOBAL_CONSISTENCY)]
    first = findings[0]
    found = [Advice(kind, _subject(first)) for kind in _of_finding(first, on_device=on_device)]
    return found if first.place.call is None else [*found, _of_result(first, pairs)]


def _subject(finding: Finding) -> str | None:
    evidence = finding.evidence
    if evidence.history.without_gradient is not None:
        return finding.place.tensor
    history, alone = evidence.history, bool(evidence.one_run.calls)
    if history.parameters and (finding.kind is FindingKind.PARAMETER or (history.updated_in and not alone)):
        return history.parameters[0]
    return finding.place.call


def _of_finding(finding: Finding, *, on_device: bool) -> list[AdviceKind]:
    special = _of_one_sided(finding.evidence)
    if special is not None:
        return [special]
    if finding.kind is FindingKind.OVERFLOW:
        return _of_overflow(finding)
    if finding.kind in _BY_KIND:
        return list(_BY_KIND[finding.kind])
    if finding.evidence.unlike.arguments:
        return [AdviceKind.SAME_ARGUMENT]
    if finding.evidence.one_run.calls or finding.evidence.unlike.classes:
        return [AdviceKind.COMPARE_LOGIC]
    if finding.evidence.operand.shown is not None:
        return [AdviceKind.COMPARE_LOGIC]
    # What only moves data has no precision to raise.
    if finding.evidence.numbers.error_out is None or operation(finding.place.op or "").has(Trait.MOVING):
        return [AdviceKind.COMPARE_LOGIC]
    return _tries(finding, on_device=on_device)


def _of_one_sided(evidence: Evidence) -> AdviceKind | None:
    """What only one run does says itself what to look at."""
    history, one_run = evidence.history, evidence.one_run
    if one_run.paired is not None:
        return AdviceKind.SAME_MODEL
    alone = history.updated_in is not None and bool(one_run.calls)
    if one_run.backwards is not None or one_run.shifted is not None or alone:
        return AdviceKind.SAME_STEPS
    if history.without_gradient is not None or history.updated_in is not None:
        return AdviceKind.SAME_TRAINED
    if history.leftover is not None:
        return AdviceKind.ZERO_GRADIENTS
    return AdviceKind.FIND_WRITER if history.changed_unseen else None


def _of_overflow(finding: Finding) -> list[AdviceKind]:
    is_fp16 = "float16" in (finding.evidence.numbers.dtype, *(finding.evidence.unlike.dtypes or ()))
    told = [AdviceKind.FP16_OVERFLOW] * is_fp16
    if finding.evidence.one_run.calls:
        return [*told, AdviceKind.COMPARE_LOGIC]
    return [*told, AdviceKind.RAISE_PRECISION if _is_coarse(finding) else AdviceKind.COMPARE_LOGIC]


def _tries(finding: Finding, *, on_device: bool) -> list[AdviceKind]:
    """What may make the difference go, where it is there to be tried; else the code has to be read."""
    fused = any(word in (finding.place.op or "") for word in _FUSED)
    tries = [AdviceKind.RAISE_PRECISION] * _is_coarse(finding) + [AdviceKind.RUN_ON_CPU] * on_device
    tries += [AdviceKind.UNFUSE] * fused
    return (tries or [AdviceKind.COMPARE_LOGIC]) + [AdviceKind.SAVE_TENSORS] * (
        finding.evidence.numbers.measured is not Measured.DATA
    )


def _is_coarse(finding: Finding) -> bool:
    """Whether anything in the call is less precise than float32, as far as is known."""
    names = [finding.evidence.numbers.dtype, *(finding.evidence.unlike.dtypes or ())]
    known = [DTYPES[name].unit_roundoff for name in names if name in DTYPES]
    return not known or max(known) > DTYPES["float32"].unit_roundoff


def _of_result(finding: Finding, pairs: pl.DataFrame) -> Advice:
    """Whether the last tensor is still acceptable: the error is a problem, or a single point."""
    # The cosine of a single number, such as the loss, says nothing.
    several = pl.col("shape_target").list.len() > 0
    judged = pairs.filter(pl.col("cosine").is_not_null(), pl.col("phase") == "forward", several)
    last = judged["cosine"].last() if not judged.is_empty() else None
    harmed = last is None or float(last) < ACCEPTABLE_COSINE  # type: ignore[arg-type]
    return Advice(AdviceKind.PROBLEM_NODE if harmed else AdviceKind.SINGLE_POINT_ERROR, finding.place.call)
