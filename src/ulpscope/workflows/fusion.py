"""`ulpscope fusion`: what an Ascend compiler fused, a file that switches passes off, and which
passes' operators part (`ulpscope fusion ON OFF --graph GRAPH --close-graph GRAPH`).
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ulpscope.diagnose.network import fused_operators
from ulpscope.dialects.ascend.fusion_files import (
    ALL,
    FusionSwitch,
    GraphFusion,
    Stage,
    is_switch_file,
    read_fusion_result,
    read_fusion_switch,
)
from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.dialects.recognising import wrong_kind
from ulpscope.graph.query import all_operators
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import FusionAnalysis
from ulpscope.report.terminal.fusion import FusionView, analysis_json, analysis_text, fusion_json, fusion_text
from ulpscope.report.words.language import Language
from ulpscope.workflows.answers import SpokenAnswer
from ulpscope.workflows.network.command import NetworkOptions, compare_network
from ulpscope.workflows.results import write_new

if TYPE_CHECKING:
    from ulpscope.report.progress import Advance


NEAR_NAMES = 3


def fusion(
    file: str | Path, *, switch_off: Sequence[str] = (), out: Path | None = None, overwrite: bool = False
) -> SpokenAnswer:
    """Read a fusion_result.json or a switch file; write a switch file with passes off to `out`."""
    path = Path(file)
    graphs: tuple[GraphFusion, ...] = ()
    switch: FusionSwitch | None = None
    try:
        if is_switch_file(path):
            switch = read_fusion_switch(path)
        else:
            graphs = read_fusion_result(path)
    except UlpscopeError as error:
        wanted = "a fusion_result.json or fusion_switch.cfg of the Ascend compiler"
        raise (wrong_kind(path, wanted, command="fusion") or error) from error
    if switch_off:
        switch = (switch or FusionSwitch({})).without(_chosen(path, switch_off, graphs, switch))
        if out is not None:
            write_new(out, switch.text(), overwrite=overwrite)
    view = FusionView(str(path), graphs, switch, tuple(switch_off), None if out is None else str(out))
    # Nothing to tell of a result in which no pass has run.
    told = switch is not None or any(graph.passes for graph in graphs)
    return SpokenAnswer(view, ExitCode.OK if told else ExitCode.NOTHING, fusion_text, _fusion_json)


def _fusion_json(view: FusionView, language: Language) -> dict[str, Any]:
    """Of a file, values alone, which are the same in every language."""
    return fusion_json(view)


def _chosen(
    path: Path, names: Sequence[str], graphs: Sequence[GraphFusion], switch: FusionSwitch | None
) -> list[tuple[Stage, str]]:
    """Each pass with its stage, of which it may have several. A name that no pass has would switch nothing off."""
    known = {(each.stage, each.name) for graph in graphs for each in graph.passes}
    known |= {(stage, name) for stage in Stage for name in (switch.states.get(stage, {}) if switch else ())}
    known |= {(stage, ALL) for stage in Stage}
    for name in names:
        if not any(name == each for _, each in known):
            near = difflib.get_close_matches(name, sorted({each for _, each in known}), n=NEAR_NAMES)
            raise UlpscopeError(
                f"--switch-off {name}: {path} has no such pass",
                expected=f"one of {', '.join(near)}" if near else f"a pass of {path}, or {ALL}",
                next_step=f"list the passes: ulpscope fusion {path}",
            )
    return sorted(pair for pair in known if pair[1] in names)


def analyse_fusion(
    fused: Path, unfused: Path, *, graph: Path, close_graph: Path, jobs: int = 1, advance: "Advance | None" = None
) -> SpokenAnswer:
    """Compare dumps of both compilations, and say what each pass did; `graph` is that with fusion."""
    options = NetworkOptions(close_graph=close_graph, jobs=jobs)
    compared = compare_network(unfused, fused, graph, options, advance=advance)
    operators = {operator.name: operator for operator in all_operators(open_graph(graph))}
    found = fused_operators(compared.pairs, operators)
    graphs = str(graph), str(close_graph)
    analysis = FusionAnalysis(str(fused), str(unfused), graphs, found, compared.comparison.missing)
    return SpokenAnswer(analysis, analysis.code, analysis_text, analysis_json)
