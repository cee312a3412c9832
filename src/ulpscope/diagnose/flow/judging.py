"""Follows errors through a run: for every pair of values whether its difference was made here or came in.

Pairs of calls are taken in the order in which the target finished them. Each pair of values is judged once, where it
appears first: as an output, against the operands of the call that made it; as an input, against what came before the
calls in between that have no partner (a gap), or as something that came from outside.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from ulpscope.align.tensors import BACKWARD_KINDS, GRADIENT_ROLES
from ulpscope.diagnose.flow.allowances import Allowances, Choosers, Excuses
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot, grouped
from ulpscope.diagnose.flow.explaining import Explained, Explainer, ForeignErrors
from ulpscope.diagnose.flow.mathematics import Mathematics
from ulpscope.diagnose.flow.states import (
    AFTER_CHOICE,
    IDENTICAL,
    INHERITED,
    MADE,
    ROUNDING,
    SOUND,
    UNKNOWN,
    UNRESOLVED,
    WRONG,
    Birth,
    Cause,
    Choice,
    Flow,
    Gain,
    State,
)
from ulpscope.diagnose.flow.trying.elements import element_error
from ulpscope.diagnose.flow.trying.formulas import Formulas
from ulpscope.diagnose.flow.twins.healthy import Twins
from ulpscope.diagnose.flow.twins.judging import TwinJudge
from ulpscope.diagnose.flow.unpaired import Gap, GapFinder, operations_in
from ulpscope.diagnose.flow.unseen import Unseen
from ulpscope.diagnose.limits import DRAWN_GAIN, LAST_BITS, PLAINLY_WRONG, SAME_ERROR
from ulpscope.judge.rounding.limits import LIMITS, Limits, default_gain, gap_gain
from ulpscope.judge.rounding.measuring import LOST, SHAPE_DIFFERS
from ulpscope.operations.registry import Family, Trait, assigns
from ulpscope.records.enums import (
    BACKWARD_KIND,
    GRAD_OUTPUT_ROLE,
    GRADIENT_ROLE,
    OPTIMIZER_KIND,
    STATE_AFTER_ROLE,
    STATE_ROLE,
    Kind,
)
from ulpscope.records.pairs import Measured

UNBOUNDED = frozenset((Family.RECURRENT, Family.SOLUTION))
"""Families whose gain depends on more than what is recorded."""
EXPLAINING = WRONG | {AFTER_CHOICE}
AllowedGain = Callable[[int, str], float]
"""Of a pair of calls and the place of its output."""


class Follower:
    """Judges all pairs of values of one rank, as often as it is asked; what does not change is kept."""

    def __init__(
        self,
        evidence: RankEvidence,
        *,
        limits: Limits = LIMITS,
        foreign_errors: ForeignErrors | None = None,
        twins: Sequence[RankEvidence] = (),
    ) -> None:
        self.evidence = evidence
        self.limits = limits
        self.gaps = GapFinder(evidence)
        self.explainer = Explainer(evidence, limits, foreign_errors or {})
        self.allowances = Allowances(evidence, limits, self.gaps.parameter_storages)
        self.choosers = Choosers(evidence)
        self.excuses = Excuses(evidence, self.gaps, limits)
        telling = [twin for twin in twins if twin.slots]
        known = Twins(evidence, telling, self.gaps.operands_of) if telling else None
        updates = self.explainer.updates
        self.by_twins = None if known is None else TwinJudge(evidence, known, updates, self.allowances)
        self.mathematics = Mathematics(evidence, self.gaps, updates, limits)
        self.formulas = Formulas(evidence, self.gaps)
        self.unseen = Unseen(evidence, updates, limits)
        values = evidence.values
        self.identical, self.compared = values.identical.tolist(), values.compared.tolist()
        self.discrete, self.pattern = values.discrete.tolist(), values.pattern.tolist()
        self.blind = values.blind.tolist()
        self.acquitted: AbstractSet[int] = frozenset()
        """Rows of slots whose calls were executed again, and made no error."""
        self.measured, self.unresolved = values.measured.tolist(), values.unresolved.tolist()
        self.reshaped, self.lost = ((values.reason == reason).tolist() for reason in (SHAPE_DIFFERS, LOST))

    def follow(self, allowed: AllowedGain | None = None) -> Flow:
        """Judge with the gains that are allowed; without them, with those of the kinds of operations."""
        usual: AllowedGain = lambda pair, _place: default_gain(self.evidence.operations[pair], self.limits)  # noqa: E731
        self.allowed = allowed or usual
        self.flow = Flow([UNKNOWN] * len(self.evidence.operands))
        self.birth_steps: set[int] = set()
        self.sources: dict[int, list[int]] = {}
        """What each pair of values was judged against."""
        self.finished: set[int] = set()
        self.made_contents: dict[tuple[int, int] | None, int] = {}
        self.strays: list[tuple[Slot, Gap]] = []
        """Where the runs could not be followed: values of other shapes, behind calls without partners."""
        self.explainer.begin()
        self.unseen.begin()
        if self.by_twins is not None:
            self.by_twins.begin()
        for pair, begins in self.evidence.moments:
            of_forward = self.evidence.forwards[pair] >= 0
            for slot in self.evidence.slots_of[pair]:
                # A parameter's gradient that a module's backward shows is there when it is over.
                shown_after = slot.role == GRADIENT_ROLE and of_forward
                if not slot.makes and begins is not shown_after and slot.values not in self.flow.first_slot:
                    self._arrive(slot)
            if not begins:
                made = [slot for slot in self.evidence.made(pair) if slot.values not in self.flow.first_slot]
                if made:
                    self._judge_outputs(pair, made)
                self.finished.add(pair)
        return self.flow

    def _arrive(self, slot: Slot) -> None:
        """A pair of values that no pair of calls made: from outside, or through calls without partners."""
        value = slot.values
        maker = self.evidence.makers[value]
        if (
            maker >= 0
            and maker not in self.finished
            and any(made.values == value for made in self.evidence.made(maker))
        ):
            return  # shown before its makers' end: judged there
        if self.evidence.only_writes(slot) or (maker < 0 and self.excuses.only_looks(slot)):
            return
        original = self._original_of(slot, maker)
        if original is not None:
            self.flow.first_slot[value] = slot
            self._settle_copy(value, original)
            return
        if maker >= 0:
            # Written since, unseen, as batch norm writes its stats.
            earlier = self.gaps.same_storage_before(slot)
            # The engine adds other gradients to the first in place.
            added = self.gaps.gradient_sources(slot) if slot.role in GRADIENT_ROLES else ()
            sources = (*self.gaps.operands_of(maker), *added, *earlier)
            if slot.role in GRADIENT_ROLES and self.gaps.has_other_summands(slot):
                sources = ()
            gap = Gap(sources, (), (), outside=False, adds=bool(added), written=bool(earlier))
        else:
            gap = self.gaps.find(slot)
        unjudged = maker < 0 or any(source not in self.flow.first_slot for source in gap.sources)
        if unjudged and not gap.outside and self._is_inside_backward(slot):
            # Steps of a custom backward that is written otherwise: its own results are judged.
            return
        if gap.outside and self._assigns(slot.pair):
            return  # judged as what the memory holds that it is put into
        if gap.outside:
            self._settle_outside(slot, gap)
        else:
            self._settle(slot, gap.sources, Cause.GAP, gain=self._gap_gain(gap), gap=gap)

    def _settle_outside(self, slot: Slot, gap: Gap) -> None:
        if self.excuses.is_start(slot, self.flow.states):
            self.flow.first_slot[slot.values] = slot
            self.flow.states[slot.values] = ROUNDING
            self.flow.started.append(slot)
        else:
            self._settle(slot, gap.sources, Cause.OUTSIDE, gain=self._gap_gain(gap), gap=gap)

    def _assigns(self, pair: int) -> bool:
        return self.evidence.calls["kind"][pair] == Kind.API.value and assigns(self.evidence.calls["op"][pair])

    def _settle_copy(self, value: int, original: int) -> None:
        self.sources[value] = [original]
        state = self.flow.states[original]
        self.flow.states[value] = INHERITED if state is MADE else state

    def _original_of(self, slot: Slot, maker: int) -> int | None:
        """The output that this is a copy of: a gradient in another dtype, a cast."""
        if maker < 0 or not self.compared[slot.values] or self.discrete[slot.values] or self.pattern[slot.values]:
            return None
        own = self.evidence.operands[slot.values]
        for made in self.evidence.made(maker):
            other, state = self.evidence.operands[made.values], self.flow.states[made.values]
            like = other.elements == own.elements and state is not UNKNOWN
            if like and abs(other.error - own.error) <= SAME_ERROR * max(other.error, own.error):
                return made.values
        return None

    def _is_inside_backward(self, slot: Slot) -> bool:
        parent = self.evidence.pair_of_target.get(self.evidence.calls["parent"][slot.pair] or -1, -1)
        return parent >= 0 and self.evidence.calls["kind"][parent] in BACKWARD_KINDS

    def _gap_gain(self, gap: Gap) -> float:
        calls = len(gap.only_reference) + len(gap.only_target)
        one_sided = gap.one_sided and bool(gap.sources) and self.evidence.complete
        usual = gap_gain(calls, one_sided=one_sided, limits=self.limits)
        wide = (each for each in operations_in(self.evidence, gap) if each.family in UNBOUNDED)
        return max([usual, *(default_gain(each, self.limits) for each in wide)])

    def _judge_outputs(self, pair: int, made: Sequence[Slot]) -> None:
        optimizer = self.evidence.calls["kind"][pair] == OPTIMIZER_KIND
        # What a custom backward made step by step is judged by what went into it.
        is_backward = self.evidence.calls["kind"][pair] == BACKWARD_KIND
        sources = [] if optimizer else self.gaps.operands_of(pair)
        unjudged = any(source not in self.flow.first_slot for source in sources)
        if self._is_inside_backward(made[0]) and unjudged:
            return
        if unjudged and self._assigns(pair):
            for slot in made:
                self._settle_outside(slot, Gap((), (), (), outside=True))
            return
        read = [slot for slot in self.evidence.slots_of[pair] if optimizer and not slot.makes]
        by_parameter = grouped(read, _parameter_name)
        hidden = [slot for slot in made if self.unseen.is_state_of_unseen(slot)]
        self.flow.first_slot |= {slot.values: slot for slot in hidden}
        made = [slot for slot in made if slot not in hidden]
        # Of a double backward what came in is not seen, or zeros are.
        shown = [self.evidence.operands[slot.values] for slot in self.evidence.in_role(pair, GRAD_OUTPUT_ROLE)]
        unseen = is_backward and not any(each.norm > 0 or each.error > 0 for each in shown)
        unseen = unseen or self.unseen.reads_unrecorded(pair)
        differs = any(not self.identical[slot.values] for slot in made)
        is_call = self.evidence.calls["kind"][pair] == Kind.API.value
        before = self.gaps.behind_operands(pair) if is_call and differs else None
        for slot in made:
            if before is not None:
                self._settle(slot, before.sources, Cause.GAP, gain=self._gap_gain(before), gap=before)
            elif not is_backward and self.evidence.makers[slot.values] < 0 and self.gaps.passed_through(slot):
                gap = self.gaps.find(slot)
                self._settle(slot, gap.sources, Cause.GAP, gain=self._gap_gain(gap), gap=gap)
            elif unseen:
                unknown = Gap((), (), (), outside=False)
                self._settle(slot, sources, Cause.ERROR, gain=self.limits.gap_gain, gap=unknown)
            elif optimizer:
                known = [each.values for each in by_parameter.get(_parameter_name(slot), [])]
                # Of a sparse gradient nothing is recorded.
                of_unknown = any(not self.compared[row] and not self.identical[row] for row in known)
                unseen_gap = Gap((), (), (), outside=False) if of_unknown else None
                self._settle(slot, known, Cause.ERROR, gain=self.limits.loose_gain, gap=unseen_gap)
            else:
                self._settle(slot, self.gaps.operands_for(slot), Cause.ERROR, gain=self.allowed(pair, slot.place))

    def _settle(self, slot: Slot, sources: Iterable[int], cause: Cause, *, gain: float, gap: Gap | None = None) -> None:
        value = slot.values
        known = [source for source in sources if source != value]
        self.flow.first_slot[value] = slot
        self.sources[value] = known
        if not self.compared[value] and not self.reshaped[value]:
            if self.evidence.untold[value]:
                differs = any(self.flow.states[source] in (ROUNDING, UNRESOLVED) for source in known)
                self.flow.states[value] = self._carried_state(known, ROUNDING if differs else UNKNOWN)
            return
        if self.identical[value]:
            self.flow.states[value] = IDENTICAL
            return
        if self._is_same_integer(value):
            self.flow.states[value] = ROUNDING
            return
        original = self._same_content(value) if cause is Cause.GAP else None
        if original is not None:
            self._settle_copy(value, original)
            return
        if slot.makes and cause is Cause.ERROR:
            self.made_contents.setdefault(self.evidence.contents[value], value)
            if self._is_drawn_in_another_type(slot, known):
                self.flow.states[value] = AFTER_CHOICE
                self.flow.choices.append(Choice(slot, 0.0, drawn=True))
                return
        if self.discrete[value] or self.reshaped[value]:
            self._settle_discrete(slot, known, cause, gap)
        elif self.unresolved[value]:
            self.flow.states[value] = self._carried_state(known, UNRESOLVED)
        elif self.blind[value] and any(self.flow.states[source] in EXPLAINING for source in known):
            self.flow.states[value] = self._inherited_state(known)
        elif self.pattern[value]:
            self._settle_pattern(slot, known, cause, gap)
        else:
            self._settle_numbers(slot, known, cause, gain=gain, gap=gap)

    def _is_drawn_in_another_type(self, slot: Slot, sources: list[int]) -> bool:
        """Whether a generator in the same state has drawn numbers of another type, which are other numbers."""
        calls, (reference, target) = self.evidence.calls, (str(side.dtype[slot.values]) for side in self.evidence.sides)
        if not (calls["random"][slot.pair] and calls["reference_random"][slot.pair]) or reference == target:
            return False
        states = calls["generator"][slot.pair], calls["reference_generator"][slot.pair]
        # A capture of ours tells a state, or that the framework has none to tell; another tool's dump tells nothing.
        same_state = states[0] == states[1] and (states[0] is not None or self.evidence.complete)
        return same_state and all(self.flow.states[source] is IDENTICAL for source in sources)

    def _carried_state(self, sources: list[int], sound: State) -> State:
        """What differs by nobody knows how much is as wrong as what it was made of, or else this."""
        worse = any(self.flow.states[source] in EXPLAINING for source in sources)
        return self._inherited_state(sources) if worse else sound

    def _same_content(self, value: int) -> int | None:
        """A call's own result with the same bits on either side, of which this is a copy."""
        content = self.evidence.contents[value]
        original = None if content is None else self.made_contents.get(content)
        return None if original is None or self.flow.states[original] is UNKNOWN else original

    def _settle_discrete(self, slot: Slot, sources: list[int], cause: Cause, gap: Gap | None) -> None:
        states = {self.flow.states[source] for source in sources if not self._is_same_integer(source)}
        if states & WRONG:
            self.flow.states[slot.values] = INHERITED
        elif self.reshaped[slot.values] and any(self._is_stray(source) for source in sources):
            return  # of another shape as what it was made of
        elif self._chose_wrongly(slot, states, cause, gap):
            came_in = self.evidence.worst_error(self.explainer.floats(sources))
            self.born(slot, Cause.DISCRETE, came_in, 0.0, gain=math.inf, gap=gap)
        elif AFTER_CHOICE in states:
            self.flow.states[slot.values] = AFTER_CHOICE
        elif self.reshaped[slot.values] and gap is not None and not self._chooses(gap):
            # Other calls, other shapes: what they make of it is judged on its own.
            self.strays.append((slot, gap))
            return
        elif states & {ROUNDING, UNRESOLVED} and self._may_flip(slot, gap):
            self.flow.states[slot.values] = AFTER_CHOICE
            self.flow.choices.append(Choice(slot, self.evidence.worst_error(sources)))
        else:
            self.born(slot, cause if cause is not Cause.ERROR else Cause.DISCRETE, 0.0, 0.0, gain=math.inf, gap=gap)

    def _is_same_integer(self, row: int) -> bool:
        """Whether both runs have the same whole numbers, perhaps in other types: rounding has no part in them."""
        return self.discrete[row] and self.compared[row] and self.evidence.operands[row].error == 0.0

    def _is_stray(self, row: int) -> bool:
        """Whether a value could not be followed: of another shape, behind calls without partners."""
        return self.reshaped[row] and self.flow.states[row] is UNKNOWN

    def _chose_wrongly(self, slot: Slot, states: set[State], cause: Cause, gap: Gap | None) -> bool:
        """Whether a call's own operands differ, but by too little for what it chose."""
        differs = bool(states & {ROUNDING, AFTER_CHOICE}) and not self.reshaped[slot.values]
        return differs and slot.makes and cause is Cause.ERROR and gap is None and not self.choosers.explain(slot)

    def _may_flip(self, slot: Slot, gap: Gap | None) -> bool:
        """Whether rounding can have changed this: integers and masks, and shapes that depend on them."""
        return not self.reshaped[slot.values] or (
            self._chooses(gap) if gap is not None else self.evidence.operations[slot.pair].has(Trait.FLIPPING)
        )

    def _chooses(self, gap: Gap) -> bool:
        return any(each.has(Trait.FLIPPING) for each in operations_in(self.evidence, gap))

    def _settle_pattern(self, slot: Slot, sources: list[int], cause: Cause, gap: Gap | None) -> None:
        """inf or nan that only one run has: inherited from other inf and nan, or from plainly wrong operands."""
        operands, states = self.evidence.operands, self.flow.states
        wrong = [row for row in sources if states[row] in EXPLAINING and not operands[row].error < PLAINLY_WRONG]
        if wrong or any(self.pattern[source] for source in sources):
            states[slot.values] = self._inherited_state(sources)
            return
        worst = self.evidence.worst_error(sources)
        if self._crosses_an_end(slot, worst):
            states[slot.values] = AFTER_CHOICE
            self.flow.choices.append(Choice(slot, worst))
            return
        self.born(slot, Cause.NOT_FINITE if gap is None else cause, worst, 0.0, gain=math.inf, gap=gap)

    def _crosses_an_end(self, slot: Slot, error_in: float) -> bool:
        """Whether both runs have inf or nan, and few more in one: operands at the end of what a root takes moved."""
        counts = [int(side.not_finite()[slot.values]) for side in self.evidence.sides]
        few = max(1.0, error_in * self.evidence.operands[slot.values].elements)
        return min(counts) > 0 and error_in > 0 and abs(counts[1] - counts[0]) <= few

    def _inherited_state(self, sources: list[int]) -> State:
        if any(self.flow.states[source] in WRONG for source in sources):
            return INHERITED
        return AFTER_CHOICE if any(self.flow.states[s] is AFTER_CHOICE for s in sources) else INHERITED

    def _settle_numbers(self, slot: Slot, sources: list[int], cause: Cause, *, gain: float, gap: Gap | None) -> None:
        if any(self.lost[source] for source in sources):
            return
        free = [source for source in sources if self._differs_freely(source)]
        if not free and gap is None and self.evidence.operations[slot.pair].family is Family.SELECTION:
            # Which part of it another choice has changed, nobody knows.
            free = [source for source in sources if self.flow.states[source] is AFTER_CHOICE]
        if free:
            self.flow.states[slot.values] = self._inherited_state(free)
            if self.flow.states[slot.values] is AFTER_CHOICE:
                self.unseen.scattered.add(slot.values)
            return
        if any(self.flow.states[source] is AFTER_CHOICE for source in sources):
            # Such errors lie in few rows, which what follows may weigh more than others.
            gain = max(gain, self.limits.gain)
        measured_so = self.evidence.complete and slot.row not in self.explainer.updates
        sure_gain = gain * self.limits.sure if measured_so else gain
        everything = self.explainer.explain(slot, sources, sure_gain, gap)
        if everything.error > everything.expected and any(self._is_stray(source) for source in sources):
            self.flow.states[slot.values] = INHERITED
            return
        if self._settle_by_twins(slot, sources, cause, everything, gap):
            return
        if gap is None and self.measured[slot.values] is not Measured.STATS and slot.row not in self.explainer.updates:
            everything = self.allowances.applied(slot, self.explainer.floats(sources), everything, sure_gain)
        hidden = self.unseen.hidden(sources, gain, everything, self.flow)
        expected = max(everything.expected * self.unseen.doubt(slot, sources), hidden)
        error = everything.error
        if expected < error < math.inf and gap is None and slot.row not in self.explainer.updates:
            measured = DRAWN_GAIN * math.hypot(element_error(self.evidence, slot), everything.floor)
            expected = max(expected, measured)
        self.flow.error_in[slot.row], self.flow.expected[slot.row] = everything.incoming, expected
        sound = [source for source in sources if self.flow.states[source] in SOUND]
        only_sound = len(sound) == len(sources)
        self.explainer.note(slot, everything)
        self.flow.gains.append(Gain(slot.pair, slot.place, everything.gain, only_sound))
        if error > expected or self._is_other_mathematics(slot, sources, everything, gap):
            self.born(slot, cause, everything.incoming, expected, gain=everything.gain, gap=gap)
        elif self._follows_birth(slot, gap) and not everything.explained_by(0.0, gain):
            self.flow.states[slot.values] = INHERITED
        elif only_sound or (self._is_rounding(slot, sound, everything, gain) and not self._follows_choice(sources)):
            unresolved = self._is_unresolved(sources, everything, gain)
            self.flow.states[slot.values] = UNRESOLVED if unresolved else ROUNDING
        else:
            self.flow.states[slot.values] = self._inherited_state(sources)

    def _differs_freely(self, row: int) -> bool:
        """Whether nothing can be said of what is made of this."""
        state = self.flow.states[row]
        if self.blind[row]:
            return state in EXPLAINING
        return self.evidence.differing_freely[row] and (state is not UNKNOWN or self.discrete[row])

    def _settle_by_twins(
        self, slot: Slot, sources: list[int], cause: Cause, explained: Explained, gap: Gap | None
    ) -> bool:
        """Judge by what the reference's twins differ from it; gives False where they do not tell."""
        if self.by_twins is None:
            return False
        other = self._is_other_mathematics(slot, sources, explained, gap)
        told = self.by_twins.told(slot, sources, explained, self.flow.states, gap=gap, is_sound_if_near=not other)
        if told is None:
            return False
        self.flow.error_in[slot.row], self.flow.expected[slot.row] = explained.incoming, told.most
        if told.chance is not None:
            self.flow.chances[slot.row] = told.chance
        self.explainer.note(slot, explained)
        if explained.error > told.most or other:
            self.born(slot, cause, explained.incoming, told.most, gain=explained.gain, gap=gap)
        elif told.beyond and any(self.flow.states[source] in WRONG for source in sources):
            self.flow.states[slot.values] = self._inherited_state(sources)
        else:
            self.flow.states[slot.values] = ROUNDING
        return True

    def _is_other_mathematics(self, slot: Slot, sources: list[int], explained: Explained, gap: Gap | None) -> bool:
        if gap is not None and max(explained.floor, explained.incoming) > LAST_BITS:
            apart = self.formulas.apart(slot, gap)
            if apart is not None and apart > LAST_BITS:
                self.flow.other_functions.add(slot.values)
                return True
        return self.mathematics.is_other(slot, sources, explained, gap=gap, states=self.flow.states)

    def _follows_choice(self, sources: list[int]) -> bool:
        """Whether all that is not sound in these was made behind a choice that flipped: it stays so."""
        worse = {self.flow.states[source] for source in sources} & EXPLAINING
        return worse == {AFTER_CHOICE}

    def _follows_birth(self, slot: Slot, gap: Gap | None) -> bool:
        """Whether nobody knows what a value was made of, and something was made wrong before, in the same step."""
        of_unknown = gap is not None and not gap.sources and not gap.outside
        return of_unknown and self.evidence.calls["step"][slot.pair] in self.birth_steps

    def _is_rounding(self, slot: Slot, sound: list[int], explained: Explained, gain: float) -> bool:
        """Whether the operands that are not wrong explain all of it; an update is too sensitive to tell.

        Beside wrong operands a large error is rounding only if the dtypes make it so, by what cancels.
        """
        if slot.row in self.explainer.updates:
            return False
        known = [row for row in sound if self.flow.states[row] is not UNKNOWN]
        came_in = self.evidence.worst_error(known) if explained.error < PLAINLY_WRONG else 0.0
        return explained.explained_by(came_in, gain)

    def _is_unresolved(self, sources: list[int], explained: Explained, gain: float) -> bool:
        """Whether only what cannot be resolved, here or in an operand, says that this is rounding."""
        told = [source for source in self.explainer.floats(sources) if self.flow.states[source] is not UNRESOLVED]
        if explained.is_rounding_of(self.evidence.worst_error(told), gain):
            return False
        return explained.explained_by(0.0, gain) or any(self.flow.states[source] is UNRESOLVED for source in sources)

    def born(self, slot: Slot, cause: Cause, error_in: float, expected: float, *, gain: float, gap: Gap | None) -> None:
        """Say that this difference began here, unless it is known not to matter."""
        known = self.evidence.known_state(slot.values)
        if known is not None:
            self.flow.states[slot.values] = known
            return
        if slot.row in self.acquitted:
            self._settle_acquitted(slot)
            return
        unread = cause is Cause.ERROR and self.excuses.is_unread(slot, self.flow.states)
        if unread or self.excuses.is_idle_draw(slot):
            self.flow.unread.add(slot.values)
            return
        self.flow.states[slot.values] = MADE
        update = self.explainer.updates.get(slot.row)
        error = self.evidence.error(slot) if update is None else update.error
        self.birth_steps.add(self.evidence.calls["step"][slot.pair])
        self.flow.births.append(Birth(slot, cause, error_in, error, expected, gain, gap))

    def _settle_acquitted(self, slot: Slot) -> None:
        """Whatever it differs by came in, or was chosen among what is as good."""
        sources = self.sources.get(slot.values, [])
        if self.discrete[slot.values] and not any(self.flow.states[source] in EXPLAINING for source in sources):
            self.flow.states[slot.values] = AFTER_CHOICE
            self.flow.choices.append(Choice(slot, self.evidence.worst_error(self.explainer.floats(sources))))
        else:
            self.flow.states[slot.values] = self._carried_state(sources, ROUNDING)


def _parameter_name(slot: Slot) -> str:
    is_state = slot.role in (STATE_ROLE, STATE_AFTER_ROLE)
    return slot.place.rpartition(".")[0] if is_state else slot.place
