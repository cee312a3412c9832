"""What executing calls again has shown, each piece in words.

Executed again in float64 from each run's own inputs: the target made 6.0e-3 itself (at [5, 7] 0.0874023 instead of
0.0726068, 30 ulp), inherited 1.2e-3, the reference made 2.0e-7.
"""

import math
from collections.abc import Iterator

import numpy as np

from ulpscope.judge.soundness.grid import Grid
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.ledger import GUILTY, FinalDifference, Ledger, LedgerEntry, Maker
from ulpscope.report.words.language import Phrases, element_text, number_text, short_name

# Shares are told to first order: where the parts do not add up to the whole, that order does not describe it.
CLOSES = (0.9, 1.1)
SMALLEST_SHARE = 0.01
# A part that is larger than the whole by this factor has others against it.
CANCELLED = 1.5


def ledger_clauses(phrases: Phrases, entry: LedgerEntry, ledger: Ledger | None) -> Iterator[str]:
    """Who made the difference, why that is no rounding, and what it did to the end."""
    yield _proof(phrases, entry)
    if entry.maker in GUILTY:
        yield from _reasons(phrases, entry)
    if entry.maker in GUILTY or entry.by_arguments is not None:
        yield from _effect(phrases, entry, ledger)


def share_of(entry: LedgerEntry, ledger: Ledger | None) -> float | None:
    """What the call's own error is of the final difference; none where that cannot be told to first order."""
    final = _final(entry, ledger)
    if entry.contribution is None or final is None or not closes(final):
        return None
    return entry.contribution / final.difference


def closes(final: FinalDifference) -> bool:
    """Whether the parts of a final difference add up to it."""
    return final.closure is not None and CLOSES[0] <= final.closure <= CLOSES[1]


def share_text(phrases: Phrases, share: float) -> str:
    """`97%`, `-12%`, `less than 1%`."""
    return phrases.say("share.small") if abs(share) < SMALLEST_SHARE else percent_text(share, digits=0)


def percent_text(share: float, *, digits: int = 1) -> str:
    """`99.5%`; not `-0.0%`."""
    return f"{round(100 * share, digits) + 0.0:,.{digits}f}%"


def largest_ulp(entry: LedgerEntry) -> float:
    """The largest error of an element of what was made, in ulp."""
    if entry.maker is Maker.REFERENCE:
        return entry.made_by_reference.worst
    return max(entry.made_by_target.worst, _element_ulp(entry) or 0.0)


def _final(entry: LedgerEntry, ledger: Ledger | None) -> FinalDifference | None:
    finals = () if ledger is None else ledger.finals
    return next((final for final in finals if (final.rank, final.step) == (entry.rank, entry.step)), None)


def _proof(phrases: Phrases, entry: LedgerEntry) -> str:
    parts = {
        "target": number_text(entry.made_by_target.norm),
        "inherited": number_text(entry.inherited.norm),
        "reference": number_text(entry.made_by_reference.norm),
    }
    if entry.maker not in GUILTY and entry.by_arguments is not None:
        return phrases.say("proof.arguments", arguments=number_text(entry.by_arguments.norm), **parts)
    if entry.maker not in GUILTY:
        return phrases.say(f"proof.{entry.maker.value}", **parts)
    told = phrases.say(f"proof.{entry.maker.value}", worst=_worst(phrases, entry), **parts)
    if entry.by_arguments is None:
        return told
    return phrases.say("proof.and_arguments", proof=told, arguments=number_text(entry.by_arguments.norm))


def _worst(phrases: Phrases, entry: LedgerEntry) -> str:
    # Of what the reference made, the entry has no element.
    if entry.maker is not Maker.TARGET or not entry.worst or entry.worst_values is None:
        return ""
    computed, exact = map(element_text, entry.worst_values)
    told, ulp = {"index": list(entry.worst), "computed": computed, "exact": exact}, _element_ulp(entry)
    if ulp is None:
        return phrases.say("proof.worst", **told)
    return phrases.say("proof.worst_ulp", ulp=number_text(ulp), **told)


def _element_ulp(entry: LedgerEntry) -> float | None:
    """The error of the element that is told, in distances of the numbers beside it."""
    known = DTYPES.get(entry.dtypes[1])
    if entry.worst_values is None or known is None or not known.unit_roundoff:
        return None
    computed, exact = entry.worst_values
    if not (math.isfinite(computed) and math.isfinite(exact)):
        return None
    grid = Grid.of(known.name)
    return abs(computed - exact) / float(grid.spacing(grid.exponents(np.array([abs(exact)])))[0])


def _reasons(phrases: Phrases, entry: LedgerEntry) -> Iterator[str]:
    why = phrases.templates.get(f"why.{entry.statistic}") if entry.maker is Maker.TARGET else None
    native = phrases.say("proof.not_native")
    yield native if why is None else phrases.semicolon.join((why, native))


def _effect(phrases: Phrases, entry: LedgerEntry, ledger: Ledger | None) -> Iterator[str]:
    share, final = share_of(entry, ledger), _final(entry, ledger)
    if share is None or final is None:
        return
    whole = phrases.say("final", difference=number_text(final.difference), call=short_name(final.call))
    key = "share.of" if share >= 0 or abs(share) < SMALLEST_SHARE else "share.against"
    key = "share.cancelled" if abs(share) > CANCELLED else key
    yield phrases.say(key, share=share_text(phrases, share), final=whole)
