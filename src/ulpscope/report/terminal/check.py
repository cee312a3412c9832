"""Tells what `ulpscope check` found, as text for a terminal or a file.

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
"""

from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ulpscope.records.check_runs import NOT_TESTED, WRONG, CheckedCall, CheckRun, CheckStandard, Soundness
from ulpscope.records.checks import Verdict
from ulpscope.report.source import text_at
from ulpscope.report.tables import plain, render, table
from ulpscope.report.words.check import marked_message, message_text, next_command, show_command, statement
from ulpscope.report.words.comparison import source_name
from ulpscope.report.words.language import Language, Phrases, phrases, remark_texts, shown_name

ROWS_SHOWN = 20
REASONS_SHOWN = 5
TYPES_SHOWN = 20
"""Reasons of operators, most of which are types without a definition."""
LONGEST_REMARK = 400
LONGEST_API = 48
NARROWEST_TABLE = 90

_HEADING_STYLES = {
    Soundness.UNSOUND: "bold red",
    Soundness.SOUND: "bold green",
    Soundness.NOTHING_CHECKED: "bold yellow",
}
_STYLES = {Verdict.WARN: "yellow", **dict.fromkeys(WRONG, "bold red")}


def check_text(run: CheckRun, *, width: int = 80, color: bool = False, language: Language = Language.EN) -> str:
    """The answer as text of this width."""
    words = phrases(language)
    parts: list[RenderableType] = [plain(_heading(run, words), style=_HEADING_STYLES[run.soundness]), Text()]
    if run.wrong:
        parts += [_set_in(*_answer(run.wrong[0], run, language)), Text()]
    rows = [*run.wrong, *(call for call in run.calls if call.verdict is Verdict.WARN)]
    if rows:
        parts += [_set_in(*_table(rows, run, language, width=width)), Text()]
    parts.append(_set_in(*(plain(line) for line in _ending(run, words, language))))
    # Commands are to be copied: a terminal that breaks a long line itself keeps it one line.
    commands = "".join(f"  {words.say('next', command=command)}\n" for command in next_commands(run))
    return render(Group(*parts), width=width, color=color) + commands


def next_commands(run: CheckRun) -> list[str]:
    """What to type next: the failing call as a script of its own, or a look at a trace that could not be tested."""
    if run.wrong:
        return [next_command(run.wrong[0], run)]
    return [show_command(run)] if run.soundness is Soundness.NOTHING_CHECKED else []


def _heading(run: CheckRun, words: Phrases) -> str:
    told = _verdict_heading(run, words)
    if warned := run.count(Verdict.WARN):
        told = words.say("check.heading.warn", heading=told, number=f"{warned:,}")
    if not run.interrupted:
        return told
    return words.say("interrupted", heading=told, cases=words.count(run.pending, "case"))


def _verdict_heading(run: CheckRun, words: Phrases) -> str:
    devices = words.listed([shown_name(device) for device in run.options.devices])
    apis = words.count(len(run.calls), _noun(run))
    if run.soundness is Soundness.UNSOUND:
        numbers = {verdict: run.count(verdict) for verdict in WRONG}
        wrong = [
            words.say_number(f"check.wrong.{verdict.value}", number) for verdict, number in numbers.items() if number
        ]
        return words.say("check.heading.unsound", wrong=words.listed(wrong), apis=apis, devices=devices)
    if run.soundness is Soundness.SOUND:
        return words.say("check.heading.sound", apis=words.count(len(run.tested), _noun(run)), devices=devices)
    return words.say("check.heading.nothing", apis=apis, trace=shown_name(run.trace), devices=devices)


def _noun(run: CheckRun) -> str:
    return "api" if run.graph is None else "operator"


def _answer(call: CheckedCall, run: CheckRun, language: Language) -> Iterator[RenderableType]:
    place = call.place
    cells = [plain(shown_name(place.call or ""), style="bold")]
    if run.graph is not None:
        cells = [plain(shown_name(place.module or ""), style="bold"), plain(shown_name(place.op or ""))]
        cells += [plain(where) for where in _executions(call, run)]
    if place.source:
        text = text_at(place.source)
        cells += [plain(shown_name(text), style="cyan")] if text is not None else []
        cells.append(plain(source_name(place.source)))
    yield Text("   ").join(cells)
    yield plain(f"{statement(call, language)}{phrases(language).stop}")


