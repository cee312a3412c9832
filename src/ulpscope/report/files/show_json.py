"""The JSON object of `ulpscope show --json`. Floats that JSON has no number for are written {"$float": "nan"}."""

from typing import Any

import numpy as np

from ulpscope.records.calls import Call
from ulpscope.records.values import Use, Value
from ulpscope.report.record_json import answer_json, fields_of, marked
from ulpscope.report.source import source_line
from ulpscope.report.terminal.views import (
    CallListView,
    CallView,
    CoverageView,
    ElementsView,
    EnvironmentView,
    OverviewView,
    TensorElements,
    View,
)
from ulpscope.trace.neighbours import Edge
from ulpscope.trace.overview import Overview, RankOverview


def show_json(view: View) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    return answer_json("show", _content(view), marked)


def _content(view: View) -> dict[str, Any]:
    if isinstance(view, OverviewView):
        return _overview("overview", view.overview)
    if isinstance(view, EnvironmentView):
        return _overview("environment", view.overview)
    if isinstance(view, CoverageView):
        return _overview("coverage", view.overview)
    if isinstance(view, CallListView):
        return _call_list(view)
    if isinstance(view, CallView):
        return _call_view(view)
    return _elements_view(view)


def _overview(name: str, overview: Overview) -> dict[str, Any]:
    ranks = [_rank(rank) for rank in overview.ranks]
    return {"view": name, "trace": overview.path, "missing": overview.missing, "ranks": ranks}


def _rank(rank: RankOverview) -> dict[str, Any]:
    counts = {"calls": rank.calls, "values": rank.values, "saved_values": rank.saved_values}
    kinds = rank.counts
    return {
        "name": rank.name,
        **fields_of(rank.info),
        "coverage": None if rank.info.closed is None else rank.info.coverage,
        "steps": rank.steps,
        "missing": rank.missing,
        **counts,
        "kinds": kinds,
    }


def _call_list(view: CallListView) -> dict[str, Any]:
    calls = view.calls.drop("arguments").to_dicts()
    return {"view": "calls", "trace": view.path, "filter": view.filter, "total": view.total, "calls": calls}


def _call_view(view: CallView) -> dict[str, Any]:
    around = view.around
    return {
        "view": "call",
        "trace": view.path,
        "process": view.process,
        "call": view.call,
        "stack": [{**fields_of(frame), "source": source_line(frame.file, frame.line)} for frame in view.stack],
        "tensors": [_tensor(use, around.values.get(use.value)) for use in around.uses],
        "made_by": [_edge(edge) for edge in around.makers],
        "read_by": [_edge(edge) for edge in around.readers],
        "parent": _brief(around.parent),
        "forward": _brief(around.forward),
        "backwards": [_brief(call) for call in around.backwards],
        "children": [_brief(call) for call in around.children],
        "elements": [_elements(tensor) for tensor in view.elements],
    }


def _elements_view(view: ElementsView) -> dict[str, Any]:
    elements = [_elements(tensor) for tensor in view.tensors]
    where = {"trace": view.path, "process": view.process, "call": _brief(view.call)}
    return {"view": "elements", **where, "elements": elements}


def _tensor(use: Use, value: Value | None) -> dict[str, Any]:
    return {"role": use.role, "place": use.place, "value": value, "id": use.value}


def _edge(edge: Edge) -> dict[str, Any]:
    return {"tensor": edge.use.place, "value": edge.use.value, "call": _brief(edge.call), "as": edge.place}


def _brief(call: Call | None) -> dict[str, Any] | None:
    return None if call is None else {"id": call.id, "name": call.name, "step": call.step, "phase": call.phase}


def _elements(tensor: TensorElements) -> dict[str, Any]:
    return {
        **_tensor(tensor.use, tensor.value),
        "total": tensor.total,
        "initialized": tensor.value.initialized,
        "indices": tensor.indices,
        "elements": [_element(element) for element in tensor.elements],
    }


def _element(element: Any) -> Any:
    if isinstance(element, np.bool_):
        return bool(element)
    if isinstance(element, np.integer):
        return int(element)
    if isinstance(element, np.complexfloating):
        return {"$complex": [float(element.real), float(element.imag)]}
    if isinstance(element, np.void):
        return {"$complex": [float(element["real"]), float(element["imag"])]}
    return float(element)
