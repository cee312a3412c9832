"""Single lines of a comparison's text: what both runs began with, what was compared and how, what was left out."""

from collections.abc import Iterable, Iterator

from ulpscope.records.findings import AnchorPart, Comparison, Outcome, extent_of
from ulpscope.records.pairs import Judgement, Measured
from ulpscope.report.words.comparison import next_command, show_trace
from ulpscope.report.words.language import Phrases, number_text, shown_name
from ulpscope.report.words.quantities import ranges_text


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


def scope_lines(comparison: Comparison, words: Phrases) -> list[str]:
    """What was not compared, and why."""
    nothing = verdict(comparison) is Outcome.NOTHING_COMPARED
    return [*(_call_lines(comparison, words) if nothing else ()), *_one_sided(comparison, words)]


def _anchor_line(part: AnchorPart, words: Phrases) -> str:
    name = _anchor_name(part, words)
    if part.compared == 0:
        return words.say("anchor.not_compared", name=name)
    numbers = {"identical": f"{part.identical:,}", "compared": f"{part.compared:,}"}
    if part.worst is None:
        return words.say("anchor.unmeasured", name=name, **numbers)
    return words.say("anchor.differs", name=name, worst=number_text(part.worst), **numbers)


def _anchor_name(part: AnchorPart, words: Phrases) -> str:
    return words.templates.get(f"anchor.what.{part.what}", shown_name(part.what))


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


def _call_lines(comparison: Comparison, words: Phrases) -> Iterator[str]:
    counts = comparison.counts
    numbers = (counts.calls_reference, counts.calls_target, counts.matched)
    reference, target, matched = (words.count(number, "call") for number in numbers)
    yield words.say("scope.calls", reference=reference, target=target, matched=matched)


def _one_sided(comparison: Comparison, words: Phrases) -> Iterator[str]:
    scope, counts = comparison.scope, comparison.counts
    for side, numbers in (
        ("ranks_reference", scope.ranks_reference_only),
        ("ranks_target", scope.ranks_target_only),
        ("steps_reference", scope.steps_reference_only),
        ("steps_target", scope.steps_target_only),
    ):
        if numbers:
            yield words.say(f"scope.{side}", numbers=ranges_text(numbers))
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
    for reason, number in scope.not_compared:
        told = words.templates.get(f"reason.{reason}", shown_name(reason))
        yield words.say("scope.not_compared", tensors=words.count(number, "tensor"), reason=told)
    for reason, number in scope.unresolved:
        told = words.templates.get(f"reason.{reason}", shown_name(reason))
        yield words.say("scope.unresolved", tensors=words.count(number, "tensor"), reason=told)
