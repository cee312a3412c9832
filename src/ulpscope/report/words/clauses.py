"""The evidence of a finding, each piece in words: clauses without an end, of which comparison.py makes sentences.

A clause gives nothing where its piece of evidence is not there. `FINDING_CLAUSES` and `NOTE_CLAUSES` tell what is said
of each kind of finding, in which order.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

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

Clause = Callable[[Phrases, Finding], Iterator[str]]


def tensor_text(words: Phrases, finding: Finding) -> str:
    """What the finding is about, as a part of its call."""
    place, shown = finding.place, finding.evidence.operand.shown
    name, made = place.tensor, place.tensor is None or place.tensor.startswith("output")
    if shown is not None and name is not None:
        key = "tensor.incoming" if made else "tensor.handed"
        return words.say("tensor.gradient" if shown == "summed" else key, name=shown_name(name))
    # The result of a call that only the reference makes: something else stands in its place.
    only_reference = place.call is not None and place.call_id is None
    if finding.kind is FindingKind.COMPUTATION and only_reference and made:
        return words.say("tensor.instead")
    if finding.kind is FindingKind.INPUT and not (name or "").startswith("output"):
        return words.say("tensor.input", name=shown_name(name)) if name else words.say("tensor.any_input")
    if finding.kind in (FindingKind.OPTIMIZER, FindingKind.PARAMETER):
        return words.say("tensor.parameter", name=shown_name(name)) if name else words.say("tensor.any_parameter")
    if name is None or name in ("output", "output.0"):
        return words.say("tensor.output")
    if name.split(".", 1)[0] not in ("args", "kwargs"):
        return words.say("tensor.named", name=shown_name(name))
    key = "tensor.gradient" if place.phase is Phase.BACKWARD else "tensor.handed"
    return words.say(key, name=shown_name(name))


def _before(finding: Finding) -> float | None:
    """The error of the inputs; where these were not compared, of what was compared before them."""
    return finding.evidence.span.error_before if finding.evidence.span.uncompared else finding.evidence.numbers.error_in


def _rounding(finding: Finding) -> float | None:
    """A few roundings of the call's type; nothing of a call whose type is not known."""
    if (dtype := finding.evidence.numbers.dtype) is None:
        return None
    known = DTYPES.get(dtype)
    return 0.0 if known is None else ROUNDINGS * known.unit_roundoff


def _is_scaled(finding: Finding) -> bool:
    """Whether there is a factor between the runs that can be told."""
    return finding.evidence.numbers.scale is not None and math.isfinite(finding.evidence.numbers.scale)


def _inputs(words: Phrases, finding: Finding) -> Iterator[str]:
    """How far the inputs agree."""
    error, rounding, operand = _before(finding), _rounding(finding), finding.evidence.operand
    if error is None:
        return
    key = "compared" if operand.unknown_input else operand.shown or "call"
    if finding.evidence.span.uncompared:
        key = "nearest"
    elif finding.kind is FindingKind.OPTIMIZER:
        key = "update"
    inputs = words.say(f"inputs.{key}")
    if not math.isfinite(error):
        yield words.say("in.unmeasured", inputs=inputs)
    elif error == 0:
        yield words.say("in.identical", inputs=inputs)
    elif rounding is not None and error <= rounding:
        dtype = shown_name(finding.evidence.numbers.dtype or "")
        yield words.say("in.rounding", inputs=inputs, dtype=dtype, error=number_text(error))
    else:
        yield words.say("in.differ", inputs=inputs, error=number_text(error))


def _output(words: Phrases, finding: Finding) -> Iterator[str]:
    """How far the output differs."""
    evidence, tensor = finding.evidence, tensor_text(words, finding)
    error = evidence.numbers.error_out
    if error is None:
        # Only that it differs is known: by digests, or of integers, which have no distance.
        told = evidence.unlike.shapes is None and evidence.overflow.not_finite is None
        measured = evidence.numbers.measured in (Measured.DIGEST, Measured.DATA)
        if told and finding.kind is FindingKind.COMPUTATION and measured:
            yield words.say("out.different", tensor=tensor)
    elif not math.isfinite(error):
        yield words.say("out.unmeasured", tensor=tensor)
    elif error == 0:
        yield words.say("out.identical", tensor=tensor)
    else:
        yield words.say("out.differs", tensor=tensor, error=number_text(error))


def _errors(words: Phrases, finding: Finding) -> Iterator[str]:
    """Inputs and output in one breath."""
    if parts := [*_inputs(words, finding), *_output(words, finding)]:
        yield words.clause_comma.join(parts)


def _blame(words: Phrases, finding: Finding) -> Iterator[str]:
    """Inputs and output, and how much more the output differs than it should."""
    parts = [*_inputs(words, finding), *_output(words, finding)]
    told = words.clause_comma.join([*parts, *_beside(words, finding)] if parts else [])
    yield told or words.say(f"lead.{finding.kind.value}")


