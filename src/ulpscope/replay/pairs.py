"""Two executions of a pair of calls, side by side, whichever framework made them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.records.checks import OutputEvidence
from ulpscope.records.evidence import PairEvidence
from ulpscope.records.pairs import Pair

Arrays = Mapping[str, NDArray[Any]]


def evidence_of_pair(
    sides: Pair[dict[str, OutputEvidence]], exact: Pair[dict[str, NDArray[Any]]], crossed: Arrays
) -> list[PairEvidence]:
    """Evidence of each output and gradient that both runs have; `crossed` by the reference with the target's inputs."""
    found = []
    for place, each in sides.target.items():
        other = sides.reference.get(place)
        if other is None or other.exact.shape != each.exact.shape or place not in exact.target:
            continue
        found.append(
            PairEvidence(
                place=place,
                direction=each.direction,
                reference=other,
                target=each,
                exact_reference=_floats(exact.reference.get(place), other),
                exact_target=_floats(exact.target.get(place), each),
                crossed=crossed.get(place),
            )
        )
    return found


def _floats(found: NDArray[Any] | None, evidence: OutputEvidence) -> NDArray[Any]:
    """The truth for the inputs as stored; where a result was judged by what it selects, that."""
    if found is None or found.shape != evidence.exact.shape or found.dtype != evidence.exact.dtype:
        return np.asarray(evidence.exact)
    return found
