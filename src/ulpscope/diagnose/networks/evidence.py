"""Evidence of a device's network: what is known of its values beyond their types and shapes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.states import State
from ulpscope.judge.rounding.families import Operand
from ulpscope.records.pairs import Pair

ReadTensor = Callable[[str, int], Pair[NDArray[Any]] | None]
"""Of an operator and a value that it reads or makes itself; none of what only stands for that."""

QUANTISED_ROUNDOFF = 8 / 2**8
"""Half a step of 8 bits beside numbers whose largest is eight times their root mean square, as of calibrated layers."""


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
    def roundoffs(self) -> list[float]:
        found: list[float] = super().roundoffs
        return [max(each, QUANTISED_ROUNDOFF) if row in self.dequantised else each for row, each in enumerate(found)]

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