def _beside(words: Phrases, finding: Finding) -> Iterator[str]:
    """The ratio to what came in, where it says something; else what would be explained."""
    evidence, numbers = finding.evidence, finding.evidence.numbers
    error, came_in, expected = numbers.error_out, numbers.error_in, numbers.expected
    if not error or not math.isfinite(error):
        return
    ratio = error / came_in if came_in and math.isfinite(came_in) else math.inf
    if RATIOS_TOLD[0] <= ratio < RATIOS_TOLD[1]:
        yield words.say("out.ratio", ratio=number_text(ratio))
    elif expected is not None and math.isfinite(expected) and expected < error:
        own = evidence.operand.shown is None and not evidence.span.uncompared
        key = "out.expected" if own else "out.expected.shown"
        if _before(finding) is None and (evidence.span.uncompared or evidence.operand.unknown_input):
            key = "out.expected.alone"
        yield words.say(key, expected=number_text(expected))


def _distance(words: Phrases, finding: Finding, *, key: str = "distance") -> Iterator[str]:
    """The distance alone, of what has been named already."""
    error = finding.evidence.numbers.error_out
    if error and math.isfinite(error):
        yield words.say(key, error=number_text(error))


def _span(words: Phrases, finding: Finding) -> Iterator[str]:
    """Which operators of a network were not compared, so that others may have made the difference."""
    span = finding.evidence.span
    if span.uncompared:
        yield words.say("span", names=words.names(span.uncompared))
    if span.given_by is not None:
        yield words.say("given_by", name=shown_name(span.given_by))
    if span.seen_at is not None:
        yield words.say("seen_at", tensor=shown_name(span.seen_at))


def _operand(words: Phrases, finding: Finding) -> Iterator[str]:
    """What an operand is in either run, and what a gradient still holds."""
    operand, history = finding.evidence.operand, finding.evidence.history
    if operand.origins is not None:
        reference, target = map(shown_name, operand.origins)
        yield words.say("origins", reference=reference, target=target)
    if operand.given_as is not None:
        yield words.say("given_as", place=shown_name(operand.given_as))
    if history.tied is not None:
        yield words.say(f"tied.{history.tied[0]}", name=shown_name(history.tied[1]))
    if history.leftover is not None:
        yield words.say(f"leftover.{history.leftover[0]}", step=history.leftover[1])


def _not_finite(words: Phrases, finding: Finding) -> Iterator[str]:
    """How many elements are inf or nan."""
    counts = finding.evidence.overflow.not_finite
    if counts is None or not any(counts):
        return
    reference, target = (words.count(count, "element") if count else words.say("not_finite.none") for count in counts)
    key = "not_finite.both" if counts[0] == counts[1] else "not_finite"
    yield words.say(key, tensor=tensor_text(words, finding), reference=reference, target=target)


def _extremes(words: Phrases, finding: Finding) -> Iterator[str]:
    """How near the numbers came to the end of their type."""
    extremes, dtype = finding.evidence.overflow.extremes, finding.evidence.numbers.dtype
    if extremes is None or None in extremes:
        return
    reference, target = (element_text(extreme) for extreme in extremes if extreme is not None)
    told = words.say("extremes", reference=reference, target=target)
    known = None if dtype is None else DTYPES.get(dtype)
    if known is not None and known.largest:
        told = words.say("largest", extremes=told, dtype=known.name, largest=element_text(known.largest))
    yield told


def _arguments(words: Phrases, finding: Finding) -> Iterator[str]:
    """Arguments that differ, or settings of an optimizer."""
    differences = finding.evidence.unlike.arguments
    if not differences:
        return
    word = "setting" if finding.kind is FindingKind.OPTIMIZER else "argument"
    texts = [_argument(words, difference) for difference in differences[:NAMES_SHOWN]]
    if len(differences) == 1:
        yield words.say(f"differs.{word}.one", list=texts[0])
        return
    joined, left = words.semicolon.join(texts), len(differences) - len(texts)
    listed = words.say("names.more", names=joined, left=left) if left else joined
    yield words.say(f"differs.{word}.many", number=len(differences), list=listed)


def _argument(words: Phrases, difference: ArgumentDifference) -> str:
    texts = (shown_name(text, longest=LONGEST_ARGUMENT) for text in (difference.reference, difference.target))
    reference, target = (text or words.say("argument.absent") for text in texts)
    place = shown_name(difference.place.removeprefix("kwargs."))
    return words.say("argument", place=place, reference=reference, target=target)


