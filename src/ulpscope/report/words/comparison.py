"""The words of a comparison: a sentence for each finding, note and advice, and the command that looks further.

torch.Tensor.add.17 in model.layers.2.input_layernorm (modeling.py:66), step 0, forward: its inputs agree within
bfloat16 rounding (1.0e-3), its output differs by 5.9, 5,900 times what came in; an argument differs: args.1 is 1e-06
in the reference, 1e-02 in the target.

What executing calls again has shown ends it:

Executed again in float64 from each run's own inputs: the target made 6.0e-3 itself (at [5, 7] 0.0874023 instead of
0.0726068, 30 ulp), inherited 1.2e-3, the reference made 2.0e-7.
"""

import math
import re
import shlex
from collections.abc import Iterator

import numpy as np

from ulpscope.judge.soundness.grid import Grid
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.enums import Phase
from ulpscope.records.evidence import GUILTY, FinalDifference, Ledger, LedgerEntry, Maker
from ulpscope.records.findings import Advice, AdviceKind, Comparison, Finding, FindingKind, Place
from ulpscope.report.words.clauses import FINDING_CLAUSES, NOTE_CLAUSES, detail_clauses
from ulpscope.report.words.language import (
    LONGEST_NAME,
    Language,
    Phrases,
    element_text,
    is_plain,
    number_text,
    phrases,
    short_name,
    shown_name,
    typed_path,
)

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
    words, executed = phrases(language), finding.evidence.ledger
    told = [text for clause in NOTE_CLAUSES[finding.kind] for text in clause(words, finding)]
    told += [*detail_clauses(words, finding), *(ledger_clauses(words, executed, None) if executed else ())]
    return _sentence(finding, told, language, several_ranks=several_ranks)


def statements(finding: Finding, language: Language = Language.EN, *, ledger: Ledger | None = None) -> list[str]:
    """What is to be said of a finding beside its place, the most telling first; clauses without an end."""
    words, executed = phrases(language), finding.evidence.ledger
    told = [text for clause in FINDING_CLAUSES[finding.kind] for text in clause(words, finding)]
    told += detail_clauses(words, finding)
    # Other random numbers are the whole difference, and neither made nor inherited.
    if executed is None or finding.kind is FindingKind.RANDOMNESS:
        return told
    return [*told, *ledger_clauses(words, executed, ledger)]


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
    words = ["ulpscope", "repro", typed_path(path), call, "-o", "repro", "--step", str(entry.step)]
    return [*words, "--phase", phase.value, *_rank_words(entry.rank, comparison)]


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
    if place.call is not None and _is_typeable(place.call):
        words.append(place.call)
    elif place.call is not None and place.call_id is not None:
        # A name that could not be typed, or would be taken for an option.
        words.append(str(place.call_id))
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


# Shares are told to first order: where the parts do not add up to the whole, that order does not describe it.
CLOSES = (0.9, 1.1)
SMALLEST_SHARE = 0.01
# A part that is larger than the whole by this factor has others against it.
CANCELLED = 1.5


def ledger_clauses(phrases: Phrases, entry: LedgerEntry, ledger: Ledger | None) -> Iterator[str]:
    """Who made the difference, why that is no rounding, and what it did to the end."""
    yield _proof(phrases, entry)
    if entry.maker in GUILTY:
        why = phrases.templates.get(f"why.{entry.statistic}") if entry.maker is Maker.TARGET else None
        yield phrases.semicolon.join([*([] if why is None else [why]), phrases.say("proof.not_native")])
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


def _effect(phrases: Phrases, entry: LedgerEntry, ledger: Ledger | None) -> Iterator[str]:
    share, final = share_of(entry, ledger), _final(entry, ledger)
    if share is None or final is None:
        return
    whole = phrases.say("final", difference=number_text(final.difference), call=short_name(final.call))
    key = "share.of" if share >= 0 or abs(share) < SMALLEST_SHARE else "share.against"
    key = "share.cancelled" if abs(share) > CANCELLED else key
    yield phrases.say(key, share=share_text(phrases, share), final=whole)
