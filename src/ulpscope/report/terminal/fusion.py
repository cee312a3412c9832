"""Tells what `ulpscope fusion` read and wrote, and which passes' operators part, as text and as JSON.

fusion_result.json: 2 graphs, 4 of 6 passes took effect

  graph 0_11
    pass                      stage        effect  match
    MatMulBiasAddFusionPass   GraphFusion       2      2

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
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType

from ulpscope.dialects.ascend.fusion_files import FusionSwitch, GraphFusion, Stage
from ulpscope.records.enums import Phase
from ulpscope.records.findings import FindingKind, Outcome, Place
from ulpscope.records.graphs import FusedOperator, FusionAnalysis
from ulpscope.report.record_json import answer_json, fields_of, finding_entry
from ulpscope.report.tables import OUTCOME_STYLES, answer_text, plain, render, section, table
from ulpscope.report.words.language import Language, Phrases, number_text, phrases, remark_texts, shown_name

GRAPHS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class FusionView:
    """What there is to tell."""

    path: str
    graphs: tuple[GraphFusion, ...]
    """Empty where the file is of switches."""
    switch: FusionSwitch | None
    """What the file says, with what was switched off."""
    switched_off: tuple[str, ...] = ()
    written: str | None = None


def fusion_text(view: FusionView, *, width: int, color: bool, language: Language) -> str:
    """The answer as text of this width."""
    return render(Group(*_parts(view, phrases(language))), width=width, color=color)


def fusion_json(view: FusionView) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    names = _names(view)
    return answer_json(
        "fusion",
        file=view.path,
        counts={"graphs": len(view.graphs), "passes": len(names[0]), "passes_with_effect": len(names[1])},
        graphs=view.graphs,
        switch=None if view.switch is None else {stage.value: _states(view.switch, stage) for stage in Stage},
        switched_off=view.switched_off,
        written=view.written,
    )


def _parts(view: FusionView, words: Phrases) -> Iterator[RenderableType]:
    path = shown_name(view.path)
    if view.graphs:
        everything, effective = _names(view)
        counts = {"graphs": words.count(len(view.graphs), "graph"), "passes": words.count(len(everything), "pass")}
        yield plain(
            words.say("fusion.heading.result", path=path, effective=f"{len(effective):,}", **counts), style="bold"
        )
        yield from (_graph(graph, words) for graph in view.graphs[:GRAPHS_SHOWN])
        if len(view.graphs) > GRAPHS_SHOWN:
            more = words.count(len(view.graphs) - GRAPHS_SHOWN, "graph")
            yield plain(f"  {words.say('fusion.more_graphs', graphs=more)}")
    elif view.switch is not None:
        yield plain(words.say("fusion.heading.switch", path=path), style="bold")
        rows = [
            [stage.value, shown_name(name), state]
            for stage in Stage
            for name, state in _states(view.switch, stage).items()
        ]
        headers = words.columns("stage", "pass", "state")
        yield section(words.say("fusion.switches"), table(headers, rows, folds=headers[1:2]))
    if view.switched_off:
        passes = words.comma.join(map(shown_name, view.switched_off))
        yield plain(f"\n{words.say('fusion.switched_off', passes=passes)}")
    if view.written is not None:
        yield plain(words.say("fusion.written", path=shown_name(view.written)))


def _graph(graph: GraphFusion, words: Phrases) -> RenderableType:
    effective = [each for each in graph.passes if each.effect]
    title = words.say("fusion.graph", name=shown_name(graph.graph))
    if not effective:
        return section(title, plain(words.say("fusion.no_effect")))
    headers = words.columns("pass", "stage", "effect", "match")
    rows = ([shown_name(each.name), each.stage.value, each.effect, each.match] for each in effective)
    return section(title, table(headers, rows, right=headers[2:], folds=headers[:1]))


def _states(switch: FusionSwitch, stage: Stage) -> dict[str, str]:
    return {name: "on" if state else "off" for name, state in switch.states.get(stage, {}).items()}


def _names(view: FusionView) -> tuple[set[str], set[str]]:
    """Passes of any graph, and those that took effect in one."""
    everything = {each.name for graph in view.graphs for each in graph.passes}
    return everything, {each.name for graph in view.graphs for each in graph.passes if each.effect}


_COLUMNS = ("pass", "operators", "identical", "rounding", "inherited", "parting", "which")


def analysis_text(analysis: FusionAnalysis, *, width: int, color: bool, language: Language) -> str:
    """The answer as text of this width."""
    words, first, commands = phrases(language), [], []
    for operator in analysis.parting[:1]:
        name = f"{shown_name(operator.name)}   {shown_name(operator.type)}   {operator.tensor}"
        first = [plain(name, style="bold"), plain(words.say("fusion.stop", text=_difference(operator, words)))]
        commands = [_next(operator, analysis)]
    tables = [_table(analysis, words)] if analysis.operators else []
    missing = [words.say("missing", text=text) for text in words.remarks(analysis.missing, longest=400)]
    heading = plain(_heading(analysis, words), style=OUTCOME_STYLES[analysis.outcome])
    return answer_text(words, heading, (first, tables, missing), commands, gap="\n", width=width, color=color)


def analysis_json(analysis: FusionAnalysis, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    judged = [operator.judgement for operator in analysis.operators]
    words = phrases(language)
    return answer_json(
        "fusion",
        verdict=analysis.outcome,
        findings=[_finding(operator, analysis, words) for operator in analysis.parting],
        notes=[],
        counts={"operators": len(judged), "fused": sum(bool(each.passes) for each in analysis.operators)}
        | {name: judged.count(name) for name in sorted(set(judged))},
        fused=analysis.fused,
        unfused=analysis.unfused,
        graphs=analysis.graphs,
        passes=[
            {
                "pass": name,
                "parts": any(each.parts for each in operators),
                "operators": [
                    {"operator": each.name, **fields_of(each, "type", "judgement", "error")} for each in operators
                ],
            }
            for name, operators in analysis.passes.items()
        ],
        missing=remark_texts(analysis.missing, language),
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
    headers = words.columns(*_COLUMNS)
    rows = [_row(name, operators, words) for name, operators in analysis.passes.items()]
    rows.sort(key=lambda row: -int(row[5]))
    rest = [operator for operator in analysis.operators if not operator.passes]
    rows += [_row(words.say("fusion.not_fused"), rest, words)] if rest else []
    return table(headers, rows, right=headers[1:6], folds=[headers[0], headers[6]])


def _row(name: str, operators: Sequence[FusedOperator], words: Phrases) -> list[str]:
    judged = [operator.judgement for operator in operators]
    inherited = judged.count("inherited") + judged.count("after_choice")
    parting = [shown_name(operator.name) for operator in operators if operator.parts]
    counts = (len(judged), judged.count("identical"), judged.count("rounding"), inherited, len(parting))
    return [shown_name(name), *map(str, counts), words.some(parting)]


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
        phase=Phase.FORWARD,
        op=operator.type,
        module=operator.name,
        **fields_of(operator, "rank", "step", "call", "tensor"),
    )
    evidence = fields_of(operator, "passes", "error", "error_in", "expected")
    statement, difference = _statement(operator, words), _difference(operator, words)
    return finding_entry(
        FindingKind.COMPUTATION,
        place,
        evidence=evidence,
        sentence=words.say("fusion.sentence", statement=statement, difference=difference),
        next_command=_next(operator, analysis),
    )
