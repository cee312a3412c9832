"""The evidence of a finding, each piece in words: clauses without an end, of which words.py makes sentences.

What only one run does, in words: its optimizer, a step, a gradient that it keeps, most of its calls.
"""

import math
from collections.abc import Iterator

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.enums import Phase
from ulpscope.records.evidence import ArgumentDifference
from ulpscope.records.findings import Finding, FindingKind
from ulpscope.records.pairs import Measured
from ulpscope.report.words.language import NAMES_SHOWN, Phrases, element_text, number_text, shown_name

# Rounding errors of a few calls add up before anyone would call it more than rounding.
ROUNDINGS = 16
RATIOS_TOLD = (2.0, 1e6)
LONGEST_ARGUMENT = 100
_HAS_DISTANCE = (
    FindingKind.COMPUTATION,
    FindingKind.OPTIMIZER,
    FindingKind.INPUT,
    FindingKind.PARAMETER,
    FindingKind.RANDOMNESS,
)


def tensor_text(phrases: Phrases, finding: Finding) -> str:
    """What the finding is about, as a part of its call."""
    name, phase = finding.place.tensor, finding.place.phase
    if finding.evidence.operand.shown is not None and name is not None:
        return phrases.say(_shown_key(finding.evidence.operand.shown, name), name=shown_name(name))
    if _is_instead(finding):
        return phrases.say("tensor.instead")
    if finding.kind is FindingKind.INPUT and not (name or "").startswith("output"):
        return phrases.say("tensor.input", name=shown_name(name)) if name else phrases.say("tensor.any_input")
    if finding.kind in (FindingKind.OPTIMIZER, FindingKind.PARAMETER):
        return phrases.say("tensor.parameter", name=shown_name(name)) if name else phrases.say("tensor.any_parameter")
    if name is None or name in ("output", "output.0"):
        return phrases.say("tensor.output")
    is_argument = name.split(".", 1)[0] in ("args", "kwargs")
    if not is_argument:
        return phrases.say("tensor.named", name=shown_name(name))
    key = "tensor.gradient" if phase is Phase.BACKWARD else "tensor.handed"
    return phrases.say(key, name=shown_name(name))


def _shown_key(shown: str, name: str) -> str:
    if shown == "summed":
        return "tensor.gradient"
    return "tensor.incoming" if name.startswith("output") else "tensor.handed"


def _is_instead(finding: Finding) -> bool:
    """Whether it is about the result of a call that only the reference makes: something else stands in its place."""
    place = finding.place
    made = place.tensor is None or place.tensor.startswith("output")
    return finding.kind is FindingKind.COMPUTATION and place.call is not None and place.call_id is None and made


def inputs_clause(phrases: Phrases, finding: Finding) -> str | None:
    """How far the inputs agree."""
    error, dtype = _before(finding), finding.evidence.numbers.dtype
    if error is None:
        return None
    inputs = phrases.say(_inputs_key(finding))
    if not math.isfinite(error):
        return phrases.say("in.unmeasured", inputs=inputs)
    if error == 0:
        return phrases.say("in.identical", inputs=inputs)
    if dtype is not None and error <= _rounding(dtype):
        return phrases.say("in.rounding", inputs=inputs, dtype=shown_name(dtype), error=number_text(error))
    return phrases.say("in.differ", inputs=inputs, error=number_text(error))


def inputs_exceed_rounding(finding: Finding) -> bool:
    """Whether the inputs are known to differ by more than a few roundings of their type."""
    error, dtype = _before(finding), finding.evidence.numbers.dtype
    return error is not None and dtype is not None and error > _rounding(dtype)


def _before(finding: Finding) -> float | None:
    """The error of the inputs; where these were not compared, of what was compared before them."""
    return finding.evidence.span.error_before if finding.evidence.span.uncompared else finding.evidence.numbers.error_in


def _inputs_key(finding: Finding) -> str:
    if finding.evidence.span.uncompared:
        return "inputs.nearest"
    if finding.kind is FindingKind.OPTIMIZER:
        return "inputs.update"
    if finding.evidence.operand.unknown_input:
        return "inputs.compared"
    return f"inputs.{finding.evidence.operand.shown or 'call'}"


