"""Tells what `ulpscope show GRAPH` found, as text and as JSON.

fc1/Relu   Relu
  id      15, stream 0, in ge_default_20260101000000_11
  kernel  te_relu_5cbd1f87_0__kernel0 (AIcoreEngine)
Inputs
  index  dtype    layout      shape           origin shape  from
  0      float16  FRACTAL_NZ  [3, 1, 16, 16]  [2, 40]       fc1/MatMul:0
"""

import json
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from ulpscope.graph.query import Place
from ulpscope.records.calls import Stats
from ulpscope.records.graphs import AttributeValue, Edge, GraphModel, Operator, TensorDesc
from ulpscope.report.record_json import answer_json, fields_of, to_json
from ulpscope.report.tables import apart, left_out, pairs, plain, render, section, set_in, stats_cells, table
from ulpscope.report.words.language import count_text


@dataclass(frozen=True, slots=True)
class GraphView:
    """A graph file at a glance."""

    path: str
    model: GraphModel
    counts: tuple[tuple[str, int], ...]
    """Types of operators, and how many there are of each."""


@dataclass(frozen=True, slots=True)
class OperatorListView:
    """Operators that a filter wants, or that a name may mean; only the first of them are in `operators`."""

    path: str
    filter: str
    operators: tuple[Operator, ...]
    total: int
    graphs: int
    """How many the file has; with several, each operator's is told."""
    meant: str | None = None
    """The name that no operator bears, but that stands in these operators' names."""
    nearest: tuple[str, ...] = ()
    """What to try when there are none."""


@dataclass(frozen=True, slots=True)
class SummarisedTensor:
    """One tensor of an operator that a dump holds."""

    file: str
    """Relative to the directory that was searched."""
    place: str
    """`output.0`."""
    dtype: str
    shape: tuple[int, ...]
    """As the network has it, padding removed."""
    stats: Stats | None


