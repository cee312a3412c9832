"""Draws what lies around an operator: by graphviz if it is installed, else by ourselves."""

import shutil
import subprocess
from pathlib import Path

from ulpscope.graph.cutting import Cut, cut_out
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import Graph
from ulpscope.report.terminal.views import Drawing
from ulpscope.report.viewers.graph_drawing import dot_text, svg_text

GRAPHVIZ_SECONDS = 60
"""Graphviz takes very long for some graphs of a thousand operators; ours never does."""


def draw(graph: Graph, name: str, *, depth: int, path: Path) -> Drawing:
    """Write an SVG of an operator and what can be reached from it in this many steps."""
    cut = cut_out(graph, name, depth=depth)
    drawn = _by_graphviz(cut)
    text, by = (drawn, "graphviz") if drawn is not None else (svg_text(cut), "ulpscope")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UlpscopeError(
            f"{path} cannot be written: {error.strerror}",
            expected="a file in a directory that exists",
            next_step="choose another one with --svg",
        ) from error
    return Drawing(path=path, depth=depth, operators=len(cut.operators), by=by)


def _by_graphviz(cut: Cut) -> str | None:
    program = shutil.which("dot")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-Tsvg"], input=dot_text(cut), capture_output=True, encoding="utf-8", timeout=GRAPHVIZ_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 and "<svg" in done.stdout else None