def output_clause(phrases: Phrases, finding: Finding) -> str | None:
    """How far the output differs."""
    error = finding.evidence.numbers.error_out
    tensor = tensor_text(phrases, finding)
    if error is None:
        return phrases.say("out.different", tensor=tensor) if _differs_unmeasured(finding) else None
    if not math.isfinite(error):
        return phrases.say("out.unmeasured", tensor=tensor)
    if error == 0:
        return phrases.say("out.identical", tensor=tensor)
    return phrases.say("out.differs", tensor=tensor, error=number_text(error))


def _differs_unmeasured(finding: Finding) -> bool:
    """Whether only that it differs is known: by digests, or of integers, which have no distance."""
    evidence = finding.evidence
    told = evidence.unlike.shapes is None and evidence.overflow.not_finite is None
    measured = evidence.numbers.measured in (Measured.DIGEST, Measured.DATA)
    return told and finding.kind is FindingKind.COMPUTATION and measured


def distance_clause(phrases: Phrases, finding: Finding, *, key: str = "distance") -> str | None:
    """The distance alone, of what has been named already."""
    error = finding.evidence.numbers.error_out
    return phrases.say(key, error=number_text(error)) if error and math.isfinite(error) else None


def span_clauses(phrases: Phrases, finding: Finding) -> Iterator[str]:
    """Which operators of a network were not compared, so that others may have made the difference."""
    evidence = finding.evidence
    if evidence.span.uncompared:
        yield phrases.say("span", names=phrases.names(evidence.span.uncompared))
    if evidence.span.given_by is not None:
        yield phrases.say("given_by", name=shown_name(evidence.span.given_by))
    if evidence.span.seen_at is not None:
        yield phrases.say("seen_at", tensor=shown_name(evidence.span.seen_at))


def errors_clause(phrases: Phrases, finding: Finding) -> str | None:
    """Inputs and output in one breath."""
    parts = [inputs_clause(phrases, finding), output_clause(phrases, finding)]
    return _after_comma(phrases, [part for part in parts if part is not None]) or None


def blaming_clause(phrases: Phrases, finding: Finding) -> str | None:
    """Inputs and output, and how much more the output differs than it should."""
    told = errors_clause(phrases, finding)
    return None if told is None else _after_comma(phrases, [told, *_beside(phrases, finding)])


def is_explained(finding: Finding) -> bool:
    """Whether rounding and the inputs' errors account for all of the output's."""
    error, expected = finding.evidence.numbers.error_out, finding.evidence.numbers.expected
    return error is not None and expected is not None and error <= expected


def is_scaled(finding: Finding) -> bool:
    """Whether there is a factor between the runs that can be told."""
    return finding.evidence.numbers.scale is not None and math.isfinite(finding.evidence.numbers.scale)


def _beside(phrases: Phrases, finding: Finding) -> Iterator[str]:
    """The ratio to what came in, where it says something; else what would be explained."""
    error, came_in, expected = (
        finding.evidence.numbers.error_out,
        finding.evidence.numbers.error_in,
        finding.evidence.numbers.expected,
    )
    if not error or not math.isfinite(error):
        return
    ratio = error / came_in if came_in and math.isfinite(came_in) else math.inf
    if RATIOS_TOLD[0] <= ratio < RATIOS_TOLD[1]:
        yield phrases.say("out.ratio", ratio=number_text(ratio))
    elif expected is not None and math.isfinite(expected) and expected < error:
        yield phrases.say(_expected_key(finding), expected=number_text(expected))


def _expected_key(finding: Finding) -> str:
    evidence = finding.evidence
    if _before(finding) is None and (evidence.span.uncompared or evidence.operand.unknown_input):
        return "out.expected.alone"
    own = evidence.operand.shown is None and not evidence.span.uncompared
    return "out.expected" if own else "out.expected.shown"


def not_finite_clause(phrases: Phrases, finding: Finding) -> str | None:
    """How many elements are inf or nan."""
    counts = finding.evidence.overflow.not_finite
    if counts is None or not any(counts):
        return None
    reference, target = (
        phrases.count(count, "element") if count else phrases.say("not_finite.none") for count in counts
    )
    parts = {"tensor": tensor_text(phrases, finding), "target": target}
    if counts[0] == counts[1]:
        return phrases.say("not_finite.both", **parts)
    return phrases.say("not_finite", reference=reference, **parts)


