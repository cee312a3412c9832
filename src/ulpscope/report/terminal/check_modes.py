"""Tells what `ulpscope check --overflow` and `--perturb` found, as text and as JSON.

ABNORMAL: of 3 calls that made inf or nan out of finite numbers, 1 did so where the CPU does not

  call       output    dtype    not finite  exact max  verdict   message
  exp.0      output.0  float16  5 +inf      1.2e+03    abnormal  the CPU gives finite numbers: ...

UNSTABLE: of 71 APIs on cuda:0, perturbed by bit_noise, 1 moves more than it should

  call          output    dtype    verdict  message
  layer_norm.3  output.0  float32  FAIL     it moved by 0.012 where the exact result moves by 1.2e-06: 310 times ...

The objects are those of a check, with what else these ask.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from ulpscope.records.check_runs import WRONG, CheckedCall, CheckRun, OverflowRun, PerturbRun
from ulpscope.records.checks import DataSource, OutputResult, PerturbStandard, Verdict
from ulpscope.records.findings import FindingKind
from ulpscope.records.overflows import NotFinite, Overflow
from ulpscope.report.files.check_tables import rows_of
from ulpscope.report.tables import BAD, GOOD, OPEN, answer_text, plain, table
from ulpscope.report.terminal.check import HEADING_STYLES, check_json, counts_line, interrupted
from ulpscope.report.words.check import (
    LONGEST_MESSAGE,
    outputs_of,
    overflow_sentence,
    perturb_sentence,
    repro_command,
    warned,
)
from ulpscope.report.words.language import Language, Phrases, phrases, short_name, shown_name

ROWS_SHOWN = 20
REASONS_SHOWN = 5
LONGEST_CALL = 48
_STYLES = {Overflow.ABNORMAL.value: BAD, Overflow.UNCLEAR.value: "yellow"}
_ORDER = (Overflow.ABNORMAL, Overflow.UNCLEAR, Overflow.NORMAL, Overflow.STATED)


def overflow_text(found: OverflowRun, *, width: int, color: bool, language: Language) -> str:
    """The answer as text of this width."""
    words = phrases(language)
    shown = (row for row in rows_of(found.run) if row[1] is None or row[1].statistic != Overflow.FINITE.value)
    rows = [_overflow_cells(*row) for row in sorted(shown, key=lambda row: _rank(row[1]))]
    columns = ("call", "output", "dtype", "not_finite", "exact", "verdict", "message")
    style = BAD if found.run.wrong else GOOD if found.tells else OPEN
    blocks = (_table(columns, rows, words), [plain(line) for line in _overflow_ending(found, words)])
    heading = plain(_overflow_heading(found, words), style=style)
    return answer_text(heading, blocks, _commands(found.run, words), width=width, color=color)


def perturb_text(found: PerturbRun, *, width: int, color: bool, language: Language) -> str:
    """The answer as text of this width."""
    words, run = phrases(language), found.run
    rows = [_perturb_cells(call, call.output) for call in (*run.wrong, *warned(run))]
    columns = ("call", "output", "dtype", "verdict", "message")
    blocks = (_table(columns, rows, words), [plain(line) for line in _perturb_ending(found, words)])
    heading = plain(_perturb_heading(found, words), style=HEADING_STYLES[run.soundness])
    return answer_text(heading, blocks, _commands(run, words), width=width, color=color)


def overflow_json(found: OverflowRun, language: Language) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    content = check_json(found.run, language, tell=overflow_sentence)
    for finding in content["findings"]:
        finding["kind"] = FindingKind.OVERFLOW.value
    kinds = Counter(output.statistic for output in outputs_of(found.run))
    content["counts"] |= {kind.value: kinds.get(kind.value, 0) for kind in Overflow}
    content["counts"] |= {"inherited": found.inherited, "unrecorded": len(found.untold)}
    # Nothing that overflows is an answer too.
    verdict = "unsound" if found.run.wrong else "sound" if found.tells else "nothing_checked"
    return content | {"mode": "overflow", "verdict": verdict}


def perturb_json(found: PerturbRun, language: Language) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    content = check_json(found.run, language, tell=perturb_sentence)
    content["scope"] |= {"perturbation": found.mode.value, "standard": found.standard.value}
    return content | {"mode": "perturb"}


def seen_counts(output: OutputResult) -> NotFinite:
    """What of an output was not finite in the run; where that is not recorded, here."""
    figures = dict(output.metrics)
    names = ("nan", "pos_inf", "neg_inf")
    who = next((who for who in ("recorded", "device", "cpu") if f"{who}_nan" in figures), "exact")
    return NotFinite(*(int(figures.get(f"{who}_{name}", 0)) for name in names))


def _commands(run: CheckRun, words: Phrases) -> list[str]:
    return [words.say("next", command=repro_command(call, run)) for call in run.wrong[:1]]


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], words: Phrases) -> list[RenderableType]:
    if not rows:
        return []
    headers, left = words.columns(*columns), len(rows) - ROWS_SHOWN
    more = [plain(words.say("check.more_of_table", number=f"{left:,}"))] if left > 0 else []
    return [table(headers, rows[:ROWS_SHOWN], folds=[headers[-1]]), *more]


def _overflow_heading(found: OverflowRun, words: Phrases) -> str:
    run, overflowed = found.run, found.overflowed
    if run.wrong:
        # What crashed here may have overflowed in the run.
        calls = words.count(len({id(call) for call in (*overflowed, *run.wrong)}), "call")
        told = words.say("check.overflow.abnormal", calls=calls, abnormal=f"{len(run.wrong):,}")
    elif found.tells:
        calls = words.count(len(overflowed), "call")
        told = words.say("check.overflow.normal" if overflowed else "check.overflow.none", calls=calls)
    else:
        told = words.say("check.overflow.nothing", calls=words.count(len(run.calls), "call"))
    return interrupted(told, run, words)


def _rank(output: OutputResult | None) -> int:
    if output is None:
        return -1
    if output.statistic == Overflow.UNCLEAR.value and "recorded_nan" not in dict(output.metrics):
        return len(_ORDER)
    return [kind.value for kind in _ORDER].index(output.statistic)


def _overflow_cells(call: CheckedCall, output: OutputResult | None) -> list[object]:
    name = short_name(call.place.call or "", longest=LONGEST_CALL)
    if output is None:
        return [name, "", "", "", "", call.verdict.value, shown_name(call.message, longest=LONGEST_MESSAGE)]
    largest = dict(output.metrics).get("exact_largest", math.nan)
    return [
        name,
        shown_name(output.place),
        shown_name(output.dtype or ""),
        seen_counts(output),
        "" if math.isnan(largest) else f"{largest:.4g}",
        plain(output.statistic, style=_STYLES.get(output.statistic, "")),
        shown_name(output.message, longest=LONGEST_MESSAGE),
    ]


def _overflow_ending(found: OverflowRun, words: Phrases) -> Iterator[str]:
    kinds = Counter(output.statistic if output else _lost_word(call) for call, output in rows_of(found.run))
    if kinds:
        told = words.comma.join(f"{number:,} {kind}" for kind, number in kinds.items())
        yield words.say("check.overflow.kinds", kinds=told)
    if found.untold:
        yield words.say("check.overflow.untold", calls=words.count(len(found.untold), "call"))
    if found.inherited:
        yield words.say("check.overflow.inherited", calls=words.count(found.inherited, "call"))
    cases = [case.result.case for call in found.run.calls for case in call.cases]
    if any(case.source is DataSource.RANDOM for case in cases):
        yield words.say("check.overflow.estimate")


def _lost_word(call: CheckedCall) -> str:
    return "skipped" if call.verdict is Verdict.SKIP else call.verdict.value


def _perturb_heading(found: PerturbRun, words: Phrases) -> str:
    run, number = found.run, len(found.run.wrong)
    parts = {
        "apis": words.count(len(run.calls), "api"),
        "devices": words.listed([shown_name(device) for device in run.options.devices]),
        "mode": found.mode.value,
    }
    if number:
        key = "check.perturb.unstable" if number == 1 else "check.perturb.unstable.several"
        told = words.say(key, wrong=words.say_number("check.perturb.moves", number), **parts)
    else:
        told = words.say("check.perturb.stable" if run.tested else "check.perturb.nothing", **parts)
    if less := run.count(Verdict.WARN):
        told = words.say("check.perturb.warn", heading=told, number=f"{less:,}")
    return interrupted(told, run, words)


def _perturb_cells(call: CheckedCall, output: OutputResult | None) -> list[str | Text]:
    place, dtype = ("", "") if output is None else (output.place, output.dtype or "")
    return [
        short_name(call.place.call or "", longest=LONGEST_CALL),
        shown_name(place),
        shown_name(dtype),
        plain(call.verdict.value, style=BAD if call.verdict in WRONG else "yellow"),
        shown_name(call.message, longest=LONGEST_MESSAGE),
    ]


def _perturb_ending(found: PerturbRun, words: Phrases) -> Iterator[str]:
    run = found.run
    yield counts_line(run, words)
    reasons = Counter(call.message for call in run.calls if call.verdict is Verdict.SKIP)
    for reason, number in reasons.most_common(REASONS_SHOWN):
        shown = shown_name(reason, longest=LONGEST_MESSAGE)
        yield words.say("check.reason", verdict=Verdict.SKIP.value, number=f"{number:,}", reason=shown)
    if found.standard is not PerturbStandard.CONDITION:
        yield words.say("check.perturb.standard", standard=found.standard.value)
    yield from (words.say("check.remark", text=text) for text in words.remarks(run.remarks, longest=LONGEST_MESSAGE))
