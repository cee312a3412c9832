"""The words of a comparison: a sentence for each finding, note and advice, and the command that looks further.

torch.Tensor.add.17 in model.layers.2.input_layernorm (modeling.py:66), step 0, forward: its inputs agree within
bfloat16 rounding (1.0e-3), its output differs by 5.9, 5,900 times what came in; an argument differs: args.1 is 1e-06
in the reference, 1e-02 in the target.
"""

import re
import shlex
from collections.abc import Callable, Iterator

from ulpscope.records.enums import Phase
from ulpscope.records.findings import Advice, AdviceKind, Comparison, Finding, FindingKind, Place
from ulpscope.records.ledger import GUILTY, Ledger, LedgerEntry, Maker
from ulpscope.report.words import clauses
from ulpscope.report.words.clauses import backwards_clause, operand_clauses, optimizer_lead, structure_lead
from ulpscope.report.words.language import LONGEST_NAME, Language, Phrases, is_plain, phrases, shown_name, typed_path
from ulpscope.report.words.ledger_clauses import ledger_clauses

_DEFAULT_SUBJECTS = {
    AdviceKind.SAME_DATA: "subject.data",
    AdviceKind.SAME_WEIGHTS: "subject.weights",
    AdviceKind.SAME_SEED: "subject.seed",
    AdviceKind.SAME_SETTING: "subject.setting",
}


def sentence(
    finding: Finding, language: Language = Language.EN, *, several_ranks: bool = False, ledger: Ledger | None = None
) -> str:
    """A full sentence: the operation, where it is, and what the finding rests on."""
    return _sentence(finding, statements(finding, language, ledger=ledger), language, several_ranks=several_ranks)


def note_sentence(finding: Finding, language: Language = Language.EN, *, several_ranks: bool = False) -> str:
    """The same for what differs and is not wrong: nothing in it blames."""
    return _sentence(finding, note_statements(finding, language), language, several_ranks=several_ranks)


def statements(finding: Finding, language: Language = Language.EN, *, ledger: Ledger | None = None) -> list[str]:
    """What is to be said of a finding beside its place, the most telling first; clauses without an end."""
    words, executed = phrases(language), finding.evidence.ledger
    told = [*_LEADS[finding.kind](words, finding), *clauses.detail_clauses(words, finding)]
    # Other random numbers are the whole difference, and neither made nor inherited.
    if executed is None or finding.kind is FindingKind.RANDOMNESS:
        return told
    return [*told, *ledger_clauses(words, executed, ledger)]


def note_statements(finding: Finding, language: Language = Language.EN) -> list[str]:
    """The same for a note."""
    words = phrases(language)
    lead = _NOTE_LEADS.get(finding.kind, _LEADS[finding.kind])
    executed = finding.evidence.ledger
    proof = [] if executed is None else ledger_clauses(words, executed, None)
    return [*lead(words, finding), *clauses.detail_clauses(words, finding), *proof]


def advice_sentence(advice: Advice, language: Language = Language.EN) -> str:
    """What an expert would say."""
    words = phrases(language)
    default = words.say(_DEFAULT_SUBJECTS.get(advice.kind, "subject.call"))
    subject = shown_name(advice.subject) if advice.subject else default
    return words.say(f"advice.{advice.kind.value}", subject=subject)


def next_command(finding: Finding, comparison: Comparison) -> str:
    """The command that looks further, to be pasted into a shell: a script of the call alone where that is proven."""
    executed = finding.evidence.ledger
    if comparison.graph is not None and finding.place.module is not None:
        return _operator_detail(finding, comparison, comparison.graph)
    if executed is not None and executed.maker in GUILTY:
        words = _repro(executed, finding.place.phase, comparison)
        return " ".join(map(_quoted, words)) if words else _show(finding.place, comparison)
    return _show(finding.place, comparison)


