"""Lines of a comparison's text: what both runs began with, what was compared and how, and the error ledger.

ledger     26 calls executed again in float64
           call         module     target made  inherited  reference made  ulp  share
           gelu.3       model.b.3       6.0e-3     1.2e-3          2.0e-7   30    97%
           other calls                                                             2%
           cross_entropy.0 differs by 0.011: calls made 99.5%, inputs and parameters 0.5%; the parts add up to 100.0%
"""

from collections.abc import Iterable, Iterator
from typing import Any

from ulpscope.records.evidence import GUILTY, FinalDifference, Ledger, LedgerEntry, Maker, Replay, ledger_json
from ulpscope.records.findings import AnchorPart, Comparison, Outcome, extent_of
from ulpscope.records.pairs import Judgement, Measured
from ulpscope.report.record_json import fields_of
from ulpscope.report.words.comparison import (
    SMALLEST_SHARE,
    closes,
    largest_ulp,
    next_command,
    percent_text,
    share_of,
    share_text,
    show_trace,
)
from ulpscope.report.words.language import NAMES_SHOWN, Phrases, number_text, ranges_text, short_name, shown_name


def verdict(comparison: Comparison) -> Outcome:
    """How the comparison ended. Where not one tensor was compared nobody may read that the runs agree."""
    nothing = comparison.outcome is Outcome.AGREE and comparison.counts.tensors_compared == 0
    return Outcome.NOTHING_COMPARED if nothing else comparison.outcome


def next_commands(comparison: Comparison) -> list[str]:
    """What to type next: a look at the answer's call, or at both traces where nothing could be compared."""
    if verdict(comparison) is Outcome.NOTHING_COMPARED:
        return [show_trace(comparison.reference), show_trace(comparison.target)]
    return [next_command(finding, comparison) for finding in comparison.findings[:1]]


def anchor_lines(anchor: Iterable[AnchorPart], words: Phrases) -> list[str]:
    """What is the same in one line, then what is not."""
    same = [part for part in anchor if part.compared and part.identical == part.compared]
    others = [_anchor_line(part, words) for part in anchor if part not in same]
    names = words.listed([_anchor_name(part, words) for part in same])
    return [*([words.say("anchor.identical", names=names)] if same else []), *others]


def counts_line(comparison: Comparison, words: Phrases) -> str:
    """`1,001 calls compared (12 without a partner), distances estimated from sketches; 2,913 tensors: 401 ...`."""
    counts = comparison.counts
    calls, unmatched = words.count(counts.matched, "call"), counts.unmatched_reference + counts.unmatched_target
    told = words.say("counts.calls", calls=calls)
    if unmatched:
        told = words.say("counts.unmatched", calls=calls, unmatched=f"{unmatched:,}")
    judged = [
        words.say("counts.of", number=f"{number:,}", judgement=words.say(_judgement_key(judgement, comparison)))
        for judgement in Judgement
        if (number := getattr(counts, judgement.value))
    ]
    tensors = words.count(counts.tensors_compared, "tensor")
    how = _how(comparison, words)
    return words.say("counts.line", calls=told, how=how, tensors=tensors, judged=words.comma.join(judged) or "0")


def _judgement_key(judgement: Judgement, comparison: Comparison) -> str:
    """Where the runs agree, execution has proven no call wrong: what an estimate could not explain is no fault."""
    if judgement is Judgement.MADE_HERE and comparison.counts.made_here == 1 and _is_between(comparison):
        return "judgement.between"
    unproven = judgement is Judgement.MADE_HERE and verdict(comparison) is Outcome.AGREE
    return "judgement.unproven" if unproven else f"judgement.{judgement.value}"


def _is_between(comparison: Comparison) -> bool:
    """Whether operators that were not compared may have made what was found."""
    first = [finding.evidence for finding in comparison.findings[:1]]
    return any(evidence.span.uncompared or evidence.span.given_by is not None for evidence in first)


def extent_parts(comparison: Comparison, words: Phrases) -> list[str]:
    """`2 of 3 steps`, of whatever not all was compared."""
    extent = extent_of(comparison)
    shares = {"step": extent.steps, "rank": extent.ranks, "call": extent.calls, "tensor": extent.tensors}
    return [
        words.say("extent.share", compared=f"{share.compared:,}", whole=words.count(share.of, noun))
        for noun, share in shares.items()
        if not share.is_all
    ]


def _anchor_line(part: AnchorPart, words: Phrases) -> str:
    name = _anchor_name(part, words)
    if part.compared == 0:
        return words.say("anchor.not_compared", name=name)
    numbers = {"identical": f"{part.identical:,}", "compared": f"{part.compared:,}"}
    if part.worst is None:
        return words.say("anchor.unmeasured", name=name, **numbers)
    return words.say("anchor.differs", name=name, worst=number_text(part.worst), **numbers)


def _anchor_name(part: AnchorPart, words: Phrases) -> str:
    return words.known(f"anchor.what.{part.what}", part.what)


def _how(comparison: Comparison, words: Phrases) -> str:
    """What distances were told from; digests, which only tell identical bits, count where there is nothing else."""
    used = {measured: number for measured, number in comparison.scope.measured if number}
    telling = {measured: number for measured, number in used.items() if measured is not Measured.DIGEST} or used
    if not telling:
        return words.say("how.none")
    if len(telling) == 1:
        return words.say(f"how.{next(iter(telling)).value}")
    parts = (
        words.say("how.mixed", how=words.say(f"how.{measured.value}"), number=f"{number:,}")
        for measured, number in telling.items()
    )
    return words.clause_comma.join(parts)


