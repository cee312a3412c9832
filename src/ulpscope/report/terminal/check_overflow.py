"""Tells what `ulpscope check --overflow` found, as text.

ABNORMAL: of 3 calls that made inf or nan out of finite numbers, 1 did so where the CPU does not

  call       output    dtype    not finite  exact max  verdict   message
  exp.0      output.0  float16  5 +inf      1.2e+03    abnormal  the CPU gives finite numbers: ...
  linear.0   output.0  float16  119         2.2e+06    normal    the exact result reaches 2.209e+06, ...

  1 abnormal, 1 normal, 1 stated.
"""

import math
from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ulpscope.records.check_runs import CheckedCall, OverflowRun
from ulpscope.records.checks import DataSource, OutputResult, Verdict
from ulpscope.records.overflows import NotFinite, Overflow
from ulpscope.report.files.check_tables import Row, rows_of
from ulpscope.report.tables import plain, render, table
from ulpscope.report.words.check import LONGEST_MESSAGE, repro_command, short_name
from ulpscope.report.words.language import Language, Phrases, phrases, shown_name

ROWS_SHOWN = 20
_STYLES = {Overflow.ABNORMAL.value: "bold red", Overflow.UNCLEAR.value: "yellow"}
_ORDER = (Overflow.ABNORMAL, Overflow.UNCLEAR, Overflow.NORMAL, Overflow.STATED)


def overflow_text(found: OverflowRun, *, width: int, color: bool, language: Language) -> str:
    """The answer as text of this width."""
    words = phrases(language)
    parts: list[RenderableType] = [plain(_heading(found, words), style=_heading_style(found)), Text()]
    rows = sorted(_shown(found), key=lambda row: _rank(row[1]))
    if rows:
        parts += [_set_in(*_table(rows, words)), Text()]
    parts.append(_set_in(*(plain(line) for line in _ending(found, words))))
    commands = "".join(f"  Next: {repro_command(call, found.run)}\n" for call in found.run.wrong[:1])
    return render(Group(*parts), width=width, color=color) + commands


def seen_counts(output: OutputResult) -> NotFinite:
    """What of an output was not finite in the run; where that is not recorded, here."""
    figures = dict(output.metrics)
    names = ("nan", "pos_inf", "neg_inf")
    who = next((who for who in ("recorded", "device", "cpu") if f"{who}_nan" in figures), "exact")
    return NotFinite(*(int(figures.get(f"{who}_{name}", 0)) for name in names))


def _heading(found: OverflowRun, words: Phrases) -> str:
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
    if run.interrupted:
        return words.say("interrupted", heading=told, cases=words.count(run.pending, "case"))
    return told


def _heading_style(found: OverflowRun) -> str:
    return "bold red" if found.run.wrong else "bold green" if found.tells else "bold yellow"


def _shown(found: OverflowRun) -> Iterator[Row]:
    return (row for row in rows_of(found.run) if row[1] is None or row[1].statistic != Overflow.FINITE.value)


def _rank(output: OutputResult | None) -> int:
    if output is None:
        return -1
    if output.statistic == Overflow.UNCLEAR.value and "recorded_nan" not in dict(output.metrics):
        return len(_ORDER)
    return [kind.value for kind in _ORDER].index(output.statistic)


def _table(rows: list[Row], words: Phrases) -> Iterator[RenderableType]:
    names = ("call", "output", "dtype", "not_finite", "exact", "verdict", "message")
    headers = [words.say(f"column.{name}") for name in names]
    yield table(headers, (_cells(*row) for row in rows[:ROWS_SHOWN]), folds=[headers[-1]])
    if len(rows) > ROWS_SHOWN:
        yield plain(words.say("check.more_of_table", number=f"{len(rows) - ROWS_SHOWN:,}"))


def _cells(call: CheckedCall, output: OutputResult | None) -> list[Text]:
    if output is None:
        message = shown_name(call.message, longest=LONGEST_MESSAGE)
        return [plain(cell) for cell in (short_name(call), "", "", "", "", call.verdict.value, message)]
    largest = dict(output.metrics).get("exact_largest", math.nan)
    return [
        plain(short_name(call)),
        plain(shown_name(output.place)),
        plain(shown_name(output.dtype or "")),
        plain(seen_counts(output)),
        plain("" if math.isnan(largest) else f"{largest:.4g}"),
        plain(output.statistic, style=_STYLES.get(output.statistic, "")),
        plain(shown_name(output.message, longest=LONGEST_MESSAGE)),
    ]


def _ending(found: OverflowRun, words: Phrases) -> Iterator[str]:
    kinds = Counter(output.statistic if output else _lost_word(call) for call, output in rows_of(found.run))
    if kinds:
        yield words.say(
            "check.overflow.kinds", kinds=words.comma.join(f"{number:,} {kind}" for kind, number in kinds.items())
        )
    if found.untold:
        yield words.say("check.overflow.untold", calls=words.count(len(found.untold), "call"))
    if found.inherited:
        yield words.say("check.overflow.inherited", calls=words.count(found.inherited, "call"))
    cases = [case.result.case for call in found.run.calls for case in call.cases]
    if any(case.source is DataSource.RANDOM for case in cases):
        yield words.say("check.overflow.estimate")


def _lost_word(call: CheckedCall) -> str:
    return "skipped" if call.verdict is Verdict.SKIP else call.verdict.value


def _set_in(*parts: RenderableType) -> RenderableType:
    return Padding(Group(*parts), (0, 0, 0, 2))
