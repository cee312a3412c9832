"""Advice on an operator of a device's network: what its graph says about it decides what is worth trying."""

from collections.abc import Iterable, Mapping

import polars as pl

from ulpscope.diagnose.networks.spans import is_span
from ulpscope.numerics.pairs.msaccucmp.metrics import FP16_LARGEST
from ulpscope.records.enums import Role
from ulpscope.records.findings import Advice, AdviceKind, Comparison, Finding, FindingKind
from ulpscope.records.graphs import Operator

_CUSTOM_IMPLEMENTATIONS = (0, 1, 2)
"""fe::OpImplType: EN_IMPL_CUSTOM_CONSTANT_CCE, EN_IMPL_CUSTOM_TIK, EN_IMPL_CUSTOM_TBE."""
_REPLACED = frozenset((AdviceKind.RAISE_PRECISION, AdviceKind.RUN_ON_CPU, AdviceKind.UNFUSE, AdviceKind.COMPARE_LOGIC))
"""What is said of calls of a framework."""
_NAMED = 3
"""Operators that are named, at most."""


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
    told = [_about(advice, first, operator) for advice in comparison.advice]
    if first.kind not in (FindingKind.COMPUTATION, FindingKind.OVERFLOW, FindingKind.CHOICE):
        return tuple(told)
    if is_span(first):
        return (Advice(AdviceKind.COMPARE_SPAN, ", ".join(_span(first, operator))),)
    kept = [advice for advice in told if advice.kind not in _REPLACED]
    own = _on_operator(first, operator) if first.evidence.operand.shown is None else ()
    return tuple(dict.fromkeys((*own, *kept)))


def _span(finding: Finding, operator: Operator) -> tuple[str, ...]:
    """Operators one of which is wrong; the last is the one that was compared."""
    before = finding.evidence.span.uncompared or tuple(filter(None, (finding.evidence.span.given_by,)))
    return *before[:_NAMED], operator.name


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
    told = [f"{name} (index {indices[name]})" if name in indices else name for name in names[:_NAMED]]
    return ", ".join(told) + (f" (+{len(names) - _NAMED})" if len(names) > _NAMED else "")


def is_custom(operator: Operator) -> bool:
    """Whether the operator's kernel is the user's own."""
    implementation = operator.attributes.get("_fe_imply_type")
    return implementation in _CUSTOM_IMPLEMENTATIONS or "cust" in (operator.kernel_library or "").lower()


def _on_operator(finding: Finding, operator: Operator) -> Iterable[Advice]:
    if is_custom(operator):
        yield Advice(AdviceKind.CUSTOM_OPERATOR, operator.name)
    elif "float16" in (finding.evidence.numbers.dtype, *(desc.dtype for desc in operator.outputs)):
        yield Advice(AdviceKind.KEEP_DTYPE, operator.name)
    if operator.passes:
        yield Advice(AdviceKind.SWITCH_PASS_OFF, ", ".join(operator.passes))


def _about(advice: Advice, finding: Finding, operator: Operator) -> Advice:
    """Operators are known by their own names, not by those of calls."""
    return Advice(advice.kind, operator.name) if advice.subject == finding.place.call else advice
