"""The error ledger of a comparison: how many calls were executed again, which made most, and whether it adds up.

ledger     26 calls executed again in float64
           call         module     target made  inherited  reference made  ulp  share
           gelu.3       model.b.3       6.0e-3     1.2e-3          2.0e-7   30    97%
           other calls                                                             2%
           cross_entropy.0 differs by 0.011: calls made 99.5%, inputs and parameters 0.5%; the parts add up to 100.0%
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ulpscope.records.ledger import GUILTY, FinalDifference, Ledger, LedgerEntry, Maker, Replay, ledger_json
from ulpscope.report.words.language import NAMES_SHOWN, Phrases, number_text, shown_name
from ulpscope.report.words.ledger_clauses import (
    SMALLEST_SHARE,
    closes,
    largest_ulp,
    percent_text,
    share_of,
    share_text,
    short_name,
)

ROWS_SHOWN = 5
ROWS_TOLD = 20
"""In summary.json; ledger.csv has all of them."""
FINALS_SHOWN = 3
COLUMNS = ("call", "module", "target", "inherited", "reference", "ulp", "share")


def top_entries(ledger: Ledger, number: int) -> list[LedgerEntry]:
    """One entry a call: the guilty ones, then what adds most to the final difference, then what made most."""
    best: dict[tuple[int, int], LedgerEntry] = {}
    for entry in sorted(ledger.entries, key=_weight):
        best.setdefault((entry.rank, entry.call_id), entry)
    return list(best.values())[:number]


def ledger_object(ledger: Ledger | None) -> dict[str, Any] | None:
    """The ledger as it stands in summary.json."""
    if ledger is None:
        return None
    return {
        "replay": ledger.replay,
        "calls": ledger.calls,
        "entries": len(ledger.entries),
        "left": dict(ledger.left),
        "finals": [{**asdict(final), "closure": final.closure} for final in ledger.finals],
        "top": [_told(entry, ledger) for entry in top_entries(ledger, ROWS_TOLD)],
    }


def executed_lines(ledger: Ledger, words: Phrases) -> Iterator[str]:
    """How many calls were executed again, and what of them is no run's fault."""
    if not ledger.calls:
        yield words.say("ledger.none", reasons=_reasons(ledger, words))
        return
    sound = all(entry.maker is Maker.NEITHER for entry in ledger.entries)
    told = words.say("ledger.sound" if sound else "ledger.executed", calls=words.count(ledger.calls, "call"))
    if left := sum(number for _, number in ledger.left):
        told = words.say("ledger.left", told=told, calls=words.count(left, "call"), reasons=_reasons(ledger, words))
    unasked = ledger.replay is Replay.AUTO and not is_guilty(ledger)
    yield words.say("ledger.auto", told=told) if unasked else told
    for maker in (Maker.BOTH, Maker.KERNEL):
        names = list(dict.fromkeys(short_name(entry.call) for entry in ledger.entries if entry.maker is maker))
        if names:
            yield words.say(f"ledger.{maker.value}", names=words.names(names))


def is_guilty(ledger: Ledger) -> bool:
    """Whether some call of either run is wrong by itself."""
    return any(entry.maker in GUILTY for entry in ledger.entries)


def ledger_rows(ledger: Ledger, words: Phrases) -> list[tuple[bool, list[str]]]:
    """The calls that made most, a cell a column; whether each is guilty. Then the share of all others."""
    several = Several(ledger)
    shown = [entry for entry in top_entries(ledger, ROWS_SHOWN) if _is_telling(entry, ledger)]
    rows = [(entry.maker in GUILTY, _cells(entry, ledger, several, words)) for entry in shown]
    others = _others(shown, ledger)
    if others is not None:
        rows.append((False, [words.say("ledger.others"), *[""] * 5, _share_cell(others, words)]))
    return rows


