"""Tells what `ulpscope fusion` read and wrote.

fusion_result.json: 2 graphs, 4 of 6 passes took effect

  graph 0_11
    pass                      stage        effect  match
    MatMulBiasAddFusionPass   GraphFusion       2      2
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType

from ulpscope.dialects.ascend.fusion_files import FusionSwitch, GraphFusion, PassCount, Stage
from ulpscope.report.tables import plain, render, section, table
from ulpscope.report.words.language import Language, Phrases, phrases, shown_name

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
    return {
        "schema": 1,
        "command": "fusion",
        "file": view.path,
        "counts": {"graphs": len(view.graphs), "passes": len(names[0]), "passes_with_effect": len(names[1])},
        "graphs": [
            {"graph": graph.graph, "passes": [_pass_json(each) for each in graph.passes]} for graph in view.graphs
        ],
        "switch": None if view.switch is None else {stage.value: _states(view.switch, stage) for stage in Stage},
        "switched_off": list(view.switched_off),
        "written": view.written,
    }


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
        yield _switches(view.switch, words)
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
    headers = [words.say(f"column.{name}") for name in ("pass", "stage", "effect", "match")]
    rows = ([shown_name(each.name), each.stage.value, each.effect, each.match] for each in effective)
    return section(title, table(headers, rows, right=headers[2:], folds=headers[:1]))


def _switches(switch: FusionSwitch, words: Phrases) -> RenderableType:
    rows = [[stage.value, shown_name(name), state] for stage in Stage for name, state in _states(switch, stage).items()]
    headers = [words.say(f"column.{name}") for name in ("stage", "pass", "state")]
    return section(words.say("fusion.switches"), table(headers, rows, folds=headers[1:2]))


def _states(switch: FusionSwitch, stage: Stage) -> dict[str, str]:
    return {name: "on" if state else "off" for name, state in switch.states.get(stage, {}).items()}


def _names(view: FusionView) -> tuple[set[str], set[str]]:
    """Passes of any graph, and those that took effect in one."""
    everything = {each.name for graph in view.graphs for each in graph.passes}
    return everything, {each.name for graph in view.graphs for each in graph.passes if each.effect}


def _pass_json(each: PassCount) -> dict[str, Any]:
    return asdict(each) | {"stage": each.stage.value}
