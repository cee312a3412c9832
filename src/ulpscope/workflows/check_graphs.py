"""What graphs alone tell: casts that lose something, and what another compilation of the network did otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulpscope.diagnose.graph_casts import DangerousCast, dangerous_casts
from ulpscope.diagnose.graph_similarity import GraphSimilarity, similar_graphs
from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.records.enums import ExitCode
from ulpscope.report.check_graphs import casts_json, casts_text, similarity_json, similarity_text


@dataclass(frozen=True, slots=True)
class CastsResult:
    """The dangerous casts of some graph files, in their order."""

    casts: tuple[DangerousCast, ...]

    @property
    def code(self) -> ExitCode:
        return ExitCode.DIFFERENCE if self.casts else ExitCode.OK

    def text(self, *, width: int = 80, color: bool = False) -> str:
        return casts_text(self.casts, width=width, color=color)

    def json(self) -> dict[str, Any]:
        return {"schema": 1, "command": "show", "casts": casts_json(self.casts)}


@dataclass(frozen=True, slots=True)
class SimilarityResult:
    """Graphs of two compilations that belong together."""

    found: tuple[GraphSimilarity, ...]

    @property
    def code(self) -> ExitCode:
        if not self.found:
            return ExitCode.NOTHING
        return ExitCode.OK if all(each.agrees for each in self.found) else ExitCode.DIFFERENCE

    def text(self, *, width: int = 80, color: bool = False) -> str:
        return similarity_text(self.found, width=width, color=color)

    def json(self) -> dict[str, Any]:
        return {"schema": 1, "command": "diff", "graphs": similarity_json(self.found)}


def check_casts(paths: Sequence[Path]) -> CastsResult:
    """Look for dangerous casts in graph files."""
    return CastsResult(tuple(cast for path in paths for cast in dangerous_casts(open_graph(path))))


def check_similarity(reference: Sequence[Path], target: Sequence[Path]) -> SimilarityResult:
    """Compare the graph files of two compilations: graphs of the same session and number."""
    others = [open_graph(path) for path in target]
    found = (similar_graphs(model, other) for model in map(open_graph, reference) for other in others)
    return SimilarityResult(tuple(similarity for several in found for similarity in several))
