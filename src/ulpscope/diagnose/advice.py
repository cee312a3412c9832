"""What an expert would say to a result: the checks of MindStudio's expert system, and what to try next.

Of an operator of a device's network, what its graph says about it decides what is worth trying.
"""

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from ulpscope.diagnose.limits import ACCEPTABLE_COSINE, CUSTOM_IMPLEMENTATIONS, OPERATORS_NAMED
from ulpscope.diagnose.network import is_span
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.pairs.msaccucmp.metrics import FP16_LARGEST
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.enums import Role
from ulpscope.records.evidence import Evidence
from ulpscope.records.findings import Advice, AdviceKind, Comparison, Finding, FindingKind
from ulpscope.records.graphs import Operator
from ulpscope.records.pairs import Measured

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
    evidence = finding.evidence
    if evidence.unlike.arguments:
        return [AdviceKind.SAME_ARGUMENT]
    # What only moves data has no precision to raise.
    moves = evidence.numbers.error_out is None or operation(finding.place.op or "").has(Trait.MOVING)
    if evidence.one_run.calls or evidence.unlike.classes or evidence.operand.shown is not None or moves:
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
    raises = _is_coarse(finding) and not finding.evidence.one_run.calls
    return [*told, AdviceKind.RAISE_PRECISION if raises else AdviceKind.COMPARE_LOGIC]


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


_REPLACED = frozenset((AdviceKind.RAISE_PRECISION, AdviceKind.RUN_ON_CPU, AdviceKind.UNFUSE, AdviceKind.COMPARE_LOGIC))
"""What is said of calls of a framework."""


def advise_on_network(
    comparison: Comparison, operators: Mapping[str, Operator], pairs: pl.DataFrame, *, indices: Mapping[str, int]
) -> tuple[Advice, ...]:
    """The advice of a comparison, with what fits the operator to blame in place of what fits a framework's call.

    Whatever is to blame, operators that saturate are named, by their indices in the network, too.
    """
    told = _on_blamed(comparison, operators)
    saturated = _saturated(pairs, indices)
    if not saturated:
        return told
    others = [advice for advice in told if advice.kind is not AdviceKind.FP16_OVERFLOW]
    return Advice(AdviceKind.FP16_OVERFLOW, saturated), *others


def _on_blamed(comparison: Comparison, operators: Mapping[str, Operator]) -> tuple[Advice, ...]:
    if not comparison.findings:
        return comparison.advice
    first = comparison.findings[0]
    operator = operators.get(first.place.module or "")
    if operator is None:
        return comparison.advice
    # Operators are known by their own names, not by those of calls.
    told = [
        Advice(advice.kind, operator.name) if advice.subject == first.place.call else advice
        for advice in comparison.advice
    ]
    if first.kind not in (FindingKind.COMPUTATION, FindingKind.OVERFLOW, FindingKind.CHOICE):
        return tuple(told)
    if is_span(first):
        span = first.evidence.span
        before = span.uncompared or tuple(filter(None, (span.given_by,)))
        return (Advice(AdviceKind.COMPARE_SPAN, ", ".join((*before[:OPERATORS_NAMED], operator.name))),)
    kept = [advice for advice in told if advice.kind not in _REPLACED]
    own = _on_operator(first, operator) if first.evidence.operand.shown is None else ()
    return tuple(dict.fromkeys((*own, *kept)))


def _saturated(pairs: pl.DataFrame, indices: Mapping[str, int]) -> str:
    """Operators of which an output reaches the largest number of float16, where devices stop instead of going to inf.

    `scale/Mul (index 23)`, the first of the network first; empty if there is none.
    """
    made = pairs.filter(
        pl.col("role") == Role.OUTPUT.value,
        pl.col("dtype_target") == "float16",
        pl.max_horizontal(pl.col("min_target").abs(), pl.col("max_target").abs()) >= FP16_LARGEST,
    )
    names = sorted(filter(None, made["module"].unique(maintain_order=True)), key=lambda name: indices.get(name, 0))
    told = [f"{name} (index {indices[name]})" if name in indices else name for name in names[:OPERATORS_NAMED]]
    return ", ".join(told) + (f" (+{len(names) - OPERATORS_NAMED})" if len(names) > OPERATORS_NAMED else "")


def is_custom(operator: Operator) -> bool:
    """Whether the operator's kernel is the user's own."""
    implementation = operator.attributes.get("_fe_imply_type")
    return implementation in CUSTOM_IMPLEMENTATIONS or "cust" in (operator.kernel_library or "").lower()


def _on_operator(finding: Finding, operator: Operator) -> Iterable[Advice]:
    if is_custom(operator):
        yield Advice(AdviceKind.CUSTOM_OPERATOR, operator.name)
    elif "float16" in (finding.evidence.numbers.dtype, *(desc.dtype for desc in operator.outputs)):
        yield Advice(AdviceKind.KEEP_DTYPE, operator.name)
    if operator.passes:
        yield Advice(AdviceKind.SWITCH_PASS_OFF, ", ".join(operator.passes))
