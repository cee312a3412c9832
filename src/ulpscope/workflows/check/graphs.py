"""What graphs alone tell: casts that lose something, and what another compilation of the network did otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulpscope.diagnose.networks.casts import DangerousCast, dangerous_casts
from ulpscope.diagnose.networks.similarity import GraphSimilarity, compared_graphs, similar_graphs
from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.records.enums import ExitCode
from ulpscope.report.terminal.check_graphs import casts_json, casts_text, similarity_json, similarity_text

DEFAULT_LIMIT = 50


@dataclass(frozen=True, slots=True)
class CastsResult:
    """The dangerous casts of some graph files, in their order."""

    casts: tuple[DangerousCast, ...]
    limit: int | None = DEFAULT_LIMIT
    """How many are told as text; none for all."""

    @property
    def code(self) -> ExitCode:
        return ExitCode.DIFFERENCE if self.casts else ExitCode.OK

    def text(self, *, width: int = 80, color: bool = False) -> str:
        return casts_text(self.casts, limit=self.limit, width=width, color=color)

    def json(self) -> dict[str, Any]:
        return {"schema": 1, "command": "show", "view": "casts", "casts": casts_json(self.casts)}


@dataclass(frozen=True, slots=True)
class SimilarityResult:
    """Graphs of two compilations that belong together."""

    found: tuple[GraphSimilarity, ...]
    limit: int | None = DEFAULT_LIMIT
    """How many operators of each are told as text; none for all."""

    @property
    def code(self) -> ExitCode:
        if not any(each.compared for each in self.found):
            return ExitCode.NOTHING
        return ExitCode.OK if all(each.agrees for each in self.found) else ExitCode.DIFFERENCE

    def text(self, *, width: int = 80, color: bool = False) -> str:
        return similarity_text(self.found, limit=self.limit, width=width, color=color)

    def json(self) -> dict[str, Any]:
        return {"schema": 1, "command": "diff", "verdict": _VERDICTS[self.code], "graphs": similarity_json(self.found)}


_VERDICTS = {ExitCode.OK: "agree", ExitCode.DIFFERENCE: "differ", ExitCode.NOTHING: "nothing_compared"}


def check_casts(paths: Sequence[Path], *, limit: int = DEFAULT_LIMIT) -> CastsResult:
    """Look for dangerous casts in graph files; 0 tells all."""
    return CastsResult(tuple(cast for path in paths for cast in dangerous_casts(open_graph(path))), limit or None)


def check_similarity(reference: Sequence[Path], target: Sequence[Path]) -> SimilarityResult:
    """Compare the graph files of two compilations: graphs of the same session and number."""
    others = [open_graph(path) for path in target]
    found = (similar_graphs(model, other) for model in map(open_graph, reference) for other in others)
    return SimilarityResult(tuple(similarity for several in found for similarity in several))


def diff_graphs(reference: Path, target: Path, *, limit: int = DEFAULT_LIMIT) -> SimilarityResult:
    """Compare two graph files; 0 tells all operators that differ."""
    return SimilarityResult(compared_graphs(open_graph(reference), open_graph(target)), limit or None)