@dataclass(frozen=True, slots=True)
class FoundDumps:
    """An operator's tensors in a dump, and what could not be read."""

    tensors: tuple[SummarisedTensor, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture of an operator's surroundings."""

    path: Path
    depth: int
    operators: int
    by: str


@dataclass(frozen=True, slots=True)
class OperatorView:
    """One operator with everything around it."""

    operator: Operator
    readers: tuple[Edge, ...]
    followers: tuple[str, ...]
    made_at: Mapping[int, Place]
    """Inputs that come from beyond the graph, and where they were made."""
    dumps: FoundDumps | None = None
    """None if no dumps were asked for."""
    references: FoundDumps | None = None


@dataclass(frozen=True, slots=True)
class OperatorsView:
    """The operators of one name: one in each graph that has it."""

    path: str
    operators: tuple[OperatorView, ...]
    attributes: bool = False
    """Whether all attributes are told."""
    names_shown: int | None = None
    """How many readers of a tensor are listed; None for all."""
    drawing: Drawing | None = None


AnyGraphView = GraphView | OperatorListView | OperatorsView


_NUMBERS = ("count", "operators", "id", "index", "min", "max", "mean", "norm", "nan", "inf")
_FOLDS = ("name", "from", "made at", "read by", "origin", "kernel", "passes")


def show_graph_text(view: AnyGraphView, *, width: int, color: bool = False) -> str:
    """The answer as text of this width."""
    return render(_TOLD[type(view)][0](view), width=width, color=color)


def show_graph_json(view: AnyGraphView) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    return answer_json("show", _TOLD[type(view)][1](view))


def _graph(view: GraphView) -> RenderableType:
    model = view.model
    total = sum(count for _, count in view.counts)
    title = f"{model.name or view.path}   {model.format.value}, {count_text(total, 'operator')}"
    parts: list[RenderableType] = [plain(title, style="bold")]
    if len(model.graphs) > 1:
        rows = [[graph.name or "(main)", f"{len(graph.operators):,}"] for graph in model.graphs]
        parts.append(section("Graphs", table(["name", "operators"], rows, right=_NUMBERS, folds=_FOLDS)))
    rows = [[kind, f"{count:,}"] for kind, count in view.counts]
    return Group(*parts, section("Operators", table(["type", "count"], rows, right=_NUMBERS)))


def _operator_list(view: OperatorListView) -> RenderableType:
    if view.total == 0:
        all_of_it = f"See all: ulpscope show {shlex.quote(view.path)}"
        near = f"Near it: {', '.join(view.nearest)}." if view.nearest else all_of_it
        return Group(plain(f"No operator of {view.path} matches {view.filter}."), plain(near))
    several = view.graphs > 1
    headers = ["id", "type", "name", *(["graph"] if several else []), "passes", "kernel"]
    rows = []
    for each in view.operators:
        graph = [each.graph or "(main)"] if several else []
        rows.append([each.id, each.type, each.name, *graph, ", ".join(each.passes), each.kernel or ""])
    last = left_out(view.total - len(view.operators)) or [plain(count_text(view.total, "operator"))]
    first = [] if view.meant is None else [plain(f"No operator is called {view.meant}; it may be one of these:")]
    return Group(*first, table(headers, rows, right=_NUMBERS, folds=(*_FOLDS, "graph")), *last)


def _operators(view: OperatorsView) -> RenderableType:
    told = apart(_operator(each, attributes=view.attributes, limit=view.names_shown) for each in view.operators)
    drawn = view.drawing
    if drawn is None:
        return told
    size = f"{count_text(drawn.operators, 'operator')} within {count_text(drawn.depth, 'step')}, drawn by {drawn.by}"
    return Group(told, section("Drawing", plain(f"{drawn.path}: {size}")))


def _operator(view: OperatorView, *, attributes: bool, limit: int | None) -> Iterator[RenderableType]:
    operator = view.operator
    yield plain(f"{operator.name}   {operator.type}", style="bold")
    yield pairs(_facts(view, limit))
    if operator.inputs:
        yield section("Inputs", _inputs(view))
    if operator.outputs or view.readers:
        yield section("Outputs", _outputs(view, limit))
    if attributes:
        yield section("Attributes", *_attributes(operator))
    for title, found in (("Dumps", view.dumps), ("Reference", view.references)):
        if found is not None:
            yield section(title, *_dumps(found))


def _facts(view: OperatorView, limit: int | None) -> list[tuple[str, object]]:
    operator = view.operator
    library = f" ({operator.kernel_library})" if operator.kernel_library else ""
    known = operator.kernel is not None or operator.kernel_library is not None
    names = {"runs": operator.subgraphs, "waits for": operator.controls, "awaited by": view.followers}
    return [
        ("id", f"{operator.id}, stream {operator.stream}, in {operator.graph or '(main)'}"),
        ("kernel", f"{operator.kernel or '-'}{library}" if known else None),
        ("passes", ", ".join(operator.passes) if operator.passes else None),
        ("original", _originals_words(operator)),
        ("L1 fusion", operator.l1_fusion),
        *((title, _listed(each, limit)) for title, each in names.items() if each),
    ]


def _listed(names: Sequence[str], limit: int | None) -> str:
    more = len(names) - len(names[:limit])
    return ", ".join(names[:limit]) + (f" and {more:,} more; --limit 0 for all" if more else "")


def _originals_words(operator: Operator) -> str:
    if operator.originals is None:
        return "itself"
    if not operator.originals:
        return "none: the compiler inserted it"
    part = " (with other operators)" if operator.multiple else ""
    return ", ".join(operator.originals) + part


def _inputs(view: OperatorView) -> RenderableType:
    rows = [
        [position, *_desc_cells(each.desc), "-" if each.source is None else each.source, view.made_at.get(position, "")]
        for position, each in enumerate(view.operator.inputs)
    ]
    headers = ["index", *_DESC_HEADERS, "from", "made at"]
    return table(*_filled(headers, rows), right=_NUMBERS, folds=_FOLDS)


def _outputs(view: OperatorView, limit: int | None) -> RenderableType:
    readers: dict[int, list[Edge]] = defaultdict(list)
    for edge in view.readers:
        readers[edge.output].append(edge)
    descs = view.operator.outputs
    rows = []
    for position in sorted({*range(len(descs)), *readers}):
        desc = descs[position] if position < len(descs) else None
        read = _listed([f"{edge.consumer}:{edge.input}" for edge in readers[position]], limit)
        origin = None if desc is None else desc.origin
        name = "" if origin is None else origin.name or ""
        made = f"{name}:{origin.output}" if origin and name and origin.output is not None else name
        rows.append([position, *_desc_cells(desc), made, read or "-"])
    return table(*_filled(["index", *_DESC_HEADERS, "origin", "read by"], rows), right=_NUMBERS, folds=_FOLDS)


_TENSOR_HEADERS = ["tensor", "dtype", "shape", "min", "max", "mean", "norm", "nan", "inf"]
_DESC_HEADERS = ["dtype", "layout", "shape", "origin shape", "shape range", "value range"]


def _desc_cells(desc: TensorDesc | None) -> list[object]:
    if desc is None:
        return [""] * len(_DESC_HEADERS)
    ranges = [" ".join(str(list(each)) for each in found) for found in (desc.shape_range, desc.value_range)]
    return [desc.dtype, desc.layout, _shape_words(desc.shape), _shape_words(desc.origin_shape), *ranges]


def _shape_words(shape: tuple[int, ...] | None) -> str:
    return "" if shape is None else str(list(shape))


def _filled(headers: list[str], rows: list[list[object]]) -> tuple[list[str], list[list[object]]]:
    """Without the columns in which nothing stands."""
    kept = [place for place in range(len(headers)) if any(str(row[place]) for row in rows)]
    return [headers[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _attributes(operator: Operator) -> Iterator[RenderableType]:
    yield pairs((key, value_words(value)) for key, value in sorted(operator.attributes.items()))
    for side, descs in (("input", [each.desc for each in operator.inputs]), ("output", list(operator.outputs))):
        for position, desc in enumerate(descs):
            if desc is not None and desc.attributes:
                rows = ((key, value_words(value)) for key, value in sorted(desc.attributes.items()))
                yield section(f"{side} {position}", pairs(rows))


def value_words(value: AttributeValue) -> str:
    """An attribute of an operator."""
    return value if isinstance(value, str) else json.dumps(to_json(value, no_number=float), ensure_ascii=False)


def _dumps(found: FoundDumps) -> Iterator[RenderableType]:
    if not found.tensors:
        yield plain("none of this operator")
    for file in dict.fromkeys(each.file for each in found.tensors):
        yield plain(file, style="cyan")
        rows = [
            [each.place, each.dtype, _shape_words(each.shape), *_stats_cells(each.stats)]
            for each in found.tensors
            if each.file == file
        ]
        yield set_in(table(_TENSOR_HEADERS, rows, right=_NUMBERS, folds=("shape",)))
    yield from (plain(f"not read: {problem}") for problem in found.problems)


def _stats_cells(stats: Stats | None) -> Sequence[object]:
    return ["-"] * 6 if stats is None else stats_cells(stats, stats.nan, stats.pos_inf + stats.neg_inf)


def _graph_json(view: GraphView) -> dict[str, Any]:
    model = view.model
    graphs = [{"name": graph.name, "operators": len(graph.operators)} for graph in model.graphs]
    types = [{"type": kind, "count": count} for kind, count in view.counts]
    about = {"path": view.path, **fields_of(model, "name", "format", "attributes")}
    return {"view": "graph", **about, "graphs": graphs, "types": types}


def _operator_list_json(view: OperatorListView) -> dict[str, Any]:
    asked = fields_of(view, "path", "filter", "meant", "nearest", "total")
    return {"view": "operators", **asked, "operators": [_brief(operator) for operator in view.operators]}


def _brief(operator: Operator) -> dict[str, Any]:
    return fields_of(operator, "id", "type", "name", "graph", "passes", "kernel")


def _operators_json(view: OperatorsView) -> dict[str, Any]:
    operators = [_operator_json(each, attributes=view.attributes) for each in view.operators]
    return {"view": "operator", "path": view.path, "operators": operators, "drawing": view.drawing}


def _operator_json(view: OperatorView, *, attributes: bool) -> dict[str, Any]:
    operator = view.operator
    fields = ("stream", "kernel_library", "originals", "multiple", "l1_fusion", "subgraphs", "controls")
    content = {**_brief(operator), **fields_of(operator, *fields)}
    content["inputs"] = [
        {
            "index": position,
            "from": each.source,
            "made_at": view.made_at.get(position),
            **_desc(each.desc, attributes=attributes),
        }
        for position, each in enumerate(operator.inputs)
    ]
    content["outputs"] = [
        {"index": position, **_desc(desc, attributes=attributes)} for position, desc in enumerate(operator.outputs)
    ]
    content |= fields_of(view, "readers", "followers")
    content |= {"attributes": operator.attributes} if attributes else {}
    return content | fields_of(view, "dumps", "references")


def _desc(desc: TensorDesc | None, *, attributes: bool) -> dict[str, Any]:
    told = {} if desc is None else fields_of(desc)
    return {name: item for name, item in told.items() if attributes or name != "attributes"}


_TOLD: dict[type, tuple[Callable[[Any], RenderableType], Callable[[Any], dict[str, Any]]]] = {
    GraphView: (_graph, _graph_json),
    OperatorListView: (_operator_list, _operator_list_json),
    OperatorsView: (_operators, _operators_json),
}
"""How each view is told, as text and as JSON."""
