"""The JSON object of `ulpscope show GRAPH --json`."""

from collections.abc import Mapping
from typing import Any

from ulpscope.records.graphs import AttributeValue, Operator, TensorDesc
from ulpscope.report.record_json import answer_json, fields_of
from ulpscope.report.terminal.views import AnyGraphView, GraphView, OperatorListView, OperatorsView, OperatorView


def show_graph_json(view: AnyGraphView) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    return answer_json("show", {**_content(view)})


def plain_value(value: AttributeValue) -> Any:
    """An attribute as lists and dictionaries."""
    if isinstance(value, Mapping):
        return {key: plain_value(item) for key, item in value.items()}
    return [plain_value(item) for item in value] if isinstance(value, tuple) else value


def _content(view: AnyGraphView) -> dict[str, Any]:
    if isinstance(view, GraphView):
        return _graph(view)
    if isinstance(view, OperatorListView):
        return _operator_list(view)
    return _operators(view)


def _graph(view: GraphView) -> dict[str, Any]:
    model = view.model
    graphs = [{"name": graph.name, "operators": len(graph.operators)} for graph in model.graphs]
    types = [{"type": kind, "count": count} for kind, count in view.counts]
    names = {"name": model.name, "format": model.format}
    return {
        "view": "graph",
        "path": view.path,
        **names,
        "attributes": model.attributes,
        "graphs": graphs,
        "types": types,
    }


def _operator_list(view: OperatorListView) -> dict[str, Any]:
    operators = [_brief(operator) for operator in view.operators]
    asked = {"filter": view.filter, "meant": view.meant, "nearest": view.nearest}
    return {"view": "operators", "path": view.path, **asked, "total": view.total, "operators": operators}


def _brief(operator: Operator) -> dict[str, Any]:
    fields = ("id", "type", "name", "graph", "passes", "kernel")
    return fields_of(operator, *fields)


def _operators(view: OperatorsView) -> dict[str, Any]:
    drawing = view.drawing
    operators = [_operator(each, attributes=view.attributes) for each in view.operators]
    return {"view": "operator", "path": view.path, "operators": operators, "drawing": drawing}


def _operator(view: OperatorView, *, attributes: bool) -> dict[str, Any]:
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
    content["readers"] = view.readers
    content["followers"] = view.followers
    if attributes:
        content["attributes"] = operator.attributes
    content["dumps"] = view.dumps
    content["references"] = view.references
    return content


def _desc(desc: TensorDesc | None, *, attributes: bool) -> dict[str, Any]:
    if desc is None:
        return {}
    content = fields_of(desc)
    if not attributes:
        del content["attributes"]
    return content
