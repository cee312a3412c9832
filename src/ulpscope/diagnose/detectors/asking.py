"""How detectors are asked: each difference that began somewhere is shown to one after the other, until one knows it.

The last ones ask what was computed: inf or nan, or just other numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from ulpscope.align.tensors import OWNED_ROLES
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.states import Birth, Cause, finite
from ulpscope.diagnose.flow.unpaired import Gap, GapFinder, has_unknown_operand
from ulpscope.diagnose.places import place_of_birth
from ulpscope.operations.registry import Operation, Trait, operation
from ulpscope.records.enums import (
    BACKWARD_KIND,
    COLLECTIVE_KIND,
    COMPILED_KIND,
    GRADIENT_ROLE,
    INPUT_ROLE,
    MODULE_BACKWARD_KIND,
    MODULE_KIND,
    OPTIMIZER_KIND,
    PARAMETER_AFTER_ROLE,
    SETUP_PHASE,
    STATE_AFTER_ROLE,
    STATE_ROLE,
)
from ulpscope.records.evidence import Evidence, OperandOrigin, Overflow
from ulpscope.records.findings import FindingKind, Place
from ulpscope.trace.overflow.steps import Ends, asked

ALWAYS_MODEL = (BACKWARD_KIND, MODULE_KIND, MODULE_BACKWARD_KIND, OPTIMIZER_KIND, COLLECTIVE_KIND, COMPILED_KIND)


@dataclass(frozen=True)
class Case:
    """One rank of two runs, and all differences that began in it."""

    evidence: RankEvidence
    gaps: GapFinder
    births: Sequence[Birth]

    @cached_property
    def model(self) -> list[bool]:
        """For each pair of calls whether it computes with the model; all of them in a run without modules."""
        evidence, calls = self.evidence, self.evidence.calls
        if not any(module is not None for module in calls["module"]):
            return [phase != SETUP_PHASE for phase in calls["phase"]]
        storages = evidence.sides.target.storage.tolist()
        # Where parameters and their gradients lie.
        model_storages = self.gaps.parameter_storages | set(self.gaps.gradient_storages)
        from_model = [False] * len(storages)
        # One more, for what no pair of calls made (-1).
        reading = [False] * (len(calls["id"]) + 1)
        found = [False] * len(calls["id"])
        for pair in evidence.order:
            inside = calls["kind"][pair] in ALWAYS_MODEL or calls["module"][pair] is not None
            reads = any(
                from_model[row] or storages[row] in model_storages or reading[evidence.makers[row]]
                for row in evidence.given(pair)
            )
            reading[pair] = inside or reads
            found[pair] = inside or (reads and calls["phase"][pair] != SETUP_PHASE)
            if inside or reads:
                for slot in evidence.made(pair):
                    from_model[slot.values] = True
        return found

    @cached_property
    def origins(self) -> "Origins":
        return Origins(self.evidence)

    def is_parameter(self, birth: Birth) -> bool:
        """A parameter or buffer that differs before any step of an optimizer has changed it."""
        slot = birth.slot
        if slot.role in (PARAMETER_AFTER_ROLE, STATE_AFTER_ROLE, STATE_ROLE, GRADIENT_ROLE):
            return False
        if not (slot.role in OWNED_ROLES or self.gaps.is_parameter(slot)):
            return False
        setup = self.evidence.calls["phase"][slot.pair] == SETUP_PHASE
        return setup or birth.cause in (Cause.OUTSIDE, Cause.GAP)


class Origins:
    """Where a tensor came from: which call's result it is, and whether data of the outside is in it."""

    def __init__(self, evidence: RankEvidence) -> None:
        self.evidence = evidence

    def of(self, slot: Slot) -> tuple[str, str] | None:
        """`torch.relu.0 output.0` of either run, where a tensor is not the result of the same call; else none."""
        reference, target = (self._made_as(side, slot.values) for side in (0, 1))
        return (reference, target) if reference and target and reference != target else None

    def _made_as(self, side: int, row: int) -> str | None:
        """Of the reference (0) or the target (1)."""
        values, plan = tuple(self.evidence.sides)[side], self.evidence.plan
        trace, calls, producer = tuple(plan.traces)[side], tuple(plan.calls)[side], int(values.producer[row])
        named = calls.filter(pl.col("id") == producer)
        if producer < 0 or named.is_empty():
            return None
        made = trace.tensors(int(named["step"][0])).filter(
            pl.col("call") == producer, pl.col("value") == int(values.id[row]), pl.col("role") != INPUT_ROLE
        )
        places = trace.collect(made.select("place"))["place"]
        return " ".join((named["name"][0], *places.head(1)))

    def given_as(self, slot: Slot) -> str | None:
        """The other place at which the reference's call gets the bits that the target's gets here."""
        reference, target = self.evidence.sides
        if not target.has_digest[slot.values]:
            return None
        bits = target.digest[slot.values]
        for other in self.evidence.slots_of[slot.pair]:
            same = reference.has_digest[other.values] and reference.digest[other.values] == bits
            if same and other.role == slot.role and other.place != slot.place:
                return other.place
        return None

    def holds_data(self, pair: int, gap: Gap | None) -> bool:
        """Whether what these calls of the target made has random numbers or data of the outside in it."""
        waiting = [self.evidence.calls["id"][pair]]
        if gap is not None:
            waiting = [*gap.only_target, *self.evidence.sides.target.producer[list(gap.sources)].tolist()]
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

    @cached_property
    def _calls(self) -> dict[int, tuple[Operation, bool]]:
        calls = self.evidence.plan.calls.target.filter(pl.col("phase") == SETUP_PHASE)
        return {call: (operation(op), bool(random)) for call, op, random in calls.select("id", "op", "random").rows()}

    @cached_property
    def _inputs(self) -> dict[int, list[int]]:
        """For each call of the set-up the calls that made what it reads; -1 for what came from outside."""
        trace = self.evidence.plan.traces.target
        read = trace.tensors(self.evidence.plan.steps).filter(pl.col("role") == INPUT_ROLE)
        makers = trace.values().select(pl.col("producer").fill_null(-1), value="id")
        by_setup = pl.col("call").is_in(list(self._calls))
        rows = trace.collect(read.select("call", "value").join(makers, on="value").filter(by_setup))
        return dict(rows.group_by("call", maintain_order=True).agg("producer").iter_rows())


