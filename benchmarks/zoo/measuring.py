"""How large a fault is at its own call, and how large the noise of a precision is there; from saved data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ulpscope.trace.reader import RankTrace, open_trace
from zoo.expectations import ANY, OUTSIDE, Answer, Fault

Numbers = NDArray[np.float64]
Slot = tuple[str, int, str]
"""Operation, its number among those of its kind in the module, place of the tensor."""

BELOW = 4.0
MADE = frozenset({"output", "grad_input", "gradient"})


@dataclass(frozen=True, slots=True)
class Effect:
    """Relative distances of the worst tensor that the faulty module's own calls make."""

    fault: float
    noise: float = 0.0

    @property
    def ratio(self) -> float:
        if not self.noise:
            return np.inf if self.fault else 0.0
        return self.fault / self.noise

    @property
    def is_below_noise(self) -> bool:
        return self.ratio < BELOW


def effect_of(fault: Fault, reference: Path, target: Path, baseline: Path | None) -> Effect | None:
    """None where the fault is not one of arithmetic, or none of its calls has a partner."""
    answers = [answer for answer in fault.answers if answer.kind == "computation" and answer.modules != ANY]
    if not answers:
        return None
    found = [_effect_at(fault, answer, reference, target, baseline) for answer in answers]
    return max((effect for effect in found if effect), key=lambda effect: effect.ratio, default=None)


def _effect_at(fault: Fault, answer: Answer, *traces: Path | None) -> Effect | None:
    reference, target, baseline = (None if trace is None else dict(_made(trace, fault, answer)) for trace in traces)
    assert reference is not None
    assert target is not None
    effects = []
    for slot, true in reference.items():
        if slot not in target or target[slot].shape != true.shape:
            continue
        if baseline is None:
            effects.append(Effect(distance(true, target[slot])))
        elif slot in baseline and baseline[slot].shape == true.shape:
            effects.append(Effect(distance(true, target[slot]), distance(true, baseline[slot])))
    return max(effects, key=lambda effect: effect.ratio if baseline else effect.fault, default=None)


def distance(true: Numbers, other: Numbers) -> float:
    """Relative L2 distance of what is finite in both; infinite if other elements are finite."""
    finite = np.isfinite(true)
    if not np.array_equal(finite, np.isfinite(other)):
        return np.inf
    difference = np.linalg.norm(other[finite] - true[finite])
    return float(difference / (np.linalg.norm(true[finite]) or 1.0)) if difference else 0.0


def _made(trace: Path, fault: Fault, answer: Answer) -> Iterator[tuple[Slot, Numbers]]:
    """What the calls that run in the module itself make, and the module as a whole, in the step of the fault.

    What a module writes into its buffers is seen in the step after that.
    """
    ranks = open_trace(trace).ranks
    rank = next((rank for rank in ranks if rank.info.rank == fault.ranks[-1]), ranks[0])
    step = fault.step or 0
    yield from _slots(rank, step, answer, MADE)
    yield from _slots(rank, step + 1, answer, frozenset({"buffer"}))


def _slots(rank: RankTrace, step: int, answer: Answer, roles: frozenset[str]) -> Iterator[tuple[Slot, Numbers]]:
    names = _names(rank, step, answer)
    wanted = pl.col("call").is_in(list(names)) & pl.col("role").is_in(list(roles))
    uses = list(rank.collect(rank.tensors(step).filter(wanted)).iter_rows(named=True))
    values = rank.find_values(use["value"] for use in uses)
    for use in uses:
        data = rank.data(values[use["value"]])
        if data is not None:
            yield (*names[use["call"]], f"{use['role']} {use['place']}"), np.asarray(data).astype(np.float64)


def _names(rank: RankTrace, step: int, answer: Answer) -> dict[int, tuple[str, int]]:
    """Calls of the module in these phases: their operation, and their number among its calls."""
    names, numbers = {}, Counter[str]()
    frame = rank.collect(rank.calls(step).select("id", "kind", "op", "module", "phase").sort("id"))
    for row in frame.iter_rows(named=True):
        in_module = (row["module"] or OUTSIDE) in answer.modules
        if in_module and (answer.phases == ANY or row["phase"] in answer.phases):
            operation = f"{row['kind']} {row['op']}"
            names[row["id"]] = (operation, numbers[operation])
            numbers[operation] += 1
    return names
