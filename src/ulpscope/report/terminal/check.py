"""Tells what `ulpscope check` found, as text and as JSON.

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

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ulpscope.records.check_runs import NOT_TESTED, WRONG, CheckedCall, CheckRun, CheckStandard, Soundness
from ulpscope.records.checks import OutputResult, Verdict
from ulpscope.records.findings import FindingKind
from ulpscope.report.program import text_at
from ulpscope.report.record_json import answer_json, fields_of, finding_entry
from ulpscope.report.tables import BAD, GOOD, OPEN, answer_text, plain, set_in, table
from ulpscope.report.words.check import (
    check_sentence,
    marked_message,
    message_text,
    next_command,
    outputs_of,
    show_command,
    statement,
    warned,
)
from ulpscope.report.words.comparison import source_name
from ulpscope.report.words.language import Language, Phrases, phrases, remark_texts, short_name, shown_name

ROWS_SHOWN = 20
REASONS_SHOWN = 5
TYPES_SHOWN = 20
"""Reasons of operators, most of which are types without a definition."""
LONGEST_REMARK = 400
LONGEST_API = 48
NARROWEST_TABLE = 90

HEADING_STYLES = {Soundness.UNSOUND: BAD, Soundness.SOUND: GOOD, Soundness.NOTHING_CHECKED: OPEN}
_STYLES = {Verdict.WARN: "yellow", **dict.fromkeys(WRONG, BAD)}


def check_text(run: CheckRun, *, width: int = 80, color: bool = False, language: Language = Language.EN) -> str:
    """The answer as text of this width."""
    words = phrases(language)
    answer = [part for call in run.wrong[:1] for part in _answer(call, run, words)]
    rows = [*run.wrong, *warned(run)]
    tables = list(_table(rows, run, words, width=width))
    ending = [plain(line) for line in _ending(run, words)]
    commands = [words.say("next", command=command) for command in next_commands(run)]
    heading = plain(_heading(run, words), style=HEADING_STYLES[run.soundness])
    return answer_text(heading, (answer, tables, ending), commands, width=width, color=color)


def next_commands(run: CheckRun) -> list[str]:
    """What to type next: the failing call as a script of its own, or a look at a trace that could not be tested."""
    if run.wrong:
        return [next_command(run.wrong[0], run)]
    return [show_command(run)] if run.soundness is Soundness.NOTHING_CHECKED else []


def _heading(run: CheckRun, words: Phrases) -> str:
    told = _verdict_heading(run, words)
    if number := run.count(Verdict.WARN):
        told = words.say("check.heading.warn", heading=told, number=f"{number:,}")
    return interrupted(told, run, words)


def interrupted(heading: str, run: CheckRun, words: Phrases) -> str:
    """The heading, with what was left where a run did not come to its end."""
    if not run.interrupted:
        return heading
    return words.say("interrupted", heading=heading, cases=words.count(run.pending, "case"))


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


def _answer(call: CheckedCall, run: CheckRun, words: Phrases) -> Iterator[RenderableType]:
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
    place, dtype = call.place, plain(shown_name(call.dtype or ""))
    if run.graph is not None:
        name = "  ".join([shown_name(place.module or "", longest=LONGEST_API), *_executions(call, run)])
        return [plain(name), plain(shown_name(place.op or "")), dtype, _verdict_cell(call.verdict)]
    api = short_name(place.call or "", longest=LONGEST_API)
    return [plain(api), dtype, _verdict_cell(call.forward), _verdict_cell(call.backward)]


def _verdict_cell(verdict: Verdict | None) -> Text:
    return Text() if verdict is None else plain(verdict.value, style=_STYLES.get(verdict, ""))


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
        yield from _reasons(run, verdict, words)
    if run.options.standard is not CheckStandard.ROUNDING:
        yield words.say("standard", standard=run.options.standard.value)
    yield from (words.say("check.remark", text=text) for text in words.remarks(run.remarks, longest=LONGEST_REMARK))
    yield from (words.say("missing", text=text) for text in words.remarks(run.missing, longest=LONGEST_REMARK))


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


def _reasons(run: CheckRun, verdict: Verdict, words: Phrases) -> Iterator[str]:
    reasons = Counter(message_text(call, words.language) for call in run.calls if call.verdict is verdict)
    shown = reasons.most_common(REASONS_SHOWN if run.graph is None else TYPES_SHOWN)
    left = reasons.total() - sum(number for _, number in shown)
    for reason, number in [*shown, *([("...", left)] if left else [])]:
        yield words.say("check.reason", verdict=verdict.value, number=f"{number:,}", reason=reason)


Tell = Callable[..., str]
"""A sentence of a call: check_sentence, or that of another question."""


def check_json(run: CheckRun, language: Language = Language.EN, *, tell: Tell = check_sentence) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    return answer_json(
        "check",
        {
            "verdict": run.soundness,
            "findings": [_finding(call, run, language, tell) for call in run.wrong],
            "notes": [_finding(call, run, language, tell) for call in warned(run)],
            "counts": _counts_json(run),
            "trace": run.trace,
            "graph": run.graph,
            "scope": _scope(run),
            "skipped": _reasons_json(run, Verdict.SKIP),
            "untested": _reasons_json(run, Verdict.UNTESTED),
            "interrupted": run.interrupted,
            "remarks": remark_texts(run.remarks, language),
            "missing": remark_texts(run.missing, language),
        },
    )


def _finding(call: CheckedCall, run: CheckRun, language: Language, tell: Tell) -> dict[str, Any]:
    output = call.output
    return finding_entry(
        FindingKind.COMPUTATION,
        replace(call.place, tensor=None if output is None else output.place),
        evidence=_evidence(call, output),
        sentence=tell(call, language, several_ranks=run.processes > 1),
        next_command=next_command(call, run),
    )


def _evidence(call: CheckedCall, output: OutputResult | None) -> dict[str, Any]:
    decisive = call.decisive
    case = {
        "verdict": call.verdict,
        "forward": call.forward,
        "backward": call.backward,
        "variant": decisive.result.case.variant,
        "data": decisive.result.case.source,
        "device": decisive.device,
        "message": call.message,
    }
    if output is None:
        return case
    shown = ("direction", "statistic", "dtype", "shape", "worst", "worst_computed", "worst_exact")
    return case | fields_of(output, *shown) | {"metrics": dict(output.metrics)}


def _counts_json(run: CheckRun) -> dict[str, int]:
    totals = {"apis": len(run.calls), "repeated": run.repeated, "cases": run.executed}
    totals |= {"outputs": len(outputs_of(run)), "outputs_untested": run.untested_outputs}
    return totals | {verdict.value.lower(): run.count(verdict) for verdict in Verdict}


def _scope(run: CheckRun) -> dict[str, Any]:
    options = run.options
    return {
        "devices": options.devices,
        "ranks": sorted({call.place.rank for call in run.calls}),
        "steps": sorted({call.place.step for call in run.calls}),
        "only": options.only,
        "skip": options.skip,
        "all": options.every,
        "stress": options.stress,
        "data": options.source,
        "standard": options.standard,
        "seed": options.seed,
        "references": options.references,
    }


def _reasons_json(run: CheckRun, verdict: Verdict) -> list[dict[str, Any]]:
    reasons = Counter(call.message for call in run.calls if call.verdict is verdict)
    return [{"reason": reason, "apis": number} for reason, number in reasons.most_common()]
