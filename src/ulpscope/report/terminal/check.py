"""Tells what `ulpscope check` found, as text and as JSON: its sentences, --overflow's and --perturb's among them.

UNSOUND: of 71 APIs on cuda:0, 1 computes wrongly; 1 less precise than need be (WARN)

  torch.nn.functional.layer_norm.3   x = self.norm(x)   model.py:57
  output.0 (bfloat16) is wrong on cuda:0: outlier: a single error is 31 times what rounding can make it; worst element
  [0, 3, 17]: 1.25, exact 1.5, 32 ulp.

  API           dtype     forward  backward  message
  layer_norm.3  bfloat16  FAIL     PASS      outlier: a single error is 31 times what rounding can make it; ...
  linear.0      bfloat16  WARN     PASS      noise: ...

  71 APIs (142 cases, 391 outputs): 64 PASS, 5 SKIP, 1 WARN, 1 FAIL.
  SKIP 5: nothing is computed
  Next: ulpscope repro runs/ref 57 -o repro

`check_json` is the same as an object, which is also summary.json; docs/check.md tells its keys.
"""

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ulpscope.operations.registry import is_tensorflows, is_torchs_own
from ulpscope.records.check_runs import NOT_TESTED, WRONG, CheckedCall, CheckRun, CheckStandard, Soundness
from ulpscope.records.checks import RECORDED, DataSource, OutputResult, Variant, Verdict
from ulpscope.records.findings import FindingKind
from ulpscope.report.program import head_line
from ulpscope.report.record_json import answer_json, fields_of, finding_entry
from ulpscope.report.tables import BAD, GOOD, OPEN, answer_text, plain, set_in, table
from ulpscope.report.words.comparison import place_text
from ulpscope.report.words.language import (
    Language,
    Phrases,
    element_text,
    phrases,
    remark_texts,
    short_name,
    shown_name,
    typed_path,
)

ROWS_SHOWN = 20
REASONS_SHOWN = 5
TYPES_SHOWN = 20
"""Reasons of operators, most of which are types without a definition."""
LONGEST_MESSAGE = 500
LONGEST_REMARK = 400
LONGEST_API = 48
NARROWEST_TABLE = 90

HEADING_STYLES = {Soundness.UNSOUND: BAD, Soundness.SOUND: GOOD, Soundness.NOTHING_CHECKED: OPEN}
_STYLES = {Verdict.WARN: "yellow", **dict.fromkeys(WRONG, BAD)}


def check_sentence(
    call: CheckedCall, language: Language = Language.EN, *, several_ranks: bool = False, mode: str = ""
) -> str:
    """A full sentence: the call, where it is, and what is wrong with it, or what a mode of check asks about it."""
    words, output = phrases(language), call.output
    place = place_text(call.place, language, several_ranks=several_ranks)
    if not mode:
        return words.say("sentence", place=place, body=statement(call, language))
    if output is None:
        message = shown_name(call.message, longest=LONGEST_MESSAGE)
        return words.say("check.lost", place=place, verdict=call.verdict.value, message=message)
    return words.say(
        f"check.{mode}.sentence",
        place=place,
        kind=output.statistic,
        output=shown_name(output.place),
        dtype=shown_name(output.dtype or ""),
        message=shown_name(output.message, longest=LONGEST_MESSAGE),
    )


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
    if output.place.startswith(RECORDED):
        place = output.place.removeprefix(RECORDED)
        return words.say("check.output.recorded", output=shown_name(place), dtype=dtype, message=parts["message"])
    return words.say("check.output", output=shown_name(output.place), dtype=dtype, **parts)


def message_text(call: CheckedCall, language: Language = Language.EN) -> str:
    """Why a call is not PASS: in English the judge's own sentence, elsewhere what decided and the worst element."""
    words, output = phrases(language), call.output
    if language is Language.EN or output is None or f"check.statistic.{output.statistic}" not in words.templates:
        return shown_name(call.message, longest=LONGEST_MESSAGE)
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
    op = call.place.op or ""
    if not (is_torchs_own(op) or is_tensorflows(op)):
        return shlex.join(["ulpscope", "show", typed_path(trace), str(call.place.call_id)])
    case = call.decisive.result.case
    words = ["ulpscope", "repro", typed_path(trace), str(call.place.call_id), "-o", "repro"]
    words += ["--data", case.source.value] if case.source is DataSource.RANDOM else []
    words += ["--variant", case.variant.value] if case.variant is not Variant.RECORDED else []
    words += ["--seed", str(run.options.seed)] if run.options.seed else []
    words += ["--device", call.decisive.device] if call.decisive.device != "cpu" else []
    return shlex.join(words)


