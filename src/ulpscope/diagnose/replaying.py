"""Executes calls of two runs again, as many as are worth it: that confirms findings, clears them, or adds others."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import polars as pl

from ulpscope.diagnose.acquitting import acquitted_births, is_told_by_arguments, shows_loss_scale, slot_of
from ulpscope.diagnose.arguments import differing_arguments
from ulpscope.diagnose.comparing import Judging
from ulpscope.diagnose.findings import JudgedRank, RankedFinding, with_left
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.states import Birth, Cause, Flow
from ulpscope.diagnose.ledger import (
    Advance,
    Contributions,
    final_differences,
    is_replayable,
    keep_ledger,
    with_contributions,
)
from ulpscope.diagnose.limits import NEAREST_REPLAYED, SWEPT_UNASKED
from ulpscope.diagnose.places import place_of
from ulpscope.diagnose.rewriting import Rewriting
from ulpscope.records.checks import Direction
from ulpscope.records.evidence import (
    GUILTY,
    Evidence,
    FinalDifference,
    Ledger,
    LedgerEntry,
    Maker,
    Numbers,
    Replay,
    Unlike,
)
from ulpscope.records.findings import Finding, FindingKind
from ulpscope.records.pairs import Judgement, Measured


def judge_by_executing(judging: Judging, replay: Replay, advance: Advance) -> tuple[list[JudgedRank], Ledger | None]:
    """The ranks, judged until nothing is blamed that execution acquits; what is left is proven; and the ledger."""
    judged = judging.judge()
    executed = [Executed(rank.evidence, replay, advance) for rank in judged]
    while sum(again.acquits(rank) for again, rank in zip(executed, judged, strict=True)):
        judged = judging.judge([again.acquitted for again in executed])
    proven: list[JudgedRank] = []
    entries: list[LedgerEntry] = []
    finals: list[FinalDifference] = []
    left: Counter[str] = Counter()
    for rank, again in zip(judged, executed, strict=True):
        known, contributions = _finals(rank, again.entries, replay, advance)
        found = with_contributions(again.entries, contributions)
        finals += known
        entries += found
        left += again.left
        proven.append(prove(replace(rank, notes=[*rank.notes, *again.cleared]), found, again.rewritten))
    if not entries and not left:
        return judged, None
    return proven, Ledger(replay, tuple(entries), tuple(finals), tuple(left.most_common()))


class Executed:
    """Calls of one rank that were executed again, each pair once, and whom that acquits."""

    def __init__(self, evidence: RankEvidence, replay: Replay, advance: Advance) -> None:
        self.left: Counter[str] = Counter()
        self.entries: list[LedgerEntry] = []
        self.acquitted: set[int] = set()
        """Rows of slots."""
        self.cleared: list[Finding] = []
        """What would have been told of them."""
        self._evidence, self._replay, self._advance = evidence, replay, advance
        self._asked: set[int] = set()
        self._rewriting = Rewriting(evidence)

    @property
    def rewritten(self) -> AbstractSet[int]:
        """The target's calls that make the same together as others do in the reference."""
        return self._rewriting.calls

    def acquits(self, rank: JudgedRank) -> bool:
        """Execute what is suspected now; whether that acquits calls that are blamed."""
        self._execute(pairs_to_replay(rank, self._replay, nearest=not self._asked))
        if self.acquitted and not rank.found and not any(entry.maker in GUILTY for entry in self.entries):
            # Nobody is left to blame: is anyone guilty?
            self._execute(pairs_to_replay(rank, Replay.ON))
        if not rank.found:
            return False
        found = acquitted_births(rank, self.entries)
        rewritten = [birth for birth in self._rewriting.acquitted(rank) if birth not in found]
        self.cleared += self._told(rank, found, rewritten)
        self.acquitted |= {birth.slot.row for birth in (*found, *rewritten)}
        return bool(found or rewritten)

    def _execute(self, pairs: Sequence[int]) -> None:
        asked = [pair for pair in pairs if pair not in self._asked]
        self._asked.update(asked)
        found = keep_ledger(self._evidence, asked, self.left, self._advance)
        self.entries = sorted([*self.entries, *found], key=lambda entry: (entry.step, entry.call_id))

    def _told(
        self, rank: JudgedRank, acquitted: Mapping[Birth, LedgerEntry], rewritten: Collection[Birth]
    ) -> list[Finding]:
        """The findings among these, each call once, with what executing it has shown."""
        known = {_key(finding) for finding in self.cleared}
        told = [each for each in rank.found if _key(each.finding) not in known]
        executed = [_with_entry(each, acquitted[each.birth]).finding for each in told if each.birth in acquitted]
        return [*executed, *(with_left(each.finding, None) for each in told if each.birth in rewritten)]


def _finals(
    rank: JudgedRank, entries: list[LedgerEntry], replay: Replay, advance: Advance
) -> tuple[list[FinalDifference], Contributions]:
    wanted = replay is Replay.ON or (
        len(rank.evidence.calls["id"]) <= SWEPT_UNASKED
        and any(entry.maker in GUILTY or entry.by_arguments is not None for entry in entries)
    )
    return final_differences(rank.evidence, advance) if wanted and entries else ([], {})


