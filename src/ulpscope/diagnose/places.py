"""Where something is, in the target's names, with the line of the user's source."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from ulpscope.diagnose.arguments import numbers_differ
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.states import Birth
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.enums import Phase, Role
from ulpscope.records.findings import Place


def place_of(evidence: RankEvidence, slot: Slot) -> Place:
    """The place of a tensor of a pair of calls."""
    return replace(place_of_pair(evidence, slot.pair), module=module_of(evidence, slot), tensor=slot.place)


def place_of_pair(evidence: RankEvidence, pair: int) -> Place:
    """The place of a pair of calls, in the target's names."""
    row = {name: column[pair] for name, column in evidence.calls.items()}
    return place_of_row(evidence, row, in_target=True)


def place_of_parameter(evidence: RankEvidence, slot: Slot) -> Place:
    """Where a parameter belongs, whichever call has shown it."""
    owner = evidence.parameter_owners.get(evidence.storage(slot))
    place = place_of(evidence, slot)
    return place if owner is None else replace(place, module=owner[0], tensor=owner[1])


def full_name(place: Place) -> str | None:
    """Of a parameter: with its module's path."""
    if place.module and place.tensor and not place.tensor.startswith(place.module):
        return f"{place.module}.{place.tensor}"
    return place.tensor


def parameter_names(evidence: RankEvidence, births: Sequence[Birth]) -> tuple[str, ...]:
    """Full names of the parameters that these differences are of, each once."""
    names = [full_name(place_of_parameter(evidence, birth.slot)) for birth in births]
    return tuple(dict.fromkeys(name for name in names if name))


def place_of_birth(evidence: RankEvidence, birth: Birth) -> Place:
    """Of a gap: the call without a partner that made the tensor; else the pair of calls itself.

    What shows in a backward and comes from its forward, an extra call or another argument, is placed there.
    """
    gap, row = birth.gap, birth.slot.values
    if gap is None or not gap.calls:
        return _place_of_own(evidence, birth.slot)
    in_target = bool(gap.only_target)
    lone = gap.only_target or gap.only_reference
    sides = zip(evidence.sides, evidence.plan.calls, evidence.plan.unmatched, strict=True)
    values, calls, unmatched = list(sides)[in_target]
    maker = int(values.producer[row])
    call = maker if maker in lone else lone[-1]
    if in_target and evidence.values.pattern[row]:
        overflowing = _first_overflow(evidence, lone)
        call = call if overflowing is None else overflowing
    origin = _origin(evidence, calls, call, unmatched)
    return replace(place_of_row(evidence, origin, in_target=in_target), tensor="output.0")


def _first_overflow(evidence: RankEvidence, calls: tuple[int, ...]) -> int | None:
    """The first of these calls of the target that returned inf or nan."""
    trace = evidence.plan.traces.target
    made = trace.tensors().filter(pl.col("call").is_in(list(calls)), pl.col("role") == Role.OUTPUT.value)
    bad = pl.sum_horizontal("nan", "pos_inf", "neg_inf") > 0
    values = trace.values().filter(bad).select(value="id")
    found = trace.collect(made.join(values, on="value").select(pl.col("call").min()))
    return found.item() if not found.is_empty() else None


def _place_of_own(evidence: RankEvidence, slot: Slot) -> Place:
    """The pair's own place, or that of the first forward of its kind whose arguments differ."""
    calls, forward = evidence.calls, evidence.forwards[slot.pair]
    if forward < 0 or not _arguments_differ(evidence, forward):
        return place_of(evidence, slot)
    alike = [
        pair
        for pair in range(len(calls["id"]))
        if all(calls[name][pair] == calls[name][forward] for name in ("kind", "op", "module", "name"))
    ]
    first = next(pair for pair in alike if _arguments_differ(evidence, pair))
    return place_of(evidence, next(iter(evidence.made(first)), slot))


def _arguments_differ(evidence: RankEvidence, pair: int) -> bool:
    calls = evidence.calls
    return numbers_differ(calls["reference_arguments"][pair], calls["arguments"][pair], unstated=0.0)


def place_of_row(evidence: RankEvidence, row: Mapping[str, Any], *, in_target: bool) -> Place:
    """The place of a call that has no partner, by its row in the one trace or the other."""
    lines = evidence.source_lines.target if in_target else evidence.source_lines.reference
    return Place(
        rank=evidence.plan.rank,
        step=row["step"],
        phase=Phase(row["phase"]),
        call=row["name"],
        call_id=row["id"] if in_target else None,
        op=row["op"],
        module=row["module"],
        source=lines.get(row["stack"]),
    )


def _origin(evidence: RankEvidence, calls: pl.DataFrame, call: int, unmatched: pl.DataFrame) -> dict[str, Any]:
    """The call itself; of a backward whose forward has no partner either, the step's first such one, if it shows."""
    row = calls.row(by_predicate=pl.col("id") == call, named=True)
    if row["forward"] is None or row["forward"] not in set(unmatched["id"]):
        return row
    alike = unmatched.filter(
        pl.col("op") == row["op"],
        pl.col("module").eq_missing(row["module"]),
        pl.col("forward").is_null(),
        pl.col("step") == row["step"],
    )
    if alike.is_empty() or _forward_is_identical(evidence, row["module"], row["step"]):
        return row
    return alike.sort("id").row(0, named=True)


def _forward_is_identical(evidence: RankEvidence, module: str | None, step: int) -> bool:
    """Whether all that a module returned in a step has the same bits in both runs."""
    columns = zip(*(evidence.calls[name] for name in ("module", "step", "phase")), strict=True)
    pairs = {pair for pair, place in enumerate(columns) if place == (module, step, Phase.FORWARD.value)}
    made = [slot.values for slot in evidence.by_role.get(Role.OUTPUT.value, []) if slot.pair in pairs]
    return bool(made) and bool(evidence.values.identical[made].all())


def coarsest_dtype(evidence: RankEvidence, pair: int) -> str | None:
    """The element type of a pair of calls that rounds most."""
    names = {str(side.dtype[slot.values]) for slot in evidence.slots_of[pair] for side in evidence.sides}
    floats = [name for name in names if name in DTYPES and DTYPES[name].unit_roundoff]
    return max(floats, key=lambda name: DTYPES[name].unit_roundoff, default=None)


def module_of(evidence: RankEvidence, slot: Slot) -> str | None:
    """The module of a call; of a parameter that an optimizer or the set-up shows, the module that owns it."""
    module = evidence.calls["module"][slot.pair]
    if module is not None:
        return str(module)
    if slot.role in (Role.PARAMETER.value, Role.PARAMETER_AFTER.value, Role.GRADIENT.value) and "." in slot.place:
        return slot.place.rpartition(".")[0]
    return None