def _generators(words: Phrases, finding: Finding) -> Iterator[str]:
    """The states that random numbers were drawn from, where they are not the same."""
    states = finding.evidence.unlike.generators
    if states is not None and states[0] != states[1]:
        yield words.say("generators", reference=shown_name(states[0]), target=shown_name(states[1]))


def _circumstances(words: Phrases, finding: Finding) -> Iterator[str]:
    """What else is not the same in both runs, and may be the cause."""
    evidence, kind = finding.evidence, finding.kind
    yield from _arguments(words, finding)
    unlike = {"classes": evidence.unlike.classes, "shapes": evidence.unlike.shapes, "dtypes": evidence.unlike.dtypes}
    for key, pair in unlike.items():
        if pair is not None:
            reference, target = (shown_name(each) if isinstance(each, str) else str(list(each)) for each in pair)
            yield words.say(key, tensor=tensor_text(words, finding), reference=reference, target=target)
    for run, calls in (("reference", evidence.one_run.only_reference), ("target", evidence.one_run.only_target)):
        if calls:
            yield words.say(f"only.{run}", names=words.names(calls))
    if evidence.one_run.moved:
        yield words.say("moved", names=words.names(evidence.one_run.moved))
    if kind is not FindingKind.OVERFLOW:
        yield from _not_finite(words, finding)
    if kind is not FindingKind.RANDOMNESS:
        yield from _generators(words, finding)
    if kind is not FindingKind.PARAMETER and evidence.history.parameters:
        yield words.say("parameters", names=words.names(evidence.history.parameters))


def _amount(words: Phrases, finding: Finding) -> Iterator[str]:
    if finding.evidence.amount.count is not None and finding.evidence.amount.count > 1:
        yield words.say("count.tensors", tensors=words.count(finding.evidence.amount.count, "tensor"))


def detail_clauses(words: Phrases, finding: Finding) -> Iterator[str]:
    """What comes last: the factor between the runs, the same operation elsewhere, one element, how it is known."""
    numbers = finding.evidence.numbers
    if numbers.scale is not None and _is_scaled(finding):
        yield words.say("scale", scale=element_text(numbers.scale))
    if numbers.factor is not None and finding.kind is FindingKind.COMPUTATION and not _is_scaled(finding):
        yield words.say("factor", factor=f"{numbers.factor:.4g}")
    if numbers.peers is not None and math.isfinite(numbers.peers):
        yield words.say("peers", peers=number_text(numbers.peers))
    if numbers.left is not None:
        yield words.say("left", left=number_text(numbers.left))
    if numbers.agrees_again:
        yield words.say("agrees_again")
    if finding.evidence.ledger is None and numbers.worst is not None and numbers.worst_values is not None:
        computed, exact = map(element_text, numbers.worst_values)
        yield words.say("worst", index=list(numbers.worst), computed=computed, exact=exact)
    if finding.kind in _HAS_DISTANCE and numbers.measured is Measured.DIGEST and numbers.error_out is None:
        yield words.say("digests")


def _optimizer(words: Phrases, finding: Finding) -> Iterator[str]:
    lead, history = _optimizer_lead(words, finding), finding.evidence.history
    if lead is None:
        yield from (text for clause in _COMPUTATION for text in clause(words, finding))
        return
    yield lead
    if history.without_gradient is not None or history.updated_in is not None or history.changed_in is not None:
        names = history.parameters
        # Unless they are told already.
        if names and shown_name(names[0]) not in lead:
            yield words.say("parameters", names=words.names(names, total=finding.evidence.amount.count))
        yield from _distance(words, finding)
    yield from _arguments(words, finding)


def _optimizer_lead(words: Phrases, finding: Finding) -> str | None:
    """Why an update is made in one run only; nothing where both make it."""
    one_run, history, place = finding.evidence.one_run, finding.evidence.history, finding.place
    if one_run.backwards is not None:
        made, left_out = ("reference", "target") if place.call_id is None else ("target", "reference")
        if one_run.backwards[0] == one_run.backwards[1]:
            return words.say(f"alone.{made}")
        return words.say(f"skipped.{left_out}", number=min(one_run.backwards), step=place.step)
    if history.updated_in is not None and place.call in one_run.calls:
        return words.say(f"alone.{history.updated_in}")
    if history.updated_in is not None:
        names = words.names(history.parameters, total=finding.evidence.amount.count)
        return words.say(f"updated.{history.updated_in}", names=names)
    if history.without_gradient is not None:
        return words.say(f"ungraded.{history.without_gradient}", parameter=tensor_text(words, finding))
    return None if history.changed_in is None else words.say(f"changed.state.{history.changed_in}")


def _lead(words: Phrases, finding: Finding) -> Iterator[str]:
    yield words.say(f"lead.{finding.kind.value}", tensor=tensor_text(words, finding))


