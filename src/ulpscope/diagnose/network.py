"""A device's network: what is known of its values beyond their types and shapes, what is known of one operator alone
and what only of a span of several, and what each fused operator does.

Where the inputs of an operator could not be compared, those that made them may be wrong as well as the operator itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import polars as pl
from numpy.typing import NDArray

from ulpscope.align.network.upstream import KnownTensors, Source
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.precision import Precision
from ulpscope.diagnose.flow.states import State
from ulpscope.diagnose.limits import QUANTISED_ROUNDOFF
from ulpscope.judge.rounding.families import Operand
from ulpscope.records.enums import Role
from ulpscope.records.evidence import Evidence
from ulpscope.records.findings import Comparison, Finding, FindingKind, Nearness, Neighbour
from ulpscope.records.graphs import JUDGEMENTS, FusedOperator, Operator
from ulpscope.records.pairs import Pair

ReadTensor = Callable[[str, int], Pair[NDArray[Any]] | None]
"""Of an operator and a value that it reads or makes itself; none of what only stands for that."""


@dataclass(frozen=True)
class NetworkEvidence(RankEvidence):
    """Evidence with rows of pairs of values that are judged otherwise."""

    dequantised: frozenset[int]
    """Made of integers of 8 bits, and as coarse as these."""
    filters: Mapping[int, tuple[int, ...]]
    """Weights of convolutions, and their shapes with the filters first: other orders have them elsewhere (HWCN)."""
    read: ReadTensor
    sound: Mapping[int, State]
    """Judged in the whole network, of which this is a part, and not wrong."""

    def known_state(self, values: int) -> State | None:
        return self.sound.get(values)

    def arrays(self, slot: Slot) -> Pair[NDArray[Any]] | None:
        return self.read(self.calls["module"][slot.pair], int(self.sides.target.id[slot.values]))

    @cached_property
    def precision(self) -> Precision:
        known: Precision = super().precision
        return replace(known, coarser=dict.fromkeys(self.dequantised, QUANTISED_ROUNDOFF))

    @cached_property
    def operands(self) -> list[Operand]:
        found: list[Operand] = super().operands
        return [replace(each, shape=self.filters.get(row, each.shape)) for row, each in enumerate(found)]


def network_evidence(
    evidence: RankEvidence,
    *,
    dequantised: frozenset[int],
    filters: Mapping[int, tuple[int, ...]],
    read: ReadTensor,
    sound: Mapping[int, State],
) -> NetworkEvidence:
    """The same evidence, with what is known of these rows, and what reads dumped tensors."""
    own = {field.name: getattr(evidence, field.name) for field in fields(RankEvidence)}
    return NetworkEvidence(**own, dequantised=dequantised, filters=filters, read=read, sound=sound)


BETWEEN = "between"
_OF_INPUTS = frozenset((FindingKind.INPUT, FindingKind.PARAMETER))
_OUTPUT = "output"


def with_spans(comparison: Comparison, known: KnownTensors[int], seen: Mapping[Source, str]) -> Comparison:
    """The same comparison; its findings and notes tell what they do not know of their operators' inputs."""
    findings, notes = (
        tuple(_spanned(finding, known, seen) for finding in told) for told in (comparison.findings, comparison.notes)
    )
    return replace(comparison, findings=findings, notes=notes, neighbours=_neighbours(comparison.neighbours, findings))


def is_span(finding: Finding) -> bool:
    """Whether others than the operator itself may have made what is wrong."""
    return bool(finding.evidence.span.uncompared) or finding.evidence.span.given_by is not None


def _spanned(finding: Finding, known: KnownTensors[int], seen: Mapping[Source, str]) -> Finding:
    operator, (side, _, number) = finding.place.module or "", (finding.place.tensor or "").partition(".")
    if operator not in known.members or finding.kind in _OF_INPUTS or not number.isdigit():
        return finding
    if side == _OUTPUT:
        span = replace(finding.evidence.span, seen_at=seen.get((operator, int(number))))
        return replace(finding, evidence=_without_claims(replace(finding.evidence, span=span), operator, known))
    span = replace(finding.evidence.span, given_by=_maker(operator, int(number), known))
    return replace(finding, evidence=replace(finding.evidence, span=span))


def _without_claims(evidence: Evidence, operator: str, known: KnownTensors[int]) -> Evidence:
    """Nothing is said of inputs that were not compared; what is known before them is called that."""
    uncompared = known.uncompared(operator)
    if evidence.span.uncompared or not (uncompared.operators or uncompared.given):
        return evidence
    # Whether anything is known of what an operator read, or of what that was made of.
    unread = any(known.upstream(source) for _, source in known.unread(operator))
    before = evidence.numbers.error_in if known.read.get(operator) or unread else None
    if not uncompared.operators:
        operand = replace(evidence.operand, unknown_input=True)
        return replace(evidence, operand=operand, numbers=replace(evidence.numbers, error_in=before))
    span = replace(evidence.span, uncompared=uncompared.operators, error_before=before)
    return replace(evidence, span=span, numbers=replace(evidence.numbers, error_in=None, gain=None, peers=None))


def _maker(operator: str, place: int, known: KnownTensors[int]) -> str | None:
    member = known.members[operator]
    # Some dumps have inputs that are not connected, others do not: which one has this place is not known then.
    is_sure = place < len(member.inputs) == len(member.operator.inputs)
    source = member.inputs[place].source if is_sure else None
    return None if source is None else source[0]


def _neighbours(rows: tuple[Neighbour, ...], findings: tuple[Finding, ...]) -> tuple[Neighbour, ...]:
    if not findings or not is_span(findings[0]):
        return rows
    came_in = findings[0].evidence.numbers.error_in
    return tuple(
        replace(row, judgement=BETWEEN, error_in=came_in) if row.nearness is Nearness.HERE else row for row in rows
    )


def fused_operators(pairs: pl.DataFrame, operators: Mapping[str, Operator]) -> tuple[FusedOperator, ...]:
    """Operators with a compared output, of `pairs` (records.pair_table), the table of the comparison: each where it is
    worst, and in the order in which they ran there."""
    made = pairs.filter(pl.col("role") == Role.OUTPUT.value, pl.col("judgement").is_in(JUDGEMENTS))
    worst: dict[str, dict[str, Any]] = {}
    for row in made.sort("step", "id_target", maintain_order=True).iter_rows(named=True):
        known = worst.get(row["module"])
        if known is None or _severity(row) > _severity(known):
            worst[row["module"]] = row
    ordered = sorted(worst.values(), key=lambda row: (row["step"], row["id_target"]))
    return tuple(_operator(row, operators.get(row["module"])) for row in ordered)


def _severity(row: Mapping[str, Any]) -> int:
    return JUDGEMENTS.index(row["judgement"])


def _operator(row: Mapping[str, Any], operator: Operator | None) -> FusedOperator:
    return FusedOperator(
        name=row["module"],
        type=row["op"],
        passes=() if operator is None else operator.passes,
        call=row["call_target"],
        tensor=row["place"],
        **{name: row[name] for name in ("rank", "step", "judgement", "error", "error_in", "expected")},
    )
