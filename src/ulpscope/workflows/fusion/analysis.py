"""`ulpscope fusion ON OFF --graph GRAPH --close-graph GRAPH`: which passes' operators part."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ulpscope.diagnose.networks.fusion_analysis import fused_operators
from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.graph.query import all_operators
from ulpscope.records.enums import ExitCode
from ulpscope.records.network import FusionAnalysis
from ulpscope.report.terminal.fusion import analysis_json, analysis_text
from ulpscope.report.words.language import Language
from ulpscope.workflows.network.command import NetworkOptions, compare_network

if TYPE_CHECKING:
    from ulpscope.report.progress import Advance


@dataclass(frozen=True, slots=True)
class FusionAnalysisResult:
    """What was found, to be told."""

    analysis: FusionAnalysis

    @property
    def code(self) -> ExitCode:
        return self.analysis.code

    def text(self, *, width: int = 100, color: bool = False, language: Language = Language.EN) -> str:
        return analysis_text(self.analysis, width=width, color=color, language=language)

    def json(self, language: Language = Language.EN) -> dict[str, Any]:
        return analysis_json(self.analysis, language)


def analyse_fusion(
    fused: Path, unfused: Path, *, graph: Path, close_graph: Path, jobs: int = 1, advance: "Advance | None" = None
) -> FusionAnalysisResult:
    """Compare dumps of both compilations, and say what each pass did; `graph` is that with fusion."""
    options = NetworkOptions(close_graph=close_graph, jobs=jobs)
    compared = compare_network(unfused, fused, graph, options, advance=advance)
    operators = {operator.name: operator for operator in all_operators(open_graph(graph))}
    found = fused_operators(compared.compared.pairs, operators)
    graphs = str(graph), str(close_graph)
    return FusionAnalysisResult(FusionAnalysis(str(fused), str(unfused), graphs, found, compared.comparison.missing))
