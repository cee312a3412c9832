"""Findings of one rank: births named, told once each, in the order in which they happened."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from ulpscope.diagnose.detectors.arguments import argument_differences
from ulpscope.diagnose.detectors.causes import Causes
from ulpscope.diagnose.detectors.changed_parameters import TARGET, Change
from ulpscope.diagnose.detectors.stale_gradients import Leftovers
from ulpscope.diagnose.flow.evidence import RankEvidence
from ulpscope.diagnose.flow.peers import PeerGains
from ulpscope.diagnose.flow.states import Birth, Cause, Flow, State, finite
from ulpscope.diagnose.flow.unpaired import calls_in, has_unknown_operand
from ulpscope.diagnose.places import place_of, place_of_birth, place_of_parameter, place_of_row
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.enums import GRADIENT_ROLE, Kind
from ulpscope.records.findings import (
    Amount,
    ArgumentDifference,
    Evidence,
    Finding,
    FindingKind,
    Numbers,
    OneRun,
    OperandOrigin,
    Overflow,
    ParameterHistory,
    Place,
    Unlike,
)
from ulpscope.records.pairs import PairMetrics

# How many times more than explained a second fault must be, to stand out of what the first one left behind.
STANDS_OUT = 10.0
CLEAN_INPUT = 0.02
NAMES_LISTED = 6

# Told once a step, whatever the number of tensors.
COLLECTED = (FindingKind.INPUT, FindingKind.PARAMETER, FindingKind.RANDOMNESS, FindingKind.OPTIMIZER)
NAMED = (FindingKind.PARAMETER, FindingKind.OPTIMIZER)
LEFTOVER, TIED = ("leftover",), ("tied",)


@dataclass(frozen=True, slots=True)
class RankedFinding:
    """A finding with its place in time."""

    finding: Finding
    birth: Birth
    moment: tuple[int, int]
    """Step, and position in the order of the target's calls."""


def find(evidence: RankEvidence, flow: Flow, causes: Causes, peers: PeerGains) -> list[RankedFinding]:
    """The findings of one rank, the first first; what merely follows is left out."""
    positions = evidence.positions
    leftovers = Leftovers(evidence, causes.gaps)
    named = [
        _Named(causes.kind(birth), birth, leftovers.of(birth.slot), causes.changes.tied(birth.slot))
        for birth in flow.births
    ]
    ordered = sorted(named, key=lambda each: positions[each.birth.slot.pair])
    found: list[RankedFinding] = []
    told: set[tuple[object, ...]] = set()
    for each in ordered:
        writer, change = causes.writer(each.birth), causes.change(each.birth)
        place = _place(evidence, each, writer, change)
        key = _key(each, place)
        follows = LEFTOVER in told and each.birth.slot.role == GRADIENT_ROLE
        if key in told or follows or (found and not _stands_out(evidence, each.kind, each.birth)):
            continue
        told.add(key)
        alike = [other.birth for other in ordered if _is_alike(evidence, other, each)]
        finding = Finding(each.kind, place, _evidence(evidence, flow, each, alike, peers))
        if writer is not None:
            unlike = replace(finding.evidence.unlike, arguments=differing_arguments(evidence, writer))
            finding = _with(_without(finding, "error_in"), unlike=unlike)
        elif change is not None:
            finding = _with_change(finding, change, _parameters(evidence, [each.birth, *alike]))
        else:
            finding = _with_operand(finding, causes, each)
        found.append(RankedFinding(finding, each.birth, (place.step, positions[each.birth.slot.pair])))
    return found


@dataclass(frozen=True, slots=True)
class _Named:
    """A birth with what is known of its cause."""

    kind: FindingKind
    birth: Birth
    leftover: tuple[str, int] | None
    tied: tuple[str, str] | None


def _is_alike(evidence: RankEvidence, one: _Named, other: _Named) -> bool:
    same = one.kind is other.kind and _step(evidence, one.birth) == _step(evidence, other.birth)
    return same and (one.leftover is None) == (other.leftover is None)


def _with(finding: Finding, **evidence: Any) -> Finding:
    return replace(finding, evidence=replace(finding.evidence, **evidence))


def _without(finding: Finding, *names: str) -> Finding:
    """The same without these of its numbers."""
    return _with(finding, numbers=replace(finding.evidence.numbers, **dict.fromkeys(names)))


def _with_change(finding: Finding, change: Change, names: tuple[str, ...]) -> Finding:
    """A parameter that was the same before: who changed it, instead of what the call that shows it was given."""
    if change.update is not None:
        history = ParameterHistory(updated_in=change.updated_in, parameters=names)
        return _with(_without(finding, "error_in", "expected"), history=history)
    if change.by_calls:
        return _with(finding, history=ParameterHistory(parameters=names[:1]))
    return _with(finding, history=replace(finding.evidence.history, changed_unseen=True))