def extremes_clause(phrases: Phrases, finding: Finding) -> str | None:
    """How near the numbers came to the end of their type."""
    extremes, dtype = finding.evidence.overflow.extremes, finding.evidence.numbers.dtype
    if extremes is None or None in extremes:
        return None
    reference, target = (element_text(extreme) for extreme in extremes if extreme is not None)
    told = phrases.say("extremes", reference=reference, target=target)
    known = None if dtype is None else DTYPES.get(dtype)
    if known is None or not known.largest:
        return told
    return phrases.say("largest", extremes=told, dtype=known.name, largest=element_text(known.largest))


def arguments_clause(phrases: Phrases, finding: Finding) -> str | None:
    """Arguments that differ, or settings of an optimizer."""
    differences = finding.evidence.unlike.arguments
    if not differences:
        return None
    word = "setting" if finding.kind is FindingKind.OPTIMIZER else "argument"
    texts = [_argument(phrases, difference) for difference in differences[:NAMES_SHOWN]]
    if len(differences) == 1:
        return phrases.say(f"differs.{word}.one", list=texts[0])
    joined, left = phrases.semicolon.join(texts), len(differences) - len(texts)
    listed = phrases.say("names.more", names=joined, left=left) if left else joined
    return phrases.say(f"differs.{word}.many", number=len(differences), list=listed)


def two_sided_clauses(phrases: Phrases, finding: Finding) -> Iterator[str]:
    """What has another class, shape or dtype in the other run."""
    evidence, tensor = finding.evidence, tensor_text(phrases, finding)
    if evidence.unlike.classes is not None:
        reference, target = map(shown_name, evidence.unlike.classes)
        yield phrases.say("classes", reference=reference, target=target)
    if evidence.unlike.shapes is not None:
        reference, target = (str(list(shape)) for shape in evidence.unlike.shapes)
        yield phrases.say("shapes", tensor=tensor, reference=reference, target=target)
    if evidence.unlike.dtypes is not None:
        reference, target = map(shown_name, evidence.unlike.dtypes)
        yield phrases.say("dtypes", tensor=tensor, reference=reference, target=target)


def only_clauses(phrases: Phrases, finding: Finding) -> Iterator[str]:
    """Calls that one run makes and the other does not."""
    evidence = finding.evidence
    if evidence.one_run.only_reference:
        yield phrases.say("only.reference", names=phrases.names(evidence.one_run.only_reference))
    if evidence.one_run.only_target:
        yield phrases.say("only.target", names=phrases.names(evidence.one_run.only_target))


def generators_clause(phrases: Phrases, finding: Finding) -> str | None:
    """The states that random numbers were drawn from, where they are not the same."""
    states = finding.evidence.unlike.generators
    if states is None or states[0] == states[1]:
        return None
    reference, target = map(shown_name, states)
    return phrases.say("generators", reference=reference, target=target)


def detail_clauses(phrases: Phrases, finding: Finding) -> Iterator[str]:
    """What comes last: the factor between the runs, the same operation elsewhere, one element, how it is known."""
    evidence = finding.evidence
    if evidence.numbers.scale is not None and is_scaled(finding):
        yield phrases.say("scale", scale=element_text(evidence.numbers.scale))
    if evidence.numbers.peers is not None and math.isfinite(evidence.numbers.peers):
        yield phrases.say("peers", peers=number_text(evidence.numbers.peers))
    if evidence.ledger is None and evidence.numbers.worst is not None and evidence.numbers.worst_values is not None:
        computed, exact = map(element_text, evidence.numbers.worst_values)
        yield phrases.say("worst", index=list(evidence.numbers.worst), computed=computed, exact=exact)
    if (
        finding.kind in _HAS_DISTANCE
        and evidence.numbers.measured is Measured.DIGEST
        and evidence.numbers.error_out is None
    ):
        yield phrases.say("digests")


def _argument(phrases: Phrases, difference: ArgumentDifference) -> str:
    texts = (shown_name(text, longest=LONGEST_ARGUMENT) for text in (difference.reference, difference.target))
    reference, target = (text or phrases.say("argument.absent") for text in texts)
    place = shown_name(difference.place.removeprefix("kwargs."))
    return phrases.say("argument", place=place, reference=reference, target=target)


def _after_comma(phrases: Phrases, parts: list[str]) -> str:
    return phrases.clause_comma.join(parts)


def _rounding(dtype: str) -> float:
    known = DTYPES.get(dtype)
    return 0.0 if known is None else ROUNDINGS * known.unit_roundoff


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
