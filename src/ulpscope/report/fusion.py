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
from ulpscope.report.language import shown_name
from ulpscope.report.quantities import count_text
from ulpscope.report.tables import plain, render, section, table

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


def fusion_text(view: FusionView, *, width: int, color: bool) -> str:
    """The answer as text of this width."""
    return render(Group(*_parts(view)), width=width, color=color)


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


def _parts(view: FusionView) -> Iterator[RenderableType]:
    if view.graphs:
        everything, effective = _names(view)
        told = f"{len(effective):,} of {count_text(len(everything), 'pass')} took effect"
        yield plain(f"{shown_name(view.path)}: {count_text(len(view.graphs), 'graph')}, {told}", style="bold")
        yield from (_graph(graph) for graph in view.graphs[:GRAPHS_SHOWN])
        if len(view.graphs) > GRAPHS_SHOWN:
            yield plain(f"  and {count_text(len(view.graphs) - GRAPHS_SHOWN, 'graph')} more: --json")
    elif view.switch is not None:
        yield plain(f"{shown_name(view.path)}: switches of fusion passes", style="bold")
    if view.switch is not None and not view.graphs:
        yield _switches(view.switch)
    if view.switched_off:
        yield plain(f"\nSwitched off: {', '.join(map(shown_name, view.switched_off))}")
    if view.written is not None:
        yield plain(f"Written to {shown_name(view.written)}: give it to the compiler as fusion_switch_file")


def _graph(graph: GraphFusion) -> RenderableType:
    effective = [each for each in graph.passes if each.effect]
    title = f"graph {shown_name(graph.graph)}"
    if not effective:
        return section(title, plain("No pass took effect."))
    headers = ["pass", "stage", "effect", "match"]
    rows = ([shown_name(each.name), each.stage.value, each.effect, each.match] for each in effective)
    return section(title, table(headers, rows, right=headers[2:], folds=headers[:1]))


def _switches(switch: FusionSwitch) -> RenderableType:
    rows = [[stage.value, shown_name(name), state] for stage in Stage for name, state in _states(switch, stage).items()]
    return section("switches", table(["stage", "pass", "state"], rows, folds=["pass"]))


def _states(switch: FusionSwitch, stage: Stage) -> dict[str, str]:
    return {name: "on" if state else "off" for name, state in switch.states.get(stage, {}).items()}


def _names(view: FusionView) -> tuple[set[str], set[str]]:
    """Passes of any graph, and those that took effect in one."""
    everything = {each.name for graph in view.graphs for each in graph.passes}
    return everything, {each.name for graph in view.graphs for each in graph.passes if each.effect}


def _pass_json(each: PassCount) -> dict[str, Any]:
    return asdict(each) | {"stage": each.stage.value}
