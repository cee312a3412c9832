"""Tells what `ulpscope check --perturb` found, as text.

UNSTABLE: of 71 APIs on cuda:0, perturbed by bit_noise, 1 moves more than it should

  call          output    dtype    verdict  message
  layer_norm.3  output.0  float32  FAIL     it moved by 0.012 where the exact result moves by 1.2e-06: 310 times ...

  71 APIs: 65 PASS, 5 SKIP, 1 FAIL.
"""

from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ulpscope.records.check_runs import WRONG, CheckedCall, PerturbRun, Soundness
from ulpscope.records.checks import OutputResult, PerturbStandard, Verdict
from ulpscope.report.tables import plain, render, table
from ulpscope.report.words.check import LONGEST_MESSAGE, repro_command, short_name
from ulpscope.report.words.language import Language, Phrases, phrases, remark_texts, shown_name

ROWS_SHOWN = 20
REASONS_SHOWN = 5
_HEADING_STYLES = {
    Soundness.UNSOUND: "bold red",
    Soundness.SOUND: "bold green",
    Soundness.NOTHING_CHECKED: "bold yellow",
}


def perturb_text(found: PerturbRun, *, width: int, color: bool, language: Language) -> str:
    """The answer as text of this width."""
    words, run = phrases(language), found.run
    parts: list[RenderableType] = [plain(_heading(found, words), style=_HEADING_STYLES[run.soundness]), Text()]
    told = [*run.wrong, *(call for call in run.calls if call.verdict is Verdict.WARN)]
    if told:
        parts += [_set_in(*_table(told, words)), Text()]
    parts.append(_set_in(*(plain(line) for line in _ending(found, language))))
    commands = "".join(f"  Next: {repro_command(call, run)}\n" for call in run.wrong[:1])
    return render(Group(*parts), width=width, color=color) + commands


def _heading(found: PerturbRun, words: Phrases) -> str:
    run = found.run
    parts = {
        "apis": words.count(len(run.calls), "api"),
        "devices": words.listed([shown_name(device) for device in run.options.devices]),
        "mode": found.mode.value,
    }
    number = len(run.wrong)
    if number:
        moves = words.say_number("check.perturb.moves", number)
        told = words.say(
            "check.perturb.unstable" if number == 1 else "check.perturb.unstable.several", wrong=moves, **parts
        )
    else:
        told = words.say("check.perturb.stable" if run.tested else "check.perturb.nothing", **parts)
    if warned := run.count(Verdict.WARN):
        told = words.say("check.perturb.warn", heading=told, number=f"{warned:,}")
    return words.say("interrupted", heading=told, cases=words.count(run.pending, "case")) if run.interrupted else told


def _table(calls: list[CheckedCall], words: Phrases) -> Iterator[RenderableType]:
    headers = [words.say(f"column.{name}") for name in ("call", "output", "dtype", "verdict", "message")]
    yield table(headers, (_cells(call, call.output) for call in calls[:ROWS_SHOWN]), folds=[headers[-1]])
    if len(calls) > ROWS_SHOWN:
        yield plain(words.say("check.more_of_table", number=f"{len(calls) - ROWS_SHOWN:,}"))


def _cells(call: CheckedCall, output: OutputResult | None) -> list[Text]:
    style = "bold red" if call.verdict in WRONG else "yellow"
    place, dtype = ("", "") if output is None else (output.place, output.dtype or "")
    message = shown_name(call.message, longest=LONGEST_MESSAGE)
    verdict = plain(call.verdict.value, style=style)
    return [plain(short_name(call)), plain(shown_name(place)), plain(shown_name(dtype)), verdict, plain(message)]


def _ending(found: PerturbRun, language: Language) -> Iterator[str]:
    run, words = found.run, phrases(language)
    outputs = sum(len(case.result.outputs) for call in run.calls for case in call.cases)
    counts = [f"{number:,} {verdict.value}" for verdict in Verdict if (number := run.count(verdict))]
    yield words.say(
        "check.counts",
        apis=words.count(len(run.calls), "api"),
        cases=words.count(run.executed, "case"),
        outputs=words.count(outputs, "output"),
        counts=words.comma.join(counts) or "0",
    )
    reasons = Counter(call.message for call in run.calls if call.verdict is Verdict.SKIP)
    for reason, number in reasons.most_common(REASONS_SHOWN):
        shown = shown_name(reason, longest=LONGEST_MESSAGE)
        yield words.say("check.reason", verdict=Verdict.SKIP.value, number=f"{number:,}", reason=shown)
    if found.standard is not PerturbStandard.CONDITION:
        yield phrases(language).say("check.perturb.standard", standard=found.standard.value)
    yield from (
        words.say("check.remark", text=shown_name(text, longest=LONGEST_MESSAGE))
        for text in remark_texts(run.remarks, language)
    )


def _set_in(*parts: RenderableType) -> RenderableType:
    return Padding(Group(*parts), (0, 0, 0, 2))
