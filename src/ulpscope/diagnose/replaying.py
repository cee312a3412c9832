"""Executes calls of two runs again, as many as are worth it: that confirms findings, clears them, or adds others."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from ulpscope.diagnose.arguments import differing_arguments
from ulpscope.diagnose.findings import JudgedRank, RankedFinding
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.states import Birth, Cause, Flow
from ulpscope.diagnose.flow.unpaired import has_unknown_operand
from ulpscope.diagnose.ledger import (
    Advance,
    Contributions,
    final_differences,
    is_replayable,
    keep_ledger,
    with_contributions,
)
from ulpscope.diagnose.limits import LAST_BITS, NEAREST_REPLAYED, SWEPT_UNASKED, TELLING_ARGUMENT
from ulpscope.diagnose.places import place_of
from ulpscope.judge.rounding.limits import unit_roundoff
from ulpscope.records.checks import GRADIENT, Direction
from ulpscope.records.enums import Role
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


def replay_ranks(
    judged: Sequence[JudgedRank], replay: Replay, advance: Advance
) -> tuple[list[JudgedRank], Ledger | None]:
    """The ranks with their findings proven or cleared, and the ledger."""
    left: Counter[str] = Counter()
    proven: list[JudgedRank] = []
    entries: list[LedgerEntry] = []
    finals: list[FinalDifference] = []
    for rank in judged:
        found = _entries(rank, replay, left, advance)
        known, contributions = _finals(rank, found, replay, advance)
        found = with_contributions(found, contributions)
        finals += known
        entries += found
        judged_again = prove(rank, found)
        proven.append(replace(judged_again, table=cleared(judged_again, found)))
    if not entries and not left:
        return list(judged), None
    return proven, Ledger(replay, tuple(entries), tuple(finals), tuple(left.most_common()))


def _entries(rank: JudgedRank, replay: Replay, left: Counter[str], advance: Advance) -> list[LedgerEntry]:
    """Of the suspects; of all calls, if those are cleared and nobody else is guilty."""
    chosen = pairs_to_replay(rank.evidence, rank.flow, rank.found, replay)
    found = keep_ledger(rank.evidence, chosen, left, advance)
    if replay is not Replay.AUTO or not rank.found or any(entry.maker in GUILTY for entry in found):
        return found
    if len(prove(rank, found).found) == len(rank.found):
        return found
    others = [pair for pair in pairs_to_replay(rank.evidence, rank.flow, [], Replay.ON) if pair not in set(chosen)]
    return sorted(
        [*found, *keep_ledger(rank.evidence, others, left, advance)], key=lambda entry: (entry.step, entry.call_id)
    )


def _finals(
    rank: JudgedRank, entries: list[LedgerEntry], replay: Replay, advance: Advance
) -> tuple[list[FinalDifference], Contributions]:
    wanted = replay is Replay.ON or (
        len(rank.evidence.calls["id"]) <= SWEPT_UNASKED
        and any(entry.maker in GUILTY or entry.by_arguments is not None for entry in entries)
    )
    return final_differences(rank.evidence, advance) if wanted and entries else ([], {})


def pairs_to_replay(evidence: RankEvidence, flow: Flow, found: list[RankedFinding], replay: Replay) -> list[int]:
    """Rows of pairs of forward calls that differ, in the order of the target's calls."""
    able = [pair for pair in range(len(evidence.calls["id"])) if is_replayable(evidence, pair)]
    if replay is Replay.ON:
        return [pair for pair in able if _differs(evidence, pair)]
    chosen = _accused(evidence, found) | _nearest(evidence, flow)
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


def prove(rank: JudgedRank, entries: Sequence[LedgerEntry]) -> JudgedRank:
    """The rank's findings with what the ledger says of them; what it clears is a note."""
    known = [_with_entry(rank.evidence, each, entries) for each in rank.found]
    # Execution has shown that the blamed call did nothing wrong, and what it was given is accounted for.
    cleared_calls = [each for each in known if _did_nothing_wrong(each)]
    innocent = [each for each in cleared_calls if not has_unknown_operand(rank.evidence, each.birth.slot.pair)]
    kept = [each for each in known if each not in innocent]
    told = {_key(each.finding) for each in kept}
    guilty = [
        (slot, entry)
        for entry in entries
        if (entry.maker in GUILTY or _is_another_function(entry)) and (slot := _slot(rank.evidence, entry))
    ]
    for slot, entry in guilty:
        finding = _finding(rank.evidence, slot, entry)
        if _key(finding) not in told:
            told.add(_key(finding))
            moment = rank.evidence.calls["step"][slot.pair], rank.evidence.positions[slot.pair]
            kept.append(RankedFinding(finding, _birth(finding, slot), moment))
    table = _judged(rank.table, [slot for slot, _ in guilty], Judgement.MADE_HERE)
    return replace(
        rank,
        found=kept,
        notes=[*rank.notes, *(each.finding for each in innocent)],
        table=_judged(table, [each.birth.slot for each in innocent], Judgement.INHERITED),
    )


def cleared(rank: JudgedRank, entries: Sequence[LedgerEntry]) -> pl.DataFrame:
    """The table of a rank; where execution has cleared all that was found, it has cleared its other calls, too."""
    ids, forwards = rank.evidence.calls["id"], rank.evidence.calls["forward"]
    executed = {entry.call_id for entry in entries} if not rank.found else set()
    slots = [birth.slot for birth in rank.flow.births]
    return _judged(rank.table, [s for s in slots if {ids[s.pair], forwards[s.pair]} & executed], Judgement.INHERITED)


def _is_another_function(entry: LedgerEntry) -> bool:
    """Whether arguments that differ change the result by more than their own last bits could."""
    if entry.by_arguments is None or entry.direction is not Direction.FORWARD:
        return False
    coarsest = max(unit_roundoff(dtype) for dtype in entry.dtypes)
    return entry.by_arguments.norm > max(coarsest * TELLING_ARGUMENT, LAST_BITS)


def _did_nothing_wrong(each: RankedFinding) -> bool:
    entry, evidence = each.finding.evidence.ledger, each.finding.evidence
    blamed_for_numbers = (
        each.finding.kind is FindingKind.COMPUTATION
        and each.birth.cause is Cause.ERROR
        and not (evidence.unlike.arguments or evidence.one_run.calls or evidence.unlike.classes)
    )
    return entry is not None and blamed_for_numbers and entry.maker is Maker.NEITHER and entry.by_arguments is None


def _with_entry(evidence: RankEvidence, each: RankedFinding, entries: Sequence[LedgerEntry]) -> RankedFinding:
    of_it = (entry for entry in entries if _slot(evidence, entry) == each.birth.slot)
    entry = next(of_it, None) if each.birth.gap is None else None
    if entry is None:
        return each
    told = replace(each.finding.evidence, ledger=entry)
    return replace(each, finding=replace(each.finding, evidence=told))


def _key(finding: Finding) -> tuple[object, ...]:
    """A fault shows again in every step, under the same name."""
    return finding.place.call, finding.place.phase


def _slot(evidence: RankEvidence, entry: LedgerEntry) -> Slot | None:
    """The tensor of the comparison that an entry is about."""
    pair = evidence.pair_of_target.get(entry.call_id)
    if pair is None:
        return None
    if entry.direction is Direction.FORWARD:
        return next((slot for slot in evidence.made(pair) if slot.place == entry.place), None)
    backward, place = evidence.backward_of.get(pair, -1), entry.place.removeprefix(GRADIENT)
    return next(iter(evidence.at_place.get((backward, Role.GRAD_INPUT.value, place), [])), None)


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