def pairs_to_replay(rank: JudgedRank, replay: Replay, *, nearest: bool = True) -> list[int]:
    """Rows of pairs of forward calls that differ, in the order of the target's calls."""
    evidence = rank.evidence
    able = [pair for pair in range(len(evidence.calls["id"])) if is_replayable(evidence, pair)]
    if replay is Replay.ON:
        return [pair for pair in able if _differs(evidence, pair)]
    chosen = _accused(evidence, rank.found) | (_nearest(evidence, rank.flow) if nearest else set())
    return [pair for pair in able if pair in chosen]


def _differs(evidence: RankEvidence, pair: int) -> bool:
    """Whether anything about the calls is not the same bits: else both runs made the same error, if any."""
    calls = [pair, evidence.backward_of.get(pair, pair)]
    return any(not evidence.values.identical[slot.values] for call in calls for slot in evidence.slots_of[call])


def _accused(evidence: RankEvidence, found: list[RankedFinding]) -> set[int]:
    """The calls of findings, those that made their operands, and those that read what they made."""
    accused = {_forward(evidence, entry.birth.slot.pair) for entry in found}
    made = {slot.values for pair in accused for slot in evidence.made(pair)}
    makers = {evidence.makers[row] for pair in accused for row in evidence.given(pair)}
    readers = {slot.pair for slot in evidence.slots if not slot.makes and slot.values in made}
    return {_forward(evidence, pair) for pair in accused | makers | readers if pair >= 0}


def _nearest(evidence: RankEvidence, flow: Flow) -> set[int]:
    scores: dict[int, float] = {}
    for slot in evidence.slots:
        expected, error = flow.expected.get(slot.row), evidence.error(slot)
        if slot.makes and expected and math.isfinite(error):
            pair = _forward(evidence, slot.pair)
            scores[pair] = max(scores.get(pair, 0.0), error / expected)
    ordered = sorted((pair for pair in scores if is_replayable(evidence, pair)), key=lambda pair: -scores[pair])
    return set(ordered[:NEAREST_REPLAYED])


def _forward(evidence: RankEvidence, pair: int) -> int:
    return evidence.forwards[pair] if evidence.forwards[pair] >= 0 else pair


def prove(rank: JudgedRank, entries: Sequence[LedgerEntry], rewritten: AbstractSet[int] = frozenset()) -> JudgedRank:
    """The rank's findings with what the ledger says of them, and those that only the ledger shows.

    `rewritten`: calls that ask for something else, and make the same together with others.
    """
    by_slot = {slot: entry for entry in entries if (slot := slot_of(rank.evidence, entry)) is not None}
    kept = [_with_proof(rank.evidence, each, by_slot) for each in rank.found]
    told = {_key(each.finding) for each in kept}
    guilty = [
        (slot, entry)
        for slot, entry in by_slot.items()
        if entry.maker in GUILTY or (_is_another_function(entry) and entry.call_id not in rewritten)
    ]
    for slot, entry in guilty:
        finding = _finding(rank.evidence, slot, entry)
        if _key(finding) not in told:
            told.add(_key(finding))
            moment = rank.evidence.calls["step"][slot.pair], rank.evidence.positions[slot.pair]
            kept.append(RankedFinding(finding, _birth(finding, slot), moment))
    return replace(rank, found=kept, table=_judged(rank.table, [slot for slot, _ in guilty], Judgement.MADE_HERE))


def _is_another_function(entry: LedgerEntry) -> bool:
    return entry.direction is Direction.FORWARD and is_told_by_arguments(entry)


def _with_proof(evidence: RankEvidence, each: RankedFinding, by_slot: Mapping[Slot, LedgerEntry]) -> RankedFinding:
    slot = each.birth.slot
    # From scaled numbers the call made the right thing: that they are scaled there is what is wrong.
    proven = each.birth.gap is None and slot in by_slot and not shows_loss_scale(evidence, slot)
    return _with_entry(each, by_slot[slot]) if proven else each


def _with_entry(each: RankedFinding, entry: LedgerEntry) -> RankedFinding:
    told = replace(each.finding.evidence, ledger=entry)
    return replace(each, finding=replace(each.finding, evidence=told))


def _key(finding: Finding) -> tuple[object, ...]:
    """A fault shows again in every step, under the same name."""
    return finding.place.call, finding.place.phase


def _finding(evidence: RankEvidence, slot: Slot, entry: LedgerEntry) -> Finding:
    dtype = entry.dtypes[0 if entry.maker is Maker.REFERENCE else 1]
    numbers = Numbers(
        measured=Measured.DATA,
        error_in=evidence.worst_error(evidence.given(slot.pair)),
        error_out=evidence.error(slot),
        dtype=dtype,
        worst=entry.worst,
        worst_values=entry.worst_values,
    )
    arguments = differing_arguments(evidence, slot.pair) if entry.by_arguments is not None else ()
    told = Evidence(numbers, Unlike(arguments=arguments), ledger=entry)
    return Finding(FindingKind.COMPUTATION, place_of(evidence, slot), told)


def _birth(finding: Finding, slot: Slot) -> Birth:
    numbers = finding.evidence.numbers
    return Birth(slot, Cause.ERROR, numbers.error_in or 0.0, numbers.error_out or 0.0, expected=0.0, gain=1.0)


def _judged(table: pl.DataFrame, slots: Sequence[Slot], judgement: Judgement) -> pl.DataFrame:
    """The table with these tensors judged so."""
    if not slots:
        return table
    return table.with_columns(judgement=table["judgement"].scatter([slot.row for slot in slots], judgement.value))