def _executions(call: CheckedCall, run: CheckRun) -> list[str]:
    """Of an operator that several devices or steps dumped: which of them."""
    places = {(each.place.rank, each.place.step) for each in run.calls}
    return [f"npu:{call.place.rank}, step {call.place.step}"] if len(places) > 1 else []


def _table(calls: list[CheckedCall], run: CheckRun, language: Language, *, width: int) -> Iterator[RenderableType]:
    words = phrases(language)
    names = ["api", "dtype", "forward", "backward", "message"]
    if run.graph is not None:
        names = ["operator", "type", "dtype", "verdict", "message"]
    headers = [words.say(f"column.{name}") for name in names]
    cells = [[*_first_cells(call, run), plain(marked_message(call, language))] for call in calls[:ROWS_SHOWN]]
    if width >= NARROWEST_TABLE:
        yield table(headers, cells, folds=[headers[-1]])
    else:
        yield from (_stacked(row) for row in cells)
    if len(calls) > ROWS_SHOWN:
        yield plain(words.say("more", number=f"{len(calls) - ROWS_SHOWN:,}", file="result.csv"))


def _first_cells(call: CheckedCall, run: CheckRun) -> list[Text]:
    place, dtype = call.place, plain(shown_name(call.dtype or ""))
    if run.graph is not None:
        name = "  ".join([shown_name(place.module or "", longest=LONGEST_API), *_executions(call, run)])
        return [plain(name), plain(shown_name(place.op or "")), dtype, _verdict_cell(call.verdict)]
    api = shown_name(".".join((place.call or "").split(".")[-2:]), longest=LONGEST_API)
    return [plain(api), dtype, _verdict_cell(call.forward), _verdict_cell(call.backward)]


def _verdict_cell(verdict: Verdict | None) -> Text:
    return Text() if verdict is None else plain(verdict.value, style=_STYLES.get(verdict, ""))


def _stacked(cells: list[Text]) -> RenderableType:
    """One row of a narrow terminal: what is short in one line, the message below."""
    drawn = Table.grid()
    drawn.add_row(Text("  ").join(cell for cell in cells[:-1] if cell))
    drawn.add_row(Padding(cells[-1], (0, 0, 0, 2)))
    return drawn


def _ending(run: CheckRun, words: Phrases, language: Language) -> Iterator[str]:
    yield _counts(run, words)
    yield from _repeated(run, words)
    if run.untested_outputs:
        yield words.say("check.untested_outputs", outputs=words.count(run.untested_outputs, "output"))
    for verdict in NOT_TESTED:
        yield from _reasons(run, verdict, words, language)
    if run.options.standard is not CheckStandard.ROUNDING:
        yield words.say("check.standard", standard=run.options.standard.value)
    yield from (
        words.say("check.remark", text=shown_name(text, longest=LONGEST_REMARK))
        for text in remark_texts(run.remarks, language)
    )
    yield from (
        words.say("missing", text=shown_name(text, longest=LONGEST_REMARK))
        for text in remark_texts(run.missing, language)
    )


def _counts(run: CheckRun, words: Phrases) -> str:
    outputs = sum(len(case.result.outputs) for call in run.calls for case in call.cases)
    counts = [f"{number:,} {verdict.value}" for verdict in Verdict if (number := run.count(verdict))]
    return words.say(
        "check.counts",
        apis=words.count(len(run.calls), _noun(run)),
        cases=words.count(run.executed, "case"),
        outputs=words.count(outputs, "output"),
        counts=words.comma.join(counts) or "0",
    )


def _repeated(run: CheckRun, words: Phrases) -> Iterator[str]:
    if run.repeated:
        yield words.say("check.repeated", calls=words.count(run.repeated, "call"))


def _reasons(run: CheckRun, verdict: Verdict, words: Phrases, language: Language) -> Iterator[str]:
    reasons = Counter(message_text(call, language) for call in run.calls if call.verdict is verdict)
    shown = reasons.most_common(REASONS_SHOWN if run.graph is None else TYPES_SHOWN)
    for reason, number in shown:
        yield words.say("check.reason", verdict=verdict.value, number=f"{number:,}", reason=reason)
    left = sum(reasons.values()) - sum(number for _, number in shown)
    if left:
        yield words.say("check.reason", verdict=verdict.value, number=f"{left:,}", reason="...")


def _set_in(*parts: RenderableType) -> RenderableType:
    return Padding(Group(*parts), (0, 0, 0, 2))