def _repro(entry: LedgerEntry, phase: Phase, comparison: Comparison) -> list[str]:
    """`ulpscope repro TRACE CALL`; nothing where the call has no name that could be typed."""
    # An entry's call is the forward one, also where its backward is to blame.
    phase = Phase.FORWARD if phase is Phase.BACKWARD else phase
    blamed = entry.maker is Maker.REFERENCE
    path, call = (comparison.reference, entry.call_reference) if blamed else (comparison.target, entry.call)
    if not _is_typeable(call):
        return []
    words = [
        "ulpscope",
        "repro",
        typed_path(path),
        call,
        "-o",
        "repro",
        "--step",
        str(entry.step),
        "--phase",
        phase.value,
    ]
    return [*words, *_rank_words(entry.rank, comparison)]


def _operator_detail(finding: Finding, comparison: Comparison, graph: str) -> str:
    """`ulpscope compare REFERENCE DUMPS --graph GRAPH --op OPERATOR --output 0`: that tensor, element by element."""
    sides = [typed_path(comparison.reference), typed_path(comparison.target), "--graph", typed_path(graph)]
    side, _, position = (finding.place.tensor or "").partition(".")
    operator, side = finding.place.module, "input" if side == "args" else "output"
    if finding.evidence.span.seen_at is not None:
        operator, side, position = finding.evidence.span.seen_at.rsplit(":", 2)
    which = [f"--{side}", position] if position.isdigit() else []
    words = ["ulpscope", "compare", *sides, *comparison.graph_options, f"--op={operator}", *which]
    return " ".join(map(_quoted, words))


def _show(place: Place, comparison: Comparison) -> str:
    only_reference = place.call is not None and place.call_id is None
    words = ["ulpscope", "show", typed_path(comparison.reference if only_reference else comparison.target)]
    if (call := _call_word(place)) is not None:
        words.append(call)
    elif place.module and is_plain(place.module):
        words += ["--module", place.module]
    words += ["--step", str(place.step), "--phase", place.phase.value]
    return " ".join(map(_quoted, [*words, *_rank_words(place.rank, comparison)]))


def _rank_words(rank: int, comparison: Comparison) -> list[str]:
    return ["--rank", str(rank)] if rank != 0 or has_several_ranks(comparison) else []


def show_trace(path: str) -> str:
    """The command that tells what a trace holds."""
    return " ".join(map(_quoted, ["ulpscope", "show", typed_path(path)]))


def has_several_ranks(comparison: Comparison) -> bool:
    """Whether a call's name needs its rank beside it."""
    scope = comparison.scope
    return len({*scope.ranks, *scope.ranks_reference_only, *scope.ranks_target_only}) > 1


def place_text(place: Place, language: Language = Language.EN, *, several_ranks: bool = False) -> str:
    """`torch.Tensor.add.17 in model.layers.2 (modeling.py:66), step 0, forward`."""
    words = phrases(language)
    told = _what(words, place)
    if place.source:
        told = words.say("place.source", place=told, source=source_name(place.source))
    told = words.say("place.when", place=told, step=place.step, phase=words.say(f"phase.{place.phase.value}"))
    return words.say("place.rank", place=told, rank=place.rank) if several_ranks or place.rank else told


def source_name(source: str) -> str:
    """`modeling.py:66`: the file without its directories."""
    return shown_name(re.split(r"[/\\]", source)[-1])


def _sentence(finding: Finding, told: list[str], language: Language, *, several_ranks: bool) -> str:
    words = phrases(language)
    place = place_text(finding.place, language, several_ranks=several_ranks)
    return words.say("sentence", place=place, body=words.semicolon.join(told))


def _what(words: Phrases, place: Place) -> str:
    call, module = place.call or place.op, place.module
    if call and module:
        return words.say("place.call_in", call=shown_name(call), module=shown_name(module))
    if call or module:
        return words.say("place.call", call=shown_name(call or module or ""))
    return words.say("place.nowhere")


Lead = Callable[[Phrases, Finding], Iterator[str]]


