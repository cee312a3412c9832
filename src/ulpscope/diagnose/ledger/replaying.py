"""Executes calls of two runs again, as many as are worth it, and lets the findings rest on what that shows."""

from collections import Counter
from collections.abc import Sequence

from ulpscope.diagnose.findings import JudgedRank
from ulpscope.diagnose.ledger.booking import Advance, keep_ledger
from ulpscope.diagnose.ledger.contributions import Contributions, final_differences, with_contributions
from ulpscope.diagnose.ledger.proven_findings import GUILTY, prove
from ulpscope.diagnose.ledger.suspects import pairs_to_replay
from ulpscope.diagnose.limits import SWEPT_UNASKED
from ulpscope.records.ledger import FinalDifference, Ledger, LedgerEntry, Replay


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
        proven.append(prove(rank, found))
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