def scope_lines(comparison: Comparison, words: Phrases) -> Iterator[str]:
    """What was not compared, and why."""
    scope, counts = comparison.scope, comparison.counts
    if verdict(comparison) is Outcome.NOTHING_COMPARED:
        numbers = (counts.calls_reference, counts.calls_target, counts.matched)
        reference, target, matched = (words.count(number, "call") for number in numbers)
        yield words.say("scope.calls", reference=reference, target=target, matched=matched)
    for side in ("ranks_reference", "ranks_target", "steps_reference", "steps_target"):
        if only := getattr(scope, f"{side}_only"):
            yield words.say(f"scope.{side}", numbers=ranges_text(only))
    if scope.same_run:
        yield words.say("scope.same_run")
    if scope.filters is not None:
        filters = [shown_name(text) if text else words.say("scope.no_filter") for text in scope.filters]
        yield words.say("scope.filters", reference=filters[0], target=filters[1])
    if scope.levels[0] != scope.levels[1]:
        yield words.say("scope.levels", reference=scope.levels[0], target=scope.levels[1])
    if counts.unmatched_reference or counts.unmatched_target:
        reference, target = (
            words.count(number, "call") for number in (counts.unmatched_reference, counts.unmatched_target)
        )
        yield words.say("scope.unmatched", reference=reference, target=target)
    for key, reasons in (("not_compared", scope.not_compared), ("unresolved", scope.unresolved)):
        for reason, number in reasons:
            told = words.known(f"reason.{reason}", reason)
            yield words.say(f"scope.{key}", tensors=words.count(number, "tensor"), reason=told)


ROWS_SHOWN = 5
ROWS_TOLD = 20
"""In summary.json; ledger.csv has all of them."""
FINALS_SHOWN = 3
_ENTRY_PLACE = ("rank", "step", "call", "op", "module", "place", "direction")
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
        "finals": [{**fields_of(final), "closure": final.closure} for final in ledger.finals],
        "top": [
            {**fields_of(entry, *_ENTRY_PLACE), **ledger_json(entry), "share": share_of(entry, ledger)}
            for entry in top_entries(ledger, ROWS_TOLD)
        ],
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
    shown = [entry for entry in top_entries(ledger, ROWS_SHOWN) if _is_telling(entry, ledger)]
    rows = [(entry.maker in GUILTY, _cells(entry, ledger, words)) for entry in shown]
    if len(ledger.finals) == 1 and closes(ledger.finals[0]):
        final = ledger.finals[0]
        others = (final.calls - sum(entry.contribution or 0.0 for entry in shown)) / final.difference
        rows.append((False, [words.say("ledger.others"), *[""] * 5, _share_cell(others, words)]))
    return rows


def closure_lines(ledger: Ledger, words: Phrases) -> list[str]:
    """Of what the final difference is made up."""
    told = [_closure(final, ledger, words) for final in ledger.finals[:FINALS_SHOWN]]
    left = len(ledger.finals) - len(told)
    return [*told, *([words.say("more.findings", number=f"{left:,}")] if left else [])]


def _name(of: LedgerEntry | FinalDifference, ledger: Ledger, words: Phrases) -> str:
    """A call's short name, with its step and rank beside it where these are needed."""
    name = short_name(of.call)
    if len({entry.rank for entry in ledger.entries}) > 1:
        return words.say("ledger.rank", name=name, rank=of.rank, step=of.step)
    several = len({entry.step for entry in ledger.entries}) > 1
    return words.say("ledger.step", name=name, step=of.step) if several else name


def _weight(entry: LedgerEntry) -> tuple[bool, float, float]:
    made = max(entry.made_by_target.norm, entry.made_by_reference.norm)
    return entry.maker not in GUILTY, -abs(entry.contribution or 0.0), -made


def _is_telling(entry: LedgerEntry, ledger: Ledger) -> bool:
    share = share_of(entry, ledger)
    return entry.maker in GUILTY or share is None or abs(share) >= SMALLEST_SHARE


def _reasons(ledger: Ledger, words: Phrases) -> str:
    told = [_reason(reason, number, ledger, words) for reason, number in ledger.left[:NAMES_SHOWN]]
    left = len(ledger.left) - len(told)
    return words.say("names.more", names=words.comma.join(told), left=left) if left else words.comma.join(told)


def _reason(reason: str, number: int, ledger: Ledger, words: Phrases) -> str:
    told = words.known(f"reason.{reason}", reason)
    return told if len(ledger.left) == 1 else words.say("ledger.reason", reason=told, number=f"{number:,}")


def _cells(entry: LedgerEntry, ledger: Ledger, words: Phrases) -> list[str]:
    name, share = _name(entry, ledger, words), share_of(entry, ledger)
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


def _closure(final: FinalDifference, ledger: Ledger, words: Phrases) -> str:
    parts = {"call": _name(final, ledger, words), "difference": number_text(final.difference)}
    closure = percent_text(final.closure or 0.0)
    if not closes(final):
        return words.say("ledger.open", closure=closure, **parts)
    parts_of = {"calls": final.calls, "start": final.start, **({"unseen": final.unseen} if final.unseen else {})}
    told = [words.say(f"part.{name}", share=percent_text(part / final.difference)) for name, part in parts_of.items()]
    return words.say("ledger.closure", closure=closure, parts=words.clause_comma.join(told), **parts)
