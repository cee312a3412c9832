"""What of a network's findings is known of one operator alone, and what only of a span of several.

Where the inputs of an operator could not be compared, those that made them may be wrong as well as the operator itself.
"""

from collections.abc import Mapping
from dataclasses import replace

from ulpscope.align.network.upstream import KnownTensors, Source
from ulpscope.records.evidence import Evidence
from ulpscope.records.findings import Comparison, Finding, FindingKind, Nearness, Neighbour

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
    before = evidence.numbers.error_in if _has_known(operator, known) else None
    if not uncompared.operators:
        operand = replace(evidence.operand, unknown_input=True)
        return replace(evidence, operand=operand, numbers=replace(evidence.numbers, error_in=before))
    span = replace(evidence.span, uncompared=uncompared.operators, error_before=before)
    return replace(evidence, span=span, numbers=replace(evidence.numbers, error_in=None, gain=None, peers=None))


def _has_known(operator: str, known: KnownTensors[int]) -> bool:
    """Whether anything is known of what an operator read, or of what that was made of."""
    unread = known.unread(operator)
    return bool(known.read.get(operator)) or any(known.upstream(source) for _, source in unread)


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
    here = (row.nearness is Nearness.HERE for row in rows)
    return tuple(
        replace(row, judgement=BETWEEN, error_in=came_in) if is_here else row
        for row, is_here in zip(rows, here, strict=True)
    )
