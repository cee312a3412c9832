"""Which calls of a trace made inf or nan out of finite numbers: from the stats of their values, where there are any."""

from collections.abc import Mapping
from dataclasses import dataclass

from ulpscope.numerics.dtypes import FLOATING
from ulpscope.records.checks import Direction
from ulpscope.records.overflows import NotFinite
from ulpscope.records.values import Value
from ulpscope.replay.recorded import Places, RecordedCall


@dataclass(frozen=True, slots=True)
class Births:
    """How many calls of a trace gave what is not finite."""

    born: tuple[int, ...]
    """Ids of calls whose inputs were finite, those of gradients by their forward."""
    inherited: int
    """Calls whose inputs were not finite already."""
    untold: tuple[int, ...] = ()
    """Ids of calls of which nobody recorded whether what they gave is finite."""


def counted(value: Value) -> NotFinite:
    """What of a value is not finite; nothing where its stats do not tell."""
    stats = value.stats
    return NotFinite() if stats is None else NotFinite(stats.nan, stats.pos_inf, stats.neg_inf)


def born_here(recorded: RecordedCall) -> dict[Direction, Places]:
    """Results that are not finite though everything they were made of is."""
    sent = {**recorded.inputs, **{f"grad.{place}": value for place, value in recorded.grad_outputs.items()}}
    found = {
        Direction.FORWARD: _broken(recorded.outputs) if _all_finite(recorded.inputs) else {},
        Direction.BACKWARD: _broken(recorded.grad_inputs) if _all_finite(sent) else {},
    }
    return {direction: places for direction, places in found.items() if places}


def untold_here(recorded: RecordedCall) -> tuple[Direction, ...]:
    """Directions whose results are not recorded, or without a number that tells whether they are finite."""
    results = {Direction.FORWARD: recorded.outputs}
    if recorded.backward is not None:
        results[Direction.BACKWARD] = recorded.grad_inputs
    # What was made of inf or nan has inherited it, whatever it is.
    finite = _all_finite(recorded.inputs) and _all_finite(recorded.grad_outputs)
    return tuple(way for way, places in results.items() if finite and not (places and _all_told(places)))


def births(recorded: Mapping[int, RecordedCall]) -> Births:
    """Calls to look into."""
    born = {number: each for number, each in recorded.items() if born_here(each)}
    broken = [each for each in recorded.values() if _broken(each.outputs) or _broken(each.grad_inputs)]
    silent = _unrecorded(recorded)
    untold = [number for number, each in recorded.items() if number not in born and _is_untold(each, silent)]
    return Births(tuple(born), len(broken) - len(born), tuple(untold))


def _unrecorded(recorded: Mapping[int, RecordedCall]) -> tuple[Direction, ...]:
    """Directions of which no call has a result: elsewhere, a call without one gave no tensor."""
    forward = () if any(each.outputs for each in recorded.values()) else (Direction.FORWARD,)
    backward = () if any(each.grad_inputs for each in recorded.values()) else (Direction.BACKWARD,)
    return forward + backward


def _is_untold(recorded: RecordedCall, silent: tuple[Direction, ...]) -> bool:
    results = {Direction.FORWARD: recorded.outputs, Direction.BACKWARD: recorded.grad_inputs}
    return any(results[way] or way in silent for way in untold_here(recorded))


def _all_told(places: Places) -> bool:
    return all(_is_told(value) for value in places.values())


def _is_told(value: Value) -> bool:
    return value.stats is not None or not value.initialized or 0 in value.shape or value.dtype not in FLOATING


def _broken(places: Places) -> Places:
    return {place: value for place, value in places.items() if value.initialized and counted(value).total}


def _all_finite(places: Places) -> bool:
    return all(counted(value).total == 0 for value in places.values())
