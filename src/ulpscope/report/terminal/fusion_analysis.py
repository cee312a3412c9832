"""Tells which passes' operators part.

DIVERGED: DenseBFusionPass parts: b/fused gives other numbers with fusion

  b/fused   MatMulV2   output.0
  Its output differs by 0.78, where rounding and its inputs explain 1.7e-3.

  pass              operators  identical  rounding  inherited  parting  which
  DenseBFusionPass          1          0         0          0        1  b/fused
  DenseAFusionPass          1          0         1          0        0

  Next: ulpscope fusion fusion_result.json --switch-off DenseBFusionPass --out fusion_switch.cfg
"""

import shlex
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ulpscope.records.enums import Phase
from ulpscope.records.findings import FindingKind, Outcome, Place
from ulpscope.records.network import FusedOperator, FusionAnalysis
from ulpscope.report.record_json import answer_json, finding_entry
from ulpscope.report.tables import plain, render, table
from ulpscope.report.words.language import Language, Phrases, number_text, phrases, remark_texts, shown_name

NAMES_SHOWN = 3
_COLUMNS = ("pass", "operators", "identical", "rounding", "inherited", "parting", "which")
_STYLES = {Outcome.AGREE: "bold green", Outcome.DIVERGED: "bold red", Outcome.NOTHING_COMPARED: "bold yellow"}


def analysis_text(analysis: FusionAnalysis, *, width: int, color: bool, language: Language) -> str:
    """The answer as text of this width."""
    words = phrases(language)
    parts: list[RenderableType] = [plain(_heading(analysis, words), style=_STYLES[analysis.outcome]), Text()]
    if analysis.parting:
        first = analysis.parting[0]
        parts += [_set_in(plain(f"{shown_name(first.name)}   {shown_name(first.type)}   {first.tensor}", style="bold"))]
        parts += [_set_in(plain(words.say("fusion.stop", text=_difference(first, words)))), Text()]
    if analysis.operators:
        parts.append(_set_in(_table(analysis, words)))
    if analysis.missing:
        told = (
            words.say("missing", text=shown_name(text, longest=400))
            for text in remark_texts(analysis.missing, language)
        )
        parts += [Text(), *(_set_in(plain(line)) for line in told)]
    # Commands are to be copied: a terminal that breaks a long line itself keeps it one line.
    commands = (words.say("next", command=_next(first, analysis)) for first in analysis.parting[:1])
    return render(Group(*parts), width=width, color=color) + "".join(f"\n  {line}\n" for line in commands)


def analysis_json(analysis: FusionAnalysis, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    judged = [operator.judgement for operator in analysis.operators]
    words = phrases(language)
    return answer_json(
        "fusion",
        {
            "verdict": analysis.outcome,
            "findings": [_finding(operator, analysis, words) for operator in analysis.parting],
            "notes": [],
            "counts": {"operators": len(judged), "fused": sum(bool(each.passes) for each in analysis.operators)}
            | {name: judged.count(name) for name in sorted(set(judged))},
            "fused": analysis.fused,
            "unfused": analysis.unfused,
            "graphs": analysis.graphs,
            "passes": [_pass_json(name, operators) for name, operators in analysis.passes.items()],
            "missing": remark_texts(analysis.missing, language),
        },
    )


def _heading(analysis: FusionAnalysis, words: Phrases) -> str:
    if analysis.outcome is Outcome.NOTHING_COMPARED:
        return words.say("fusion.heading.nothing")
    if analysis.outcome is Outcome.AGREE:
        return words.say("fusion.heading.agree", operators=words.count(len(analysis.operators), "operator"))
    return words.say("fusion.heading.diverged", statement=_statement(analysis.parting[0], words))


def _statement(operator: FusedOperator, words: Phrases) -> str:
    key = "unfused" if not operator.passes else "pass" if len(operator.passes) == 1 else "passes"
    passes = words.listed([shown_name(name) for name in operator.passes])
    return words.say(f"fusion.statement.{key}", name=shown_name(operator.name), passes=passes)


def _difference(operator: FusedOperator, words: Phrases) -> str:
    size = "?" if operator.error is None else number_text(operator.error)
    if operator.expected is None:
        return words.say("fusion.difference", size=size)
    return words.say("fusion.difference.explained", size=size, expected=number_text(operator.expected))


def _table(analysis: FusionAnalysis, words: Phrases) -> RenderableType:
    headers = [words.say(f"column.{name}") for name in _COLUMNS]
    rows = [_row(name, operators, words) for name, operators in analysis.passes.items()]
    rows.sort(key=lambda row: -int(row[5]))
    rest = [operator for operator in analysis.operators if not operator.passes]
    rows += [_row(words.say("fusion.not_fused"), rest, words)] if rest else []
    return table(headers, rows, right=headers[1:6], folds=[headers[0], headers[6]])


def _row(name: str, operators: Sequence[FusedOperator], words: Phrases) -> list[str]:
    judged = [operator.judgement for operator in operators]
    inherited = judged.count("inherited") + judged.count("after_choice")
    parting = [shown_name(operator.name) for operator in operators if operator.parts]
    which, left = words.comma.join(parting[:NAMES_SHOWN]), len(parting) - NAMES_SHOWN
    counts = (len(judged), judged.count("identical"), judged.count("rounding"), inherited, len(parting))
    return [
        shown_name(name),
        *map(str, counts),
        words.say("names.and_more", names=which, left=left) if left > 0 else which,
    ]


def _next(operator: FusedOperator, analysis: FusionAnalysis) -> str:
    """Switch the pass off; what no pass made is looked into."""
    if not operator.passes:
        graph, close_graph = analysis.graphs
        words = ["ulpscope", "compare", analysis.unfused, analysis.fused, "--graph", graph]
        return shlex.join([*words, "--close-graph", close_graph])
    passes = shlex.quote(",".join(operator.passes))
    return f"ulpscope fusion fusion_result.json --switch-off {passes} --out fusion_switch.cfg"


def _finding(operator: FusedOperator, analysis: FusionAnalysis, words: Phrases) -> dict[str, Any]:
    place = Place(
        rank=operator.rank,
        step=operator.step,
        phase=Phase.FORWARD,
        call=operator.call,
        op=operator.type,
        module=operator.name,
        tensor=operator.tensor,
    )
    evidence = {name: getattr(operator, name) for name in ("passes", "error", "error_in", "expected")}
    statement, difference = _statement(operator, words), _difference(operator, words)
    return finding_entry(
        FindingKind.COMPUTATION,
        place,
        evidence=evidence,
        sentence=words.say("fusion.sentence", statement=statement, difference=difference),
        next_command=_next(operator, analysis),
    )


def _pass_json(name: str, operators: Sequence[FusedOperator]) -> dict[str, Any]:
    shown = [
        {"operator": each.name, "type": each.type, "judgement": each.judgement, "error": each.error}
        for each in operators
    ]
    return {"pass": name, "parts": any(each.parts for each in operators), "operators": shown}


def _set_in(content: RenderableType) -> RenderableType:
    return Padding(content, (0, 0, 0, 2))
