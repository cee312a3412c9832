"""Which calls of one run alone a gradient has a summand from, or lacks one for: a branch that one run has detached."""

from ulpscope.diagnose.flow.evidence import Slot
from ulpscope.diagnose.flow.reads import RunReads
from ulpscope.diagnose.flow.unpaired import GapFinder
from ulpscope.diagnose.limits import LONGEST_GAP
from ulpscope.records.pairs import Pair


def summands_of_one_run(gaps: GapFinder, slot: Slot) -> Pair[list[int]]:
    """Calls that read what a gradient is of, or send a part of it, in one run alone: ids of either run.

    Where one run goes back through calls that both make, what keeps the other from it lies behind these.
    """
    sides = gaps.evidence.sides
    values = sides.map(lambda side: {int(side.id[row]) for row in gaps.is_gradient_of(slot)})
    found: Pair[set[int]] = Pair(set(), set())
    for _ in range(LONGEST_GAP):
        strangers = Pair(*(_strangers_around(*each) for each in zip(gaps.runs, values, strict=True)))
        if all(new <= known for new, known in zip(strangers, found, strict=True)):
            break
        found = Pair(found.reference | strangers.reference, found.target | strangers.target)
        values = _made_by_forwards(gaps, found)
    return found.map(sorted)


def _strangers_around(run: RunReads, values: set[int]) -> set[int]:
    """Calls without partners that read one of these, and backwards without partners of any call that does."""
    reading = {call for call, given in run.inputs.items() if not values.isdisjoint(given)}
    sending = (call for call, forward in run.forwards.items() if forward in reading)
    return {call for call in {*reading, *sending} if call not in run.partners}


def _made_by_forwards(gaps: GapFinder, backwards: Pair[set[int]]) -> Pair[set[int]]:
    """What the forwards of these backwards have made, in both runs."""
    calls, runs = gaps.evidence.calls, gaps.runs
    sides = zip(runs, backwards, strict=True)
    forwards = [run.partners.get(run.forwards.get(call, -1)) for run, of_run in sides for call in of_run]
    pairs = [pair for pair in forwards if pair is not None]
    ids = Pair(*([calls[field][pair] for pair in pairs] for field in ("reference_id", "id")))
    made = (
        {value for call in of_run for value in run.outputs.get(call, ())} for run, of_run in zip(runs, ids, strict=True)
    )
    return Pair(*made)