def _with_operand(finding: Finding, causes: Causes, each: _Named) -> Finding:
    """What a tensor is that the call did not make, and why it may differ."""
    slot, gap, history = each.birth.slot, each.birth.gap, finding.evidence.history
    lost = causes.changes.without_gradient(slot)
    if lost is not None:
        return _with(_without(finding, "error_in", "expected"), history=replace(history, without_gradient=lost))
    if slot.makes or finding.place.tensor != slot.place or (gap and (gap.only_reference or gap.only_target)):
        return finding
    if finding.kind is FindingKind.INPUT:
        return _with(finding, operand=OperandOrigin(origins=causes.origins.of(slot)))
    if finding.kind is FindingKind.OVERFLOW:
        return _with(finding, operand=OperandOrigin(shown="summed" if slot.role == GRADIENT_ROLE else "given"))
    if finding.kind is not FindingKind.COMPUTATION:
        return finding
    if each.tied is not None:
        told = _with(finding, operand=OperandOrigin(shown="summed"), history=replace(history, tied=each.tied))
        return _without(told, "error_in", "expected")
    if slot.role == GRADIENT_ROLE:
        return _with(finding, operand=OperandOrigin(shown="summed"), history=replace(history, leftover=each.leftover))
    origins = causes.origins.of(slot)
    given_as = None if origins else causes.origins.given_as(slot)
    return _with(finding, operand=OperandOrigin(shown="given", origins=origins, given_as=given_as))


def _step(evidence: RankEvidence, birth: Birth) -> object:
    return evidence.calls["step"][birth.slot.pair]


def _place(evidence: RankEvidence, each: _Named, writer: int | None, change: Change | None) -> Place:
    slot = each.birth.slot
    if writer is not None:
        shown = evidence.slots_of[writer][0]
        return replace(place_of(evidence, shown), tensor=place_of_parameter(evidence, slot).tensor)
    if change is not None and change.update is not None:
        owner = place_of_parameter(evidence, slot)
        place = place_of_row(evidence, change.update, in_target=change.updated_in == TARGET)
        return replace(place, module=owner.module, tensor=full_name(owner))
    if change is not None and change.by_calls:
        return replace(place_of_birth(evidence, each.birth), tensor=place_of_parameter(evidence, slot).tensor)
    if each.kind is FindingKind.PARAMETER:
        return place_of_parameter(evidence, slot)
    return place_of_birth(evidence, each.birth)


def _key(each: _Named, place: Place) -> tuple[object, ...]:
    """What counts as the same finding; a fault shows again in every step."""
    if each.leftover is not None:
        return LEFTOVER
    if each.tied is not None:
        return TIED
    return (each.kind,) if each.kind in COLLECTED else (each.kind, place.module, place.op)


def _stands_out(evidence: RankEvidence, kind: FindingKind, birth: Birth) -> bool:
    """Whether a later finding is not explained by the first one."""
    first_step = evidence.plan.steps[0] == _step(evidence, birth)
    if kind is FindingKind.PARAMETER:
        return first_step
    if kind is FindingKind.OPTIMIZER:
        return bool(_arguments(evidence, birth))
    if kind in COLLECTED:
        return True
    return birth.score >= STANDS_OUT and birth.error_in <= CLEAN_INPUT


def _evidence(evidence: RankEvidence, flow: Flow, each: _Named, alike: Sequence[Birth], peers: PeerGains) -> Evidence:
    kind, birth, leftover = each.kind, each.birth, each.leftover is not None
    slot, pair, calls = birth.slot, birth.slot.pair, evidence.calls
    values = evidence.sides
    row = slot.values
    dtypes = str(values.reference.dtype[row]), str(values.target.dtype[row])
    shapes = values.reference.shape(row), values.target.shape(row)
    not_finite = int(values.reference.not_finite()[row]), int(values.target.not_finite()[row])
    generators = calls["reference_generator"][pair], calls["generator"][pair]
    metrics = evidence.values.metrics.get(row)
    gap_names = _gap_names(evidence, birth)
    measured = evidence.values.measured[row]
    numbers = Numbers(
        measured=measured,
        error_in=None if birth.cause is Cause.OUTSIDE else birth.error_in,
        error_out=finite(birth.error_out) if shapes[0] == shapes[1] else None,
        expected=birth.expected or None,
        dtype=coarsest_dtype(evidence, pair) if birth.gap is None or kind is not FindingKind.OVERFLOW else None,
        peers=peers.usual(pair, slot.place) if birth.gap is None else None,
        gain=finite(birth.gain),
        worst=_worst(metrics, shapes[1]) if metrics is not None else None,
    )
    unlike = Unlike(
        dtypes=dtypes if dtypes[0] != dtypes[1] else None,
        shapes=shapes if shapes[0] != shapes[1] else None,
        arguments=_arguments(evidence, birth),
        classes=_classes(evidence, birth),
        generators=generators if kind is FindingKind.RANDOMNESS and None not in generators else None,
    )
    overflow = Overflow(
        not_finite=not_finite if not_finite != (0, 0) else None,
        extremes=_extremes(evidence, row) if kind is FindingKind.OVERFLOW and birth.gap is None else None,
    )
    return Evidence(
        numbers,
        unlike,
        OneRun(*gap_names),
        OperandOrigin(unknown_input=True if _reads_unknown(evidence, kind, birth) else None),
        ParameterHistory(parameters=_parameters(evidence, alike) if kind in NAMED or leftover else ()),
        overflow,
        Amount(count=len(alike) if kind in COLLECTED or leftover else None, followers=_followers(evidence, flow)),
    )


