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
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ulpscope.records.findings import FindingKind, Outcome
from ulpscope.records.fusion_analysis import FusedOperator, FusionAnalysis
from ulpscope.report.language import number_text, shown_name
from ulpscope.report.quantities import count_text
from ulpscope.report.strict_json import strict
from ulpscope.report.tables import plain, render, table

NAMES_SHOWN = 3
NOT_FUSED = "(not fused)"
_STYLES = {Outcome.AGREE: "bold green", Outcome.DIVERGED: "bold red", Outcome.NOTHING_COMPARED: "bold yellow"}


def analysis_text(analysis: FusionAnalysis, *, width: int, color: bool) -> str:
    """The answer as text of this width."""
    parts: list[RenderableType] = [plain(_heading(analysis), style=_STYLES[analysis.outcome]), Text()]
    if analysis.parting:
        first = analysis.parting[0]
        parts += [_set_in(plain(f"{shown_name(first.name)}   {shown_name(first.type)}   {first.tensor}", style="bold"))]
        parts += [_set_in(plain(f"{_difference(first)}.")), Text()]
    if analysis.operators:
        parts.append(_set_in(_table(analysis)))
    if analysis.missing:
        parts += [Text(), *(_set_in(plain(f"Missing: {shown_name(text, longest=400)}")) for text in analysis.missing)]
    # Commands are to be copied: a terminal that breaks a long line itself keeps it one line.
    commands = "".join(f"\n  Next: {command}\n" for command in _next_commands(analysis))
    return render(Group(*parts), width=width, color=color) + commands


def analysis_json(analysis: FusionAnalysis) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    judged = [operator.judgement for operator in analysis.operators]
    content: dict[str, Any] = strict(
        {
            "schema": 1,
            "command": "fusion",
            "verdict": analysis.outcome,
            "findings": [_finding(operator, analysis) for operator in analysis.parting],
            "notes": [],
            "counts": {"operators": len(judged), "fused": sum(bool(each.passes) for each in analysis.operators)}
            | {name: judged.count(name) for name in sorted(set(judged))},
            "fused": analysis.fused,
            "unfused": analysis.unfused,
            "graphs": analysis.graphs,
            "passes": [_pass_json(name, operators) for name, operators in analysis.passes.items()],
            "missing": analysis.missing,
        }
    )
    return content


def _heading(analysis: FusionAnalysis) -> str:
    if analysis.outcome is Outcome.NOTHING_COMPARED:
        return "NOTHING COMPARED: no operator has a partner in the dump without fusion"
    if analysis.outcome is Outcome.AGREE:
        return f"AGREE: {count_text(len(analysis.operators), 'operator')} compared, fusion changes none beyond rounding"
    return f"DIVERGED: {_statement(analysis.parting[0])}"


def _statement(operator: FusedOperator) -> str:
    name = shown_name(operator.name)
    if not operator.passes:
        return f"{name} parts, which no pass has fused: look at both runs before blaming fusion"
    passes = " and ".join(map(shown_name, operator.passes))
    return f"{passes} {'part' if len(operator.passes) > 1 else 'parts'}: {name} gives other numbers with fusion"


def _difference(operator: FusedOperator) -> str:
    size = "?" if operator.error is None else number_text(operator.error)
    told = f"Its output differs by {size}"
    if operator.expected is not None:
        told += f", where rounding and its inputs explain {number_text(operator.expected)}"
    return told


def _table(analysis: FusionAnalysis) -> RenderableType:
    headers = ["pass", "operators", "identical", "rounding", "inherited", "parting", "which"]
    rows = [_row(name, operators) for name, operators in analysis.passes.items()]
    rows.sort(key=lambda row: -int(row[5]))
    rest = [operator for operator in analysis.operators if not operator.passes]
    rows += [_row(NOT_FUSED, rest)] if rest else []
    return table(headers, rows, right=headers[1:6], folds=["pass", "which"])


def _row(name: str, operators: Sequence[FusedOperator]) -> list[str]:
    judged = [operator.judgement for operator in operators]
    inherited = judged.count("inherited") + judged.count("after_choice")
    parting = [shown_name(operator.name) for operator in operators if operator.parts]
    more = f" and {len(parting) - NAMES_SHOWN} more" if len(parting) > NAMES_SHOWN else ""
    counts = (len(judged), judged.count("identical"), judged.count("rounding"), inherited, len(parting))
    return [shown_name(name), *map(str, counts), ", ".join(parting[:NAMES_SHOWN]) + more]


def _next_commands(analysis: FusionAnalysis) -> Iterator[str]:
    if analysis.parting:
        yield _next(analysis.parting[0], analysis)


def _next(operator: FusedOperator, analysis: FusionAnalysis) -> str:
    """Switch the pass off; what no pass made is looked into."""
    if not operator.passes:
        graph, close_graph = analysis.graphs
        words = ["ulpscope", "compare", analysis.unfused, analysis.fused, "--graph", graph]
        return shlex.join([*words, "--close-graph", close_graph])
    passes = shlex.quote(",".join(operator.passes))
    return f"ulpscope fusion fusion_result.json --switch-off {passes} --out fusion_switch.cfg"


def _finding(operator: FusedOperator, analysis: FusionAnalysis) -> dict[str, Any]:
    return {
        "kind": FindingKind.COMPUTATION,
        "rank": operator.rank,
        "step": operator.step,
        "phase": "forward",
        "call": operator.call,
        "op": operator.type,
        "module": operator.name,
        "tensor": operator.tensor,
        "source": None,
        "evidence": {
            "passes": operator.passes,
            "error": operator.error,
            "error_in": operator.error_in,
            "expected": operator.expected,
        },
        "sentence": f"{_statement(operator)}. {_difference(operator)}.",
        "next": _next(operator, analysis),
    }


def _pass_json(name: str, operators: Sequence[FusedOperator]) -> dict[str, Any]:
    shown = [
        {"operator": each.name, "type": each.type, "judgement": each.judgement, "error": each.error}
        for each in operators
    ]
    return {"pass": name, "parts": any(each.parts for each in operators), "operators": shown}


def _set_in(content: RenderableType) -> RenderableType:
    return Padding(content, (0, 0, 0, 2))
