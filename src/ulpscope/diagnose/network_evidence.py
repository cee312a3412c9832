"""Evidence of a device's network: what is known of its values beyond their types and shapes."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property

from ulpscope.diagnose.evidence import RankEvidence
from ulpscope.judge.operations import Operand

QUANTISED_ROUNDOFF = 8 / 2**8
"""Half a step of 8 bits beside numbers whose largest is eight times their root mean square, as of calibrated layers."""


@dataclass(frozen=True)
class NetworkEvidence(RankEvidence):
    """Evidence with rows of pairs of values that are judged otherwise."""

    dequantised: frozenset[int]
    """Made of integers of 8 bits, and as coarse as these."""
    filters: Mapping[int, tuple[int, ...]]
    """Weights of convolutions, and their shapes with the filters first: other orders have them elsewhere (HWCN)."""

    @cached_property
    def roundoffs(self) -> list[float]:
        found: list[float] = super().roundoffs
        return [max(each, QUANTISED_ROUNDOFF) if row in self.dequantised else each for row, each in enumerate(found)]

    @cached_property
    def operands(self) -> list[Operand]:
        found: list[Operand] = super().operands
        return [replace(each, shape=self.filters.get(row, each.shape)) for row, each in enumerate(found)]


def network_evidence(
    evidence: RankEvidence, *, dequantised: frozenset[int], filters: Mapping[int, tuple[int, ...]]
) -> NetworkEvidence:
    """The same evidence, with what is known of these rows."""
    own = {field.name: getattr(evidence, field.name) for field in fields(RankEvidence)}
    return NetworkEvidence(**own, dequantised=dequantised, filters=filters)