def live_text(counts: dict[Verdict, int], language: Language = Language.EN) -> str:
    """`checking: 61 PASS, 1 FAIL`, beside a progress bar."""
    told = [f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts.get(verdict)]
    return ": ".join([phrases(language).say("check.live"), *([", ".join(told)] if told else [])])


def outputs_of(run: CheckRun) -> list[OutputResult]:
    """The outputs of all cases."""
    return [output for call in run.calls for case in call.cases for output in case.result.outputs]


def warned(run: CheckRun) -> list[CheckedCall]:
    return [call for call in run.calls if call.verdict is Verdict.WARN]


def check_text(run: CheckRun, *, width: int = 80, color: bool = False, language: Language = Language.EN) -> str:
    """The answer as text of this width."""
    words = phrases(language)
    answer = [part for call in run.wrong[:1] for part in _answer(call, run, words)]
    drawn = _table([*run.wrong, *warned(run)], run, words, width=width)
    commands = [next_command(call, run) for call in run.wrong[:1]]
    if run.soundness is Soundness.NOTHING_CHECKED and not commands:
        commands = [f"ulpscope show {shlex.quote(typed_path(run.trace))}"]
    heading = plain(_heading(run, words), style=HEADING_STYLES[run.soundness])
    return answer_text(words, heading, (answer, drawn, _ending(run, words)), commands, width=width, color=color)


def _heading(run: CheckRun, words: Phrases) -> str:
    devices = words.listed([shown_name(device) for device in run.options.devices])
    parts = {"apis": words.count(len(run.calls), _noun(run)), "devices": devices}
    if run.soundness is Soundness.UNSOUND:
        numbers = {verdict: run.count(verdict) for verdict in WRONG}
        wrong = [
            words.say_number(f"check.wrong.{verdict.value}", number) for verdict, number in numbers.items() if number
        ]
        told = words.say("check.heading.unsound", wrong=words.listed(wrong), **parts)
    elif run.soundness is Soundness.SOUND:
        told = words.say("check.heading.sound", apis=words.count(len(run.tested), _noun(run)), devices=devices)
    else:
        told = words.say("check.heading.nothing", trace=shown_name(run.trace), **parts)
    return whole_heading(told, "check.heading.warn", run, words)


def whole_heading(told: str, warning: str, run: CheckRun, words: Phrases) -> str:
    """The heading, with how many are only warned of, and what was left where a run did not come to its end."""
    if number := run.count(Verdict.WARN):
        told = words.say(warning, heading=told, number=f"{number:,}")
    return interrupted(told, run, words)


def interrupted(heading: str, run: CheckRun, words: Phrases) -> str:
    """The heading, with what was left where a run did not come to its end."""
    if not run.interrupted:
        return heading
    return words.say("interrupted", heading=heading, cases=words.count(run.pending, "case"))


def _noun(run: CheckRun) -> str:
    return "api" if run.graph is None else "operator"


def _answer(call: CheckedCall, run: CheckRun, words: Phrases) -> Iterator[RenderableType]:
    place = call.place
    names = [place.call or ""]
    if run.graph is not None:
        names = [place.module or "", place.op or "", *_executions(call, run)]
    yield head_line(names, place.source)
    yield plain(f"{statement(call, words.language)}{words.stop}")


def _executions(call: CheckedCall, run: CheckRun) -> list[str]:
    """Of an operator that several devices or steps dumped: which of them."""
    places = {(each.place.rank, each.place.step) for each in run.calls}
    return [f"npu:{call.place.rank}, step {call.place.step}"] if len(places) > 1 else []


def _table(calls: list[CheckedCall], run: CheckRun, words: Phrases, *, width: int) -> Iterator[RenderableType]:
    names = ["api", "dtype", "forward", "backward", "message"]
    if run.graph is not None:
        names = ["operator", "type", "dtype", "verdict", "message"]
    headers = words.columns(*names)
    cells = [[*_first_cells(call, run), plain(marked_message(call, words.language))] for call in calls[:ROWS_SHOWN]]
    if cells and width >= NARROWEST_TABLE:
        yield table(headers, cells, folds=[headers[-1]])
    else:
        yield from (_stacked(row) for row in cells)
    if len(calls) > ROWS_SHOWN:
        yield plain(words.say("more", number=f"{len(calls) - ROWS_SHOWN:,}", file="result.csv"))


def _first_cells(call: CheckedCall, run: CheckRun) -> list[Text]:
    place, dtype = call.place, shown_name(call.dtype or "")
    texts, verdicts = [short_name(place.call or "", longest=LONGEST_API), dtype], [call.forward, call.backward]
    if run.graph is not None:
        name = "  ".join([shown_name(place.module or "", longest=LONGEST_API), *_executions(call, run)])
        texts, verdicts = [name, shown_name(place.op or ""), dtype], [call.verdict]
    told = (Text() if each is None else plain(each.value, style=_STYLES.get(each, "")) for each in verdicts)
    return [*map(plain, texts), *told]


