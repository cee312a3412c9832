"""What only one run does, in words: its optimizer, a step, a gradient that it keeps, most of its calls."""

from collections.abc import Iterator

from ulpscope.records.findings import Finding, FindingKind
from ulpscope.report.words.clauses import tensor_text
from ulpscope.report.words.language import Phrases, shown_name


def cause_of(finding: Finding) -> str:
    """The word of a heading: the finding's kind, or what it is more exactly."""
    evidence = finding.evidence
    alone = evidence.history.updated_in is not None and bool(evidence.one_run.calls)
    skipped = evidence.one_run.backwards is not None and finding.kind is FindingKind.OPTIMIZER
    if skipped or alone or evidence.one_run.shifted is not None:
        return "step"
    return "model" if evidence.one_run.paired is not None else finding.kind.value


def optimizer_lead(words: Phrases, finding: Finding) -> str | None:
    """Why an update is made in one run only; nothing where both make it."""
    evidence, place = finding.evidence, finding.place
    if evidence.one_run.backwards is not None:
        made, left_out = ("reference", "target") if place.call_id is None else ("target", "reference")
        if evidence.one_run.backwards[0] == evidence.one_run.backwards[1]:
            return words.say(f"alone.{made}")
        return words.say(f"skipped.{left_out}", number=min(evidence.one_run.backwards), step=place.step)
    if evidence.history.updated_in is not None and place.call in evidence.one_run.calls:
        return words.say(f"alone.{evidence.history.updated_in}")
    if evidence.history.updated_in is not None:
        return words.say(
            f"updated.{evidence.history.updated_in}",
            names=words.names(evidence.history.parameters, total=evidence.amount.count),
        )
    if evidence.history.without_gradient is not None:
        return words.say(f"ungraded.{evidence.history.without_gradient}", parameter=tensor_text(words, finding))
    return None


def structure_lead(words: Phrases, finding: Finding) -> str | None:
    """What is built differently as a whole."""
    evidence, step = finding.evidence, finding.place.step
    if evidence.one_run.paired is not None:
        matched, calls = evidence.one_run.paired
        return words.say("paired", matched=f"{matched:,}", calls=words.count(calls, "call"))
    if evidence.one_run.backwards is not None:
        return backwards_clause(words, finding)
    if evidence.one_run.shifted:
        run, number = ("target" if evidence.one_run.shifted > 0 else "reference"), abs(evidence.one_run.shifted)
        return words.say(f"shifted.{run}", step=step, other=step + number)
    return None


def backwards_clause(words: Phrases, finding: Finding) -> str | None:
    """Of a note: over how many backwards each run adds gradients up."""
    backwards = finding.evidence.one_run.backwards
    if backwards is None:
        return None
    return words.say("backwards", reference=backwards[0], target=backwards[1])


def operand_clauses(words: Phrases, finding: Finding) -> Iterator[str]:
    """What an operand is in either run, and what a gradient still holds."""
    evidence = finding.evidence
    if evidence.operand.origins is not None:
        reference, target = map(shown_name, evidence.operand.origins)
        yield words.say("origins", reference=reference, target=target)
    if evidence.operand.given_as is not None:
        yield words.say("given_as", place=shown_name(evidence.operand.given_as))
    if evidence.history.tied is not None:
        run, name = evidence.history.tied
        yield words.say(f"tied.{run}", name=shown_name(name))
    if evidence.history.leftover is not None:
        run, step = evidence.history.leftover
        yield words.say(f"leftover.{run}", step=step)