def closure_lines(ledger: Ledger, words: Phrases) -> list[str]:
    """Of what the final difference is made up."""
    several = Several(ledger)
    told = [_closure(final, several, words) for final in ledger.finals[:FINALS_SHOWN]]
    left = len(ledger.finals) - len(told)
    return [*told, *([words.say("more.findings", number=f"{left:,}")] if left else [])]


class Several:
    """Whether a call's short name needs its step and rank beside it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ranks = len({entry.rank for entry in ledger.entries}) > 1
        self._steps = len({entry.step for entry in ledger.entries}) > 1

    def name(self, of: LedgerEntry | FinalDifference, words: Phrases) -> str:
        name = short_name(of.call)
        if self._ranks:
            return words.say("ledger.rank", name=name, rank=of.rank, step=of.step)
        return words.say("ledger.step", name=name, step=of.step) if self._steps else name


def _weight(entry: LedgerEntry) -> tuple[bool, float, float]:
    made = max(entry.made_by_target.norm, entry.made_by_reference.norm)
    return entry.maker not in GUILTY, -abs(entry.contribution or 0.0), -made


def _is_telling(entry: LedgerEntry, ledger: Ledger) -> bool:
    share = share_of(entry, ledger)
    return entry.maker in GUILTY or share is None or abs(share) >= SMALLEST_SHARE


def _others(shown: list[LedgerEntry], ledger: Ledger) -> float | None:
    """What all calls but these add to the final difference, where there is one."""
    if len(ledger.finals) != 1 or not closes(ledger.finals[0]):
        return None
    final = ledger.finals[0]
    return (final.calls - sum(entry.contribution or 0.0 for entry in shown)) / final.difference


def _told(entry: LedgerEntry, ledger: Ledger) -> dict[str, Any]:
    place = {name: getattr(entry, name) for name in ("rank", "step", "call", "op", "module", "place", "direction")}
    return {**place, **ledger_json(entry), "share": share_of(entry, ledger)}


def _reasons(ledger: Ledger, words: Phrases) -> str:
    told = [_reason(reason, number, ledger, words) for reason, number in ledger.left[:NAMES_SHOWN]]
    left = len(ledger.left) - len(told)
    return words.say("names.more", names=words.comma.join(told), left=left) if left else words.comma.join(told)


def _reason(reason: str, number: int, ledger: Ledger, words: Phrases) -> str:
    told = words.templates.get(f"reason.{reason}", shown_name(reason))
    return told if len(ledger.left) == 1 else words.say("ledger.reason", reason=told, number=f"{number:,}")


def _cells(entry: LedgerEntry, ledger: Ledger, several: Several, words: Phrases) -> list[str]:
    name, share = several.name(entry, words), share_of(entry, ledger)
    return [
        name if entry.place == "output.0" else f"{name} {shown_name(entry.place)}",
        shown_name(entry.module or ""),
        number_text(entry.made_by_target.norm),
        number_text(entry.inherited.norm),
        number_text(entry.made_by_reference.norm),
        number_text(largest_ulp(entry)),
        "" if share is None else _share_cell(share, words),
    ]


def _share_cell(share: float, words: Phrases) -> str:
    return words.say("ledger.small") if abs(share) < SMALLEST_SHARE else share_text(words, share)


def _closure(final: FinalDifference, several: Several, words: Phrases) -> str:
    parts = {"call": several.name(final, words), "difference": number_text(final.difference)}
    closure = percent_text(final.closure or 0.0)
    if not closes(final):
        return words.say("ledger.open", closure=closure, **parts)
    told = [words.say(f"part.{name}", share=percent_text(share)) for name, share in _part_shares(final)]
    return words.say("ledger.closure", closure=closure, parts=words.clause_comma.join(told), **parts)


def _part_shares(final: FinalDifference) -> Iterator[tuple[str, float]]:
    yield "calls", final.calls / final.difference
    yield "start", final.start / final.difference
    if final.unseen:
        yield "unseen", final.unseen / final.difference
