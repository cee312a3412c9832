"""The words of `ulpscope check`, --overflow and --perturb among it: a sentence a call, and the next command."""

import shlex

from ulpscope.operations.names import is_torchs_own
from ulpscope.records.check_runs import CheckedCall, CheckRun
from ulpscope.records.checks import DataSource, OutputResult, Variant, Verdict
from ulpscope.report.words.comparison import place_text
from ulpscope.report.words.language import Language, Phrases, element_text, phrases, shown_name, typed_path

LONGEST_MESSAGE = 500


def check_sentence(call: CheckedCall, language: Language = Language.EN, *, several_ranks: bool = False) -> str:
    """A full sentence: the call, where it is, and what is wrong with it."""
    place = place_text(call.place, language, several_ranks=several_ranks)
    return phrases(language).say("sentence", place=place, body=statement(call, language))


def statement(call: CheckedCall, language: Language = Language.EN) -> str:
    """What is wrong with a call: `output.0 (bfloat16) is wrong on cuda:0: outlier: ...`."""
    words, decisive, output = phrases(language), call.decisive, call.output
    parts = {
        "device": shown_name(decisive.device),
        "variant": words.say(f"check.variant.{decisive.result.case.variant.value}"),
        "message": message_text(call, language),
    }
    if output is None:
        return words.say("check.case", verdict=call.verdict.value, **parts)
    dtype = "" if output.dtype is None else words.say("check.dtype", dtype=shown_name(output.dtype))
    return words.say("check.output", output=shown_name(output.place), dtype=dtype, **parts)


def message_text(call: CheckedCall, language: Language = Language.EN) -> str:
    """Why a call is not PASS: in English the judge's own sentence, elsewhere what decided and the worst element."""
    words, output = phrases(language), call.output
    if language is not Language.EN and output is not None and f"check.statistic.{output.statistic}" in words.templates:
        return _decisive(words, output)
    return shown_name(call.message, longest=LONGEST_MESSAGE)


def _decisive(words: Phrases, output: OutputResult) -> str:
    what = words.say(f"check.statistic.{output.statistic}")
    told = words.say("check.statistic", what=what, statistic=output.statistic)
    if output.worst is None or output.worst_computed is None or output.worst_exact is None:
        return told
    computed, exact = element_text(output.worst_computed), element_text(output.worst_exact)
    return words.say("check.worst", what=told, index=list(output.worst), computed=computed, exact=exact)


def marked_message(call: CheckedCall, language: Language = Language.EN) -> str:
    """The message with the kind of data, where that was not the recorded one: `tiny: outlier: ...`."""
    message, variant = message_text(call, language), call.decisive.result.case.variant
    return message if variant is Variant.RECORDED or not message else f"{variant.value}: {message}"


def next_command(call: CheckedCall, run: CheckRun) -> str:
    """What to look at next: the call as a script of its own, or the operator with what was dumped of it."""
    if run.graph is None:
        return repro_command(call, run)
    return shlex.join(
        ["ulpscope", "show", typed_path(run.graph), call.place.module or "", "--dumps", typed_path(run.trace)]
    )


def repro_command(call: CheckedCall, run: CheckRun) -> str:
    """The command that makes a script of this call, or shows it where no script can have its function."""
    # Names repeat in backwards and steps, an id does not.
    trace = f"{run.trace.rstrip('/')}/{call.process}" if run.processes > 1 else run.trace
    if not is_torchs_own(call.place.op or ""):
        return shlex.join(["ulpscope", "show", typed_path(trace), str(call.place.call_id)])
    case = call.decisive.result.case
    words = ["ulpscope", "repro", typed_path(trace), str(call.place.call_id), "-o", "repro"]
    words += ["--data", case.source.value] if case.source is DataSource.RANDOM else []
    words += ["--variant", case.variant.value] if case.variant is not Variant.RECORDED else []
    words += ["--seed", str(run.options.seed)] if run.options.seed else []
    words += ["--device", call.decisive.device] if call.decisive.device != "cpu" else []
    return shlex.join(words)


def show_command(run: CheckRun) -> str:
    return f"ulpscope show {shlex.quote(typed_path(run.trace))}"


def live_text(counts: dict[Verdict, int], language: Language = Language.EN) -> str:
    """`checking: 61 PASS, 1 FAIL`, beside a progress bar."""
    words = phrases(language)
    told = [f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts.get(verdict)]
    return ": ".join([words.say("check.live"), ", ".join(told)] if told else [words.say("check.live")])


def overflow_sentence(call: CheckedCall, language: Language, *, several_ranks: bool = False) -> str:
    """The call, and why what it made is not the dtype's own limit."""
    return _mode_sentence("check.overflow.sentence", call, language, several_ranks=several_ranks)


def perturb_sentence(call: CheckedCall, language: Language, *, several_ranks: bool = False) -> str:
    """The call, and how far it moved."""
    return _mode_sentence("check.perturb.sentence", call, language, several_ranks=several_ranks)


def _mode_sentence(key: str, call: CheckedCall, language: Language, *, several_ranks: bool) -> str:
    words, output = phrases(language), call.output
    place = place_text(call.place, language, several_ranks=several_ranks)
    if output is None:
        message = shown_name(call.message, longest=LONGEST_MESSAGE)
        return words.say("check.lost", place=place, verdict=call.verdict.value, message=message)
    return words.say(
        key,
        place=place,
        kind=output.statistic,
        output=shown_name(output.place),
        dtype=shown_name(output.dtype or ""),
        message=shown_name(output.message, longest=LONGEST_MESSAGE),
    )


def outputs_of(run: CheckRun) -> list[OutputResult]:
    """The outputs of all cases."""
    return [output for call in run.calls for case in call.cases for output in case.result.outputs]


def warned(run: CheckRun) -> list[CheckedCall]:
    return [call for call in run.calls if call.verdict is Verdict.WARN]