def _stacked(cells: list[Text]) -> RenderableType:
    """One row of a narrow terminal: what is short in one line, the message below."""
    drawn = Table.grid()
    drawn.add_row(Text("  ").join(cell for cell in cells[:-1] if cell))
    drawn.add_row(set_in(cells[-1]))
    return drawn


def _ending(run: CheckRun, words: Phrases) -> Iterator[str]:
    yield counts_line(run, words)
    if run.repeated:
        yield words.say("check.repeated", calls=words.count(run.repeated, "call"))
    if run.untested_outputs:
        yield words.say("check.untested_outputs", outputs=words.count(run.untested_outputs, "output"))
    for verdict in NOT_TESTED:
        reasons = Counter(message_text(call, words.language) for call in run.calls if call.verdict is verdict)
        shown = reasons.most_common(REASONS_SHOWN if run.graph is None else TYPES_SHOWN)
        left = reasons.total() - sum(number for _, number in shown)
        for reason, number in [*shown, *([("...", left)] if left else [])]:
            yield words.say("check.reason", verdict=verdict.value, number=f"{number:,}", reason=reason)
    if run.options.standard is not CheckStandard.ROUNDING:
        yield words.say("standard", standard=run.options.standard.value)
    for key, texts in (("check.remark", run.remarks), ("missing", run.missing)):
        yield from (words.say(key, text=text) for text in words.remarks(texts, longest=LONGEST_REMARK))


def counts_line(run: CheckRun, words: Phrases) -> str:
    """How many calls, cases and outputs there are, and of each verdict."""
    counts = [f"{number:,} {verdict.value}" for verdict in Verdict if (number := run.count(verdict))]
    return words.say(
        "check.counts",
        apis=words.count(len(run.calls), _noun(run)),
        cases=words.count(run.executed, "case"),
        outputs=words.count(len(outputs_of(run)), "output"),
        counts=words.comma.join(counts) or "0",
    )


def check_json(run: CheckRun, language: Language = Language.EN, *, mode: str = "") -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes; `mode` tells whose sentences its findings have."""
    options, verdicts = run.options, {verdict.value.lower(): run.count(verdict) for verdict in Verdict}
    return answer_json(
        "check",
        verdict=run.soundness,
        findings=[_finding(call, run, language, mode) for call in run.wrong],
        notes=[_finding(call, run, language, mode) for call in warned(run)],
        counts={
            "apis": len(run.calls),
            "repeated": run.repeated,
            "cases": run.executed,
            "outputs": len(outputs_of(run)),
            "outputs_untested": run.untested_outputs,
            **verdicts,
        },
        trace=run.trace,
        graph=run.graph,
        scope={
            "devices": options.devices,
            "ranks": sorted({call.place.rank for call in run.calls}),
            "steps": sorted({call.place.step for call in run.calls}),
            **fields_of(options, "only", "skip"),
            "all": options.every,
            "stress": options.stress,
            "data": options.source,
            **fields_of(options, "standard", "seed", "references"),
        },
        skipped=_reasons_json(run, Verdict.SKIP),
        untested=_reasons_json(run, Verdict.UNTESTED),
        interrupted=run.interrupted,
        remarks=remark_texts(run.remarks, language),
        missing=remark_texts(run.missing, language),
    )


def _finding(call: CheckedCall, run: CheckRun, language: Language, mode: str) -> dict[str, Any]:
    output, decisive = call.output, call.decisive
    evidence = {
        **fields_of(call, "verdict", "forward", "backward"),
        "variant": decisive.result.case.variant,
        "data": decisive.result.case.source,
        "device": decisive.device,
        "message": call.message,
    }
    if output is not None:
        shown = ("direction", "statistic", "dtype", "shape", "worst", "worst_computed", "worst_exact")
        evidence |= fields_of(output, *shown) | {"metrics": dict(output.metrics)}
    return finding_entry(
        FindingKind.COMPUTATION,
        replace(call.place, tensor=None if output is None else output.place),
        evidence=evidence,
        sentence=check_sentence(call, language, several_ranks=run.processes > 1, mode=mode),
        next_command=next_command(call, run),
    )


def _reasons_json(run: CheckRun, verdict: Verdict) -> list[dict[str, Any]]:
    reasons = Counter(call.message for call in run.calls if call.verdict is verdict)
    return [{"reason": reason, "apis": number} for reason, number in reasons.most_common()]
