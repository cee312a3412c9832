"""Where a tensor came from: which call's result it is, and whether data of the outside is in it."""

from functools import cached_property

import polars as pl

from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.unpaired import Gap
from ulpscope.judge.rounding.values import Values
from ulpscope.operations.registry import operation
from ulpscope.operations.traits import Operation, Trait
from ulpscope.records.enums import INPUT_ROLE, SETUP_PHASE
from ulpscope.trace.reader import RankTrace


class Origins:
    """Walks back to what a value was made of, in the traces themselves."""

    def __init__(self, evidence: RankEvidence) -> None:
        self.evidence = evidence

    def of(self, slot: Slot) -> tuple[str, str] | None:
        """`torch.relu.0 output.0` of either run, where a tensor is not the result of the same call; else none."""
        values, plan = self.evidence.sides, self.evidence.plan
        sides = (
            _made_as(plan.traces.reference, plan.calls.reference, values.reference, slot.values),
            _made_as(plan.traces.target, plan.calls.target, values.target, slot.values),
        )
        reference, target = sides
        return (reference, target) if reference and target and reference != target else None

    def given_as(self, slot: Slot) -> str | None:
        """The other place at which the reference's call gets the bits that the target's gets here."""
        values = self.evidence.sides
        if not values.target.has_digest[slot.values]:
            return None
        bits = values.target.digest[slot.values]
        for other in self.evidence.slots_of[slot.pair]:
            same = values.reference.has_digest[other.values] and values.reference.digest[other.values] == bits
            if same and other.role == slot.role and other.place != slot.place:
                return other.place
        return None

    def holds_data(self, pair: int, gap: Gap | None) -> bool:
        """Whether what these calls of the target made has random numbers or data of the outside in it."""
        waiting = [self.evidence.calls["id"][pair]] if gap is None else self._behind(gap)
        if not waiting:
            return True
        seen: set[int] = set()
        while waiting:
            call = waiting.pop()
            if call in seen:
                continue
            seen.add(call)
            if call not in self._calls:
                return True
            made_by, random = self._calls[call]
            given = self._inputs.get(call, [])
            if random or (not given and not made_by.has(Trait.CONSTANT)):
                return True
            waiting += given
        return False

    def _behind(self, gap: Gap) -> list[int]:
        producers = self.evidence.sides.target.producer
        return [*gap.only_target, *(int(producers[source]) for source in gap.sources)]

    @cached_property
    def _calls(self) -> dict[int, tuple[Operation, bool]]:
        calls = self.evidence.plan.calls.target.filter(pl.col("phase") == SETUP_PHASE)
        return {call: (operation(op), bool(random)) for call, op, random in calls.select("id", "op", "random").rows()}

    @cached_property
    def _inputs(self) -> dict[int, list[int]]:
        """For each call of the set-up the calls that made what it reads; -1 for what came from outside."""
        trace = self.evidence.plan.traces.target
        read = trace.tensors(self.evidence.plan.steps).filter(pl.col("role") == INPUT_ROLE)
        values = trace.values().select("producer", value="id")
        rows = trace.collect(read.select("call", "value").join(values, on="value").select("call", "producer"))
        found: dict[int, list[int]] = {}
        for call, producer in rows.filter(pl.col("call").is_in(list(self._calls))).iter_rows():
            found.setdefault(call, []).append(-1 if producer is None else producer)
        return found


def _made_as(trace: RankTrace, calls: pl.DataFrame, values: Values, row: int) -> str | None:
    producer = int(values.producer[row])
    named = calls.filter(pl.col("id") == producer)
    if producer < 0 or named.is_empty():
        return None
    step = int(named["step"][0])
    made = trace.tensors(step).filter(pl.col("call") == producer, pl.col("value") == int(values.id[row]))
    places = trace.collect(made.filter(pl.col("role") != INPUT_ROLE).select("place"))["place"]
    place = f" {places[0]}" if len(places) else ""
    return f"{named['name'][0]}{place}"