def _parameter(words: Phrases, finding: Finding, *, lead: str = "lead.parameter") -> Iterator[str]:
    history, count = finding.evidence.history, finding.evidence.amount.count
    unseen = "lead.changed" if history.changed_in is None else f"changed.{history.changed_in}"
    yield words.say(unseen if history.changed_unseen else lead)
    names = history.parameters or ((finding.place.tensor,) if finding.place.tensor else ())
    if names:
        yield words.say("parameters", names=words.names(names, total=count))
    elif count:
        yield words.say("count.tensors", tensors=words.count(count, "tensor"))
    several = len(names) > 1 or (count or 0) > 1
    yield from _distance(words, finding, key="distance.up_to" if several else "distance")
    yield from _circumstances(words, finding)


def _overflow_lead(words: Phrases, finding: Finding) -> Iterator[str]:
    yield from list(_not_finite(words, finding)) or [words.say("lead.overflow")]


def _dtype_lead(words: Phrases, finding: Finding) -> Iterator[str]:
    if finding.evidence.unlike.dtypes is None:
        yield words.say("lead.dtype")


def _structure(words: Phrases, finding: Finding, *, lead: str = "lead.structure") -> Iterator[str]:
    one_run, step = finding.evidence.one_run, finding.place.step
    if one_run.paired is not None:
        matched, calls = one_run.paired
        yield words.say("paired", matched=f"{matched:,}", calls=words.count(calls, "call"))
    elif one_run.backwards is not None:
        yield from _backwards(words, finding)
    elif one_run.shifted:
        run = "target" if one_run.shifted > 0 else "reference"
        yield words.say(f"shifted.{run}", step=step, other=step + abs(one_run.shifted))
    else:
        alone = finding.place.call is not None and finding.place.call_id is None
        told = [*([words.say("only.this")] if alone else []), *_circumstances(words, finding)]
        yield from told or [words.say(lead)]
        yield from _errors(words, finding)


def _backwards(words: Phrases, finding: Finding) -> Iterator[str]:
    """Over how many backwards each run adds gradients up."""
    if (backwards := finding.evidence.one_run.backwards) is not None:
        yield words.say("backwards", reference=backwards[0], target=backwards[1])


def _choice(words: Phrases, finding: Finding, *, lead: str = "lead.choice", depend: str = "depend") -> Iterator[str]:
    error, rounding, amount = _before(finding), _rounding(finding), finding.evidence.amount
    known = error is not None and rounding is not None and error > rounding
    drawn = finding.evidence.unlike.dtypes is not None
    yield words.say(f"{lead}.drawn" if drawn else f"{lead}.inputs" if known else lead)
    if amount.count is not None:
        yield words.say("count.elements", elements=words.count(amount.count, "element"))
    for clause in (_errors, _span, _circumstances):
        yield from clause(words, finding)
    if amount.followers:
        yield words.say(depend, calls=words.count(amount.followers, "call"))


def _note_computation(words: Phrases, finding: Finding) -> Iterator[str]:
    told = [text for clause in (_backwards, _errors, _circumstances) for text in clause(words, finding)]
    if not told and not _is_scaled(finding):
        yield words.say(f"note.{finding.kind.value}")
    yield from told
    error, expected = finding.evidence.numbers.error_out, finding.evidence.numbers.expected
    if error is not None and expected is not None and error <= expected:
        # Rounding and the inputs' errors account for all of it.
        yield words.say("note.explained")


_COMPUTATION = (_blame, _span, _operand, _circumstances)
FINDING_CLAUSES: Mapping[FindingKind, tuple[Clause, ...]] = {
    FindingKind.COMPUTATION: _COMPUTATION,
    FindingKind.OPTIMIZER: (_optimizer,),
    FindingKind.INPUT: (_lead, _distance, _operand, _amount, _circumstances),
    FindingKind.PARAMETER: (_parameter,),
    FindingKind.RANDOMNESS: (_lead, _generators, _errors, _span, _circumstances),
    FindingKind.OVERFLOW: (_overflow_lead, _inputs, _span, _extremes, _circumstances),
    FindingKind.STRUCTURE: (_structure,),
    FindingKind.DTYPE: (_dtype_lead, _circumstances, _errors, _amount),
    FindingKind.CHOICE: (_choice,),
}
NOTE_CLAUSES: Mapping[FindingKind, tuple[Clause, ...]] = {
    **FINDING_CLAUSES,
    FindingKind.COMPUTATION: (_note_computation,),
    FindingKind.OPTIMIZER: (_note_computation,),
    FindingKind.PARAMETER: (partial(_parameter, lead="note.parameter"),),
    FindingKind.STRUCTURE: (partial(_structure, lead="note.structure"),),
    FindingKind.CHOICE: (partial(_choice, lead="note.choice", depend="note.depend"),),
}
"""The same of what differs and is not wrong: nothing in it blames."""
