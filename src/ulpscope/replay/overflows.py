"""Which calls of a trace made inf or nan out of finite numbers: from the stats of their values."""

from collections.abc import Mapping
from dataclasses import dataclass

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


def births(recorded: Mapping[int, RecordedCall]) -> Births:
    """Calls to look into."""
    born = [number for number, each in recorded.items() if born_here(each)]
    broken = [each for each in recorded.values() if _broken(each.outputs) or _broken(each.grad_inputs)]
    return Births(tuple(born), len(broken) - len(born))


def _broken(places: Places) -> Places:
    return {place: value for place, value in places.items() if value.initialized and counted(value).total}


def _all_finite(places: Places) -> bool:
    return all(counted(value).total == 0 for value in places.values())
