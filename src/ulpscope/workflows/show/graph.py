"""`ulpscope show GRAPH`: counts, lists and looks into the operators of a graph file; draws what lies around one;
tells casts that lose something, and what another compilation of the network did otherwise.
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ulpscope.diagnose.network_graphs import (
    DangerousCast,
    GraphSimilarity,
    compared_graphs,
    dangerous_casts,
    similar_graphs,
)
from ulpscope.dialects.graphs.opening import open_graph
from ulpscope.graph.query import (
    Borders,
    Cut,
    OperatorFilter,
    borders,
    cut_out,
    find_operators,
    fits,
    made_at,
    match_operators,
    nearest_names,
    type_counts,
    wiring,
)
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import Graph, GraphModel, Operator
from ulpscope.report.files.graph_drawing import dot_text, svg_text
from ulpscope.report.terminal.show_graph import (
    AnyGraphView,
    Drawing,
    GraphView,
    OperatorListView,
    OperatorsView,
    OperatorView,
    show_graph_json,
    show_graph_text,
)
from ulpscope.report.terminal.show_results import casts_json, casts_text, similarity_json, similarity_text
from ulpscope.workflows.answers import Answer

DEFAULT_LIMIT = 50
DEFAULT_DEPTH = 2
GRAPHS_NAMED = 8
"""In an error."""


def _told(view: AnyGraphView, code: ExitCode = ExitCode.OK) -> Answer:
    return Answer(view, code, show_graph_text, show_graph_json)


@dataclass(frozen=True, slots=True)
class NodeWishes:
    """What is wanted to be known about one operator, beyond what the graph says at once."""

    attributes: bool = False
    dumps: Path | None = None
    reference: Path | None = None
    svg: Path | None = None
    depth: int = DEFAULT_DEPTH


def show_graph(
    path: str | Path,
    wanted: OperatorFilter | None = None,
    *,
    model: GraphModel | None = None,
    node: str | None = None,
    wishes: NodeWishes | None = None,
    limit: int | None = DEFAULT_LIMIT,
) -> Answer:
    """Look at a graph: as a whole, at the operators that a filter wants, or at those of one name.

    A limit of 0 lists all. Who has read the graph already gives its `model`.
    """
    model = model or open_graph(path)
    wanted = wanted or OperatorFilter()
    if node is not None:
        return _named(model, str(path), node, wanted=wanted, wishes=wishes or NodeWishes(), limit=limit or None)
    if wanted:
        found = match_operators(model, wanted)
        nearest = () if found or wanted.name is None else tuple(nearest_names(model, wanted.name))
        return _listed(model, str(path), found, filter_words=str(wanted), limit=limit or None, nearest=nearest)
    return _told(GraphView(str(path), model, tuple(type_counts(model))))


def _named(
    model: GraphModel, path: str, node: str, *, wanted: OperatorFilter, wishes: NodeWishes, limit: int | None
) -> Answer:
    found = find_operators(model, node)
    operators = [operator for operator in found.operators if fits(operator, wanted)]
    if operators:
        return _told(_operators_view(model, path, operators, wishes=wishes, limit=limit))
    candidates = [operator for operator in found.candidates if fits(operator, wanted)]
    if candidates:
        return _listed(model, path, candidates, filter_words=node, limit=limit, meant=node)
    elsewhere = found.operators or found.candidates
    if elsewhere:
        # They are there, but not where they were looked for.
        names = list(dict.fromkeys(one.name for one in elsewhere))
        graphs = list(dict.fromkeys(one.graph for one in elsewhere))
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        raise UlpscopeError(
            f"{path} has {names[0]}{more}, but not with {wanted}",
            expected=f"a graph that has it: {', '.join(graphs[:GRAPHS_NAMED])}",
            next_step=f"ulpscope show {path} {names[0]} --graph {graphs[0]}",
        )
    near = nearest_names(model, node)
    raise UlpscopeError(
        f"{path} has no operator {node!r}",
        expected=f"the name of one; did you mean {' or '.join(near)}"
        if near
        else "the name of an operator, or a part of it",
        next_step=f"list them: ulpscope show {path} --name ''",
    )


def _listed(
    model: GraphModel,
    path: str,
    found: list[Operator],
    *,
    filter_words: str,
    limit: int | None,
    meant: str | None = None,
    nearest: tuple[str, ...] = (),
) -> Answer:
    view = OperatorListView(
        path=path,
        filter=filter_words,
        operators=tuple(found[:limit]),
        total=len(found),
        graphs=len(model.graphs),
        meant=meant,
        nearest=nearest,
    )
    return _told(view, ExitCode.OK if found and meant is None else ExitCode.NOTHING)


def _operators_view(
    model: GraphModel, path: str, operators: list[Operator], *, wishes: NodeWishes, limit: int | None
) -> OperatorsView:
    if wishes.svg is not None and len(operators) > 1:
        names = ", ".join(each.graph for each in operators)
        raise UlpscopeError(
            f"{len(operators)} graphs have an operator {operators[0].name}: {names}",
            expected="one of them for a drawing",
            next_step=f"choose it with --graph {operators[0].graph}",
        )
    graphs = {graph.name: graph for graph in reversed(model.graphs)}
    known = borders(model)
    views = tuple([_operator_view(graphs[operator.graph], operator, known, wishes) for operator in operators])
    first = operators[0]
    drawing = None if wishes.svg is None else draw(graphs[first.graph], first.name, depth=wishes.depth, path=wishes.svg)
    return OperatorsView(path=path, operators=views, attributes=wishes.attributes, names_shown=limit, drawing=drawing)


def _operator_view(graph: Graph, operator: Operator, known: Borders, wishes: NodeWishes) -> OperatorView:
    wires, dumps, references = wiring(graph), None, None
    sources = {place: each.source for place, each in enumerate(operator.inputs) if each.source is not None}
    made = {place: made_at(known, operator.graph, source) for place, source in sources.items()}
    if wishes.dumps is not None or wishes.reference is not None:
        # Readers of dumps take half a second to import, which a look into a graph need not wait for.
        from ulpscope.workflows.tensor_lookup import dumps_of, references_of

        dumps = None if wishes.dumps is None else dumps_of(operator, wishes.dumps)
        references = None if wishes.reference is None else references_of(operator, wishes.reference)
    return OperatorView(
        operator=operator,
        readers=wires.readers.get(operator.name, ()),
        followers=wires.followers.get(operator.name, ()),
        made_at={place: found for place, found in made.items() if found.source != sources[place]},
        dumps=dumps,
        references=references,
    )


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


def check_casts(paths: Sequence[Path], *, limit: int = DEFAULT_LIMIT) -> Answer:
    """Look for dangerous casts in graph files; 0 tells all."""
    found = tuple(cast for path in paths for cast in dangerous_casts(open_graph(path)))
    code = ExitCode.DIFFERENCE if found else ExitCode.OK
    return Answer(found, code, partial(casts_text, limit=limit or None), _casts_json)


def _casts_json(found: Sequence[DangerousCast]) -> dict[str, Any]:
    return {"schema": 1, "command": "show", "view": "casts", "casts": casts_json(found)}


_VERDICTS = {ExitCode.OK: "agree", ExitCode.DIFFERENCE: "differ", ExitCode.NOTHING: "nothing_compared"}


def told_similarity(found: tuple[GraphSimilarity, ...], *, limit: int = DEFAULT_LIMIT) -> Answer:
    """Graphs of two compilations that belong together; 0 tells all operators that differ."""
    code = ExitCode.OK if all(each.agrees for each in found) else ExitCode.DIFFERENCE
    if not any(each.compared for each in found):
        code = ExitCode.NOTHING

    def as_json(found: Sequence[GraphSimilarity]) -> dict[str, Any]:
        return {"schema": 1, "command": "diff", "verdict": _VERDICTS[code], "graphs": similarity_json(found)}

    return Answer(found, code, partial(similarity_text, limit=limit or None), as_json)


def check_similarity(reference: Sequence[Path], target: Sequence[Path]) -> Answer:
    """Compare the graph files of two compilations: graphs of the same session and number."""
    others = [open_graph(path) for path in target]
    found = (similar_graphs(model, other) for model in map(open_graph, reference) for other in others)
    return told_similarity(tuple(similarity for several in found for similarity in several))


def diff_graphs(reference: Path, target: Path, *, limit: int = DEFAULT_LIMIT) -> Answer:
    """Compare two graph files; 0 tells all operators that differ."""
    return told_similarity(compared_graphs(open_graph(reference), open_graph(target)), limit=limit)