@dataclass(frozen=True, slots=True)
class Answer:
    """What a difference is."""

    kind: FindingKind
    place: Place
    evidence: Evidence = field(default_factory=Evidence)
    """What the detector knows beyond what is told of every difference."""
    unsaid: tuple[str, ...] = ()
    """Numbers that are told of other differences, and say nothing of this one."""
    story: str = ""
    """What several findings would tell alike: of one story the first is told."""


class Detector(ABC):
    """One question to a difference."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.evidence = case.evidence

    @abstractmethod
    def ask(self, birth: Birth) -> Answer | None:
        """What the difference is; none if it is nothing that this detector knows."""


class Overflowing(Detector):
    """Are there inf or nan where the reference has none?"""

    def ask(self, birth: Birth) -> Answer | None:
        if not self._overflows(birth.slot.values) or self._asked_for(birth):
            return None
        place, role = place_of_birth(self.evidence, birth), birth.slot.role
        shown = ("summed" if role == GRADIENT_ROLE else "given") if is_only_shown(birth, place) else None
        known = Evidence(operand=OperandOrigin(shown=shown))
        if birth.gap is not None:
            return Answer(FindingKind.OVERFLOW, place, known, unsaid=("dtype",))
        row, stats = birth.slot.values, [side.summaries for side in self.evidence.sides]
        largest = [finite(max(abs(float(side.min[row])), abs(float(side.max[row])))) for side in stats]
        overflow = Overflow(extremes=(largest[0], largest[1]))
        return Answer(FindingKind.OVERFLOW, place, Evidence(operand=known.operand, overflow=overflow))

    def _overflows(self, row: int) -> bool:
        """Another number of -inf is another mask."""
        if not self.evidence.values.pattern[row]:
            return False
        reference, target = self.evidence.sides
        born = int(target.nan[row] + target.pos_inf[row]) > int(reference.nan[row] + reference.pos_inf[row])
        return born or (int(reference.not_finite()[row]) == 0 < int(target.not_finite()[row]))

    def _asked_for(self, birth: Birth) -> bool:
        """Whether an argument of a call that both runs make is inf or nan itself, as a limit that limits nothing is."""
        if birth.gap is not None or not birth.slot.makes:
            return False
        sides, row = self.evidence.sides, birth.slot.values
        more = (
            getattr(sides.target, name)[row] > getattr(sides.reference, name)[row]
            for name in ("nan", "pos_inf", "neg_inf")
        )
        calls, pair = self.evidence.calls, birth.slot.pair
        return asked(calls["op"][pair], calls["arguments"][pair]).cover(Ends(*map(bool, more)))


class Computation(Detector):
    """Was it computed otherwise? Where no other detector knows more, it was."""

    def ask(self, birth: Birth) -> Answer:
        return computed(self.case, birth)


def is_only_shown(birth: Birth, place: Place) -> bool:
    """Whether the call of this place did not make the tensor, nor did calls that only one run makes."""
    return not (birth.slot.makes or place.tensor != birth.slot.place or (birth.gap and birth.gap.calls))


def computed(case: Case, birth: Birth) -> Answer:
    """Something that was computed otherwise, with what it is if the call did not make it."""
    place, slot = place_of_birth(case.evidence, birth), birth.slot
    if not is_only_shown(birth, place):
        own = birth.gap is None and slot.makes
        unknown = True if own and has_unknown_operand(case.evidence, slot.pair) else None
        operand = OperandOrigin(unknown_input=unknown)
    elif slot.role == GRADIENT_ROLE:
        operand = OperandOrigin(shown="summed")
    else:
        origins = case.origins.of(slot)
        given_as = None if origins else case.origins.given_as(slot)
        operand = OperandOrigin(shown="given", origins=origins, given_as=given_as)
    return Answer(FindingKind.COMPUTATION, place, Evidence(operand=operand))