def _computation(words: Phrases, finding: Finding) -> Iterator[str]:
    yield clauses.blaming_clause(words, finding) or words.say(f"lead.{finding.kind.value}")
    yield from clauses.span_clauses(words, finding)
    yield from operand_clauses(words, finding)
    yield from _circumstances(words, finding)


def _optimizer(words: Phrases, finding: Finding) -> Iterator[str]:
    lead = optimizer_lead(words, finding)
    if lead is None:
        yield from _computation(words, finding)
        return
    yield lead
    if finding.evidence.history.without_gradient is not None or finding.evidence.history.updated_in is not None:
        yield from _concerned(words, finding, lead)
        yield from _present(clauses.distance_clause(words, finding))
    yield from _present(clauses.arguments_clause(words, finding))


def _concerned(words: Phrases, finding: Finding, told: str) -> Iterator[str]:
    """Names of parameters, unless they are told already."""
    names = finding.evidence.history.parameters
    if names and shown_name(names[0]) not in told:
        yield words.say("parameters", names=words.names(names, total=finding.evidence.amount.count))


def _input(words: Phrases, finding: Finding) -> Iterator[str]:
    yield words.say("lead.input", tensor=clauses.tensor_text(words, finding))
    yield from _present(clauses.distance_clause(words, finding))
    yield from operand_clauses(words, finding)
    yield from _amount(words, finding)
    yield from _circumstances(words, finding)


def _parameter(words: Phrases, finding: Finding, *, lead: str = "lead.parameter") -> Iterator[str]:
    yield words.say("lead.changed" if finding.evidence.history.changed_unseen else lead)
    names = finding.evidence.history.parameters or ((finding.place.tensor,) if finding.place.tensor else ())
    if names:
        yield words.say("parameters", names=words.names(names, total=finding.evidence.amount.count))
    elif finding.evidence.amount.count:
        yield words.say("count.tensors", tensors=words.count(finding.evidence.amount.count, "tensor"))
    several = len(names) > 1 or (finding.evidence.amount.count or 0) > 1
    key = "distance.up_to" if several else "distance"
    yield from _present(clauses.distance_clause(words, finding, key=key))
    yield from _circumstances(words, finding)


def _randomness(words: Phrases, finding: Finding) -> Iterator[str]:
    yield words.say("lead.randomness")
    yield from _present(clauses.generators_clause(words, finding), clauses.errors_clause(words, finding))
    yield from clauses.span_clauses(words, finding)
    yield from _circumstances(words, finding)


def _overflow(words: Phrases, finding: Finding) -> Iterator[str]:
    yield clauses.not_finite_clause(words, finding) or words.say("lead.overflow")
    yield from _present(clauses.inputs_clause(words, finding))
    yield from clauses.span_clauses(words, finding)
    yield from _present(clauses.extremes_clause(words, finding))
    yield from _circumstances(words, finding)


def _structure(words: Phrases, finding: Finding, *, lead: str = "lead.structure") -> Iterator[str]:
    if (whole := structure_lead(words, finding)) is not None:
        yield whole
        return
    alone = finding.place.call is not None and finding.place.call_id is None
    told = list(_circumstances(words, finding))
    if alone:
        told.insert(0, words.say("only.this"))
    yield from told or [words.say(lead)]
    yield from _present(clauses.errors_clause(words, finding))


def _dtype(words: Phrases, finding: Finding) -> Iterator[str]:
    if finding.evidence.unlike.dtypes is None:
        yield words.say("lead.dtype")
    yield from _circumstances(words, finding)
    yield from _present(clauses.errors_clause(words, finding))
    yield from _amount(words, finding)


def _choice(words: Phrases, finding: Finding, *, lead: str = "lead.choice", depend: str = "depend") -> Iterator[str]:
    yield words.say(f"{lead}.inputs" if clauses.inputs_exceed_rounding(finding) else lead)
    if finding.evidence.amount.count is not None:
        yield words.say("count.elements", elements=words.count(finding.evidence.amount.count, "element"))
    yield from _present(clauses.errors_clause(words, finding))
    yield from clauses.span_clauses(words, finding)
    yield from _circumstances(words, finding)
    if finding.evidence.amount.followers:
        yield words.say(depend, calls=words.count(finding.evidence.amount.followers, "call"))