def _reads_unknown(evidence: RankEvidence, kind: FindingKind, birth: Birth) -> bool:
    own = kind is FindingKind.COMPUTATION and birth.gap is None and birth.slot.makes
    return own and has_unknown_operand(evidence, birth.slot.pair)


def _followers(evidence: RankEvidence, flow: Flow) -> int:
    """Pairs of calls that made or read something wrong after the first."""
    wrong = [slot.pair for slot in evidence.slots if slot.makes and flow.states[slot.values] is State.INHERITED]
    return len(set(wrong))


def _worst(metrics: PairMetrics, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    flat = metrics.worst
    if flat is None or not shape:
        return None
    index = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        index.append(place)
    return tuple(reversed(index))


def coarsest_dtype(evidence: RankEvidence, pair: int) -> str | None:
    """The element type of a pair of calls that rounds most."""
    names = {str(side.dtype[slot.values]) for slot in evidence.slots_of[pair] for side in evidence.sides}
    floats = [name for name in names if name in DTYPES and DTYPES[name].unit_roundoff]
    return max(floats, key=lambda name: DTYPES[name].unit_roundoff, default=None)


def _arguments(evidence: RankEvidence, birth: Birth) -> tuple[ArgumentDifference, ...]:
    if birth.gap is not None and (birth.gap.only_target or birth.gap.only_reference):
        return ()
    pair = birth.slot.pair
    if birth.slot.row in evidence.regrouped:
        return argument_differences(*evidence.regrouped[birth.slot.row])
    own = differing_arguments(evidence, pair)
    forward = evidence.forwards[pair]
    if own or forward < 0:
        return own
    return differing_arguments(evidence, forward)


def differing_arguments(evidence: RankEvidence, pair: int) -> tuple[ArgumentDifference, ...]:
    """What differs among the arguments of a pair of calls."""
    calls = evidence.calls
    return argument_differences(calls["reference_arguments"][pair], calls["arguments"][pair])


def _gap_names(evidence: RankEvidence, birth: Birth) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if birth.gap is None:
        return (), ()
    calls = calls_in(evidence, birth.gap)
    return _names(calls.reference), _names(calls.target)


def _names(calls: pl.DataFrame) -> tuple[str, ...]:
    return tuple(calls.filter(pl.col("kind") != Kind.MODULE.value)["name"].head(NAMES_LISTED).to_list())


def _classes(evidence: RankEvidence, birth: Birth) -> tuple[str, str] | None:
    """Of a call that replaces another one: the two operations."""
    calls, pair = evidence.calls, birth.slot.pair
    if not calls["replaced"][pair]:
        return None
    return str(calls["reference_op"][pair]), str(calls["op"][pair])


def _extremes(evidence: RankEvidence, row: int) -> tuple[float | None, float | None]:
    largest = evidence.sides.map(
        lambda side: max(abs(float(side.summaries.min[row])), abs(float(side.summaries.max[row])))
    )
    return finite(largest.reference), finite(largest.target)


def _parameters(evidence: RankEvidence, births: Sequence[Birth]) -> tuple[str, ...]:
    names = [full_name(place_of_parameter(evidence, birth.slot)) for birth in births[:NAMES_LISTED]]
    return tuple(dict.fromkeys(name for name in names if name))


def full_name(place: Place) -> str | None:
    """Of a parameter: with its module's path."""
    if place.module and place.tensor and not place.tensor.startswith(place.module):
        return f"{place.module}.{place.tensor}"
    return place.tensor