def _note_computation(words: Phrases, finding: Finding) -> Iterator[str]:
    told = [*_present(backwards_clause(words, finding), clauses.errors_clause(words, finding))]
    told += _circumstances(words, finding)
    if not told and not clauses.is_scaled(finding):
        yield words.say(f"note.{finding.kind.value}")
    yield from told
    if clauses.is_explained(finding):
        yield words.say("note.explained")


def _note_parameter(words: Phrases, finding: Finding) -> Iterator[str]:
    return _parameter(words, finding, lead="note.parameter")


def _note_structure(words: Phrases, finding: Finding) -> Iterator[str]:
    return _structure(words, finding, lead="note.structure")


def _note_choice(words: Phrases, finding: Finding) -> Iterator[str]:
    return _choice(words, finding, lead="note.choice", depend="note.depend")


def _circumstances(words: Phrases, finding: Finding) -> Iterator[str]:
    """What else is not the same in both runs, and may be the cause."""
    yield from _present(clauses.arguments_clause(words, finding))
    yield from clauses.two_sided_clauses(words, finding)
    yield from clauses.only_clauses(words, finding)
    if finding.kind is not FindingKind.OVERFLOW:
        yield from _present(clauses.not_finite_clause(words, finding))
    if finding.kind is not FindingKind.RANDOMNESS:
        yield from _present(clauses.generators_clause(words, finding))
    if finding.kind is not FindingKind.PARAMETER and finding.evidence.history.parameters:
        yield words.say("parameters", names=words.names(finding.evidence.history.parameters))


def _amount(words: Phrases, finding: Finding) -> Iterator[str]:
    if finding.evidence.amount.count is not None and finding.evidence.amount.count > 1:
        yield words.say("count.tensors", tensors=words.count(finding.evidence.amount.count, "tensor"))


def _present(*told: str | None) -> Iterator[str]:
    return (clause for clause in told if clause is not None)


_LEADS: dict[FindingKind, Lead] = {
    FindingKind.COMPUTATION: _computation,
    FindingKind.OPTIMIZER: _optimizer,
    FindingKind.INPUT: _input,
    FindingKind.PARAMETER: _parameter,
    FindingKind.RANDOMNESS: _randomness,
    FindingKind.OVERFLOW: _overflow,
    FindingKind.STRUCTURE: _structure,
    FindingKind.DTYPE: _dtype,
    FindingKind.CHOICE: _choice,
}
_NOTE_LEADS: dict[FindingKind, Lead] = {
    FindingKind.COMPUTATION: _note_computation,
    FindingKind.OPTIMIZER: _note_computation,
    FindingKind.PARAMETER: _note_parameter,
    FindingKind.STRUCTURE: _note_structure,
    FindingKind.CHOICE: _note_choice,
}


def _call_word(place: Place) -> str | None:
    """Its name, or its id where a name could not be typed or would be taken for an option."""
    if place.call is None:
        return None
    if _is_typeable(place.call):
        return place.call
    return None if place.call_id is None else str(place.call_id)


def _is_typeable(call: str) -> bool:
    return len(call) <= LONGEST_NAME and is_plain(call) and not call.startswith("-")


def _quoted(word: str) -> str:
    if is_plain(word):
        return shlex.quote(word)
    # Bash's $'...' takes escapes, so that what is pasted can be seen.
    return f"$'{''.join(map(_escaped, word))}'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if is_plain(character):
        return character
    code = ord(character)
    # Python keeps a byte of a path that is not UTF-8 as one of these surrogates.
    byte = code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code
    return f"\\x{byte:02x}" if byte < 0x80 or byte != code else f"\\U{code:08x}"
