"""Tells what `ulpscope show` found, as text and as JSON.

torch.nn.functional.layer_norm.3   id 57
  op      torch.nn.functional.layer_norm (api, forward, step 0, rank 0)
  module  model.layers.2.input_layernorm (LayerNorm)
Called from
  model.py:57 in forward
      return F.layer_norm(x, ...)
"""

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from ulpscope.records.calls import Call, Frame, Use, Value
from ulpscope.report.program import argument_lines, source_line
from ulpscope.report.record_json import answer_json, fields_of, marked
from ulpscope.report.tables import draw_long, left_out, pairs, plain, render, section, set_in, stats_cells, table
from ulpscope.report.terminal.overview import coverage_part, environment_part, overview_part
from ulpscope.report.terminal.training_course import training_entry
from ulpscope.report.words.language import count_text
from ulpscope.trace.overview import Overview
from ulpscope.trace.query import Edge, Neighbours

LONG = 200
"""Rows from which on rich is not asked: it draws about 1,600 a second."""
_COUNTS = {"nan": "nan", "+inf": "pos_inf", "-inf": "neg_inf", "set aside": "set_aside"}
_NUMBERS = ("id", "step", "rank", "min", "max", "mean", "norm", *_COUNTS, "value")


class Aspect(str, Enum):
    """What of a whole trace is wanted."""

    OVERVIEW = "overview"
    ENVIRONMENT = "environment"
    COVERAGE = "coverage"


@dataclass(frozen=True, slots=True)
class WholeTraceView:
    """A trace at a glance, where and how each process ran, or what was seen of each and what was not."""

    overview: Overview
    aspect: Aspect


@dataclass(frozen=True, slots=True)
class CallListView:
    """Calls that a filter wants; only the first of them are in `calls`."""

    path: str
    filter: str
    calls: pl.DataFrame
    total: int
    processes: int
    """How many the trace has; with several, each call's is told."""
    hints: tuple[str, ...] = ()
    """What to try when there are none."""


@dataclass(frozen=True, slots=True)
class TensorElements:
    """Elements of one saved tensor of a call."""

    use: Use
    value: Value
    indices: tuple[tuple[int, ...], ...]
    elements: NDArray[Any]
    total: int


@dataclass(frozen=True, slots=True)
class CallView:
    """One call with everything around it."""

    path: str
    process: str
    call: Call
    stack: tuple[Frame, ...]
    around: Neighbours
    elements: tuple[TensorElements, ...] = ()
    edges_shown: int | None = None
    """How many neighbours are listed; None for all."""


@dataclass(frozen=True, slots=True)
class ElementsView:
    """Elements of chosen tensors of a call."""

    path: str
    process: str
    call: Call
    tensors: tuple[TensorElements, ...]


View = WholeTraceView | CallListView | CallView | ElementsView


def show_text(view: View, *, width: int, color: bool = False) -> str:
    """The answer as text of this width."""
    long = _long_list(view, width=width, color=color) if isinstance(view, CallListView) else None
    return long or render(_TOLD[type(view)][0](view), width=width, color=color)


def show_json(view: View) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    return answer_json("show", _TOLD[type(view)][1](view), marked)


def _whole_trace(view: WholeTraceView) -> RenderableType:
    parts = {Aspect.OVERVIEW: overview_part, Aspect.ENVIRONMENT: environment_part, Aspect.COVERAGE: coverage_part}
    return parts[view.aspect](view.overview)


def _call_list(view: CallListView) -> RenderableType:
    if view.total == 0:
        hints = view.hints or (f"List all calls: ulpscope show {shlex.quote(view.path)} --op '*'",)
        return Group(plain(f"No call of {view.path} matches {view.filter}."), *map(plain, hints))
    headers, rows = _calls(view)
    return Group(table(headers, rows, right=_NUMBERS, folds=("call", "module")), plain(_last_line(view)))


def _long_list(view: CallListView, *, width: int, color: bool) -> str | None:
    """The list where it is long; None where it has to be folded."""
    if view.calls.height < LONG:
        return None
    headers, rows = _calls(view)
    drawn = draw_long(headers, rows, right=_NUMBERS, width=width, color=color)
    return None if drawn is None else f"{drawn}{_last_line(view)}\n"


def _calls(view: CallListView) -> tuple[list[str], Iterator[list[object]]]:
    several = view.processes > 1
    headers = ["id", *(["rank"] if several else []), "step", "phase", "call", "module", "output"]
    return headers, (_call_row(row, several=several) for row in view.calls.iter_rows(named=True))


def _last_line(view: CallListView) -> str:
    more = view.total - view.calls.height
    return f"{more:,} more; --limit 0 for all" if more else count_text(view.total, "call")


def _call_row(row: dict[str, Any], *, several: bool) -> list[object]:
    output = "" if row["output_shape"] is None else f"{row['output_dtype']}{list(row['output_shape'])}"
    if row["output_not_finite"]:
        output += f" {row['output_not_finite']:,} not finite"
    if row["error"]:
        output += " error"
    place = [row["process"]] if several else []
    return [row["id"], *place, row["step"], row["phase"], row["name"], row["module"] or "", output.strip()]


def _one_call(view: CallView) -> RenderableType:
    parts: list[RenderableType] = [plain(f"{view.call.name}   id {view.call.id}", style="bold"), pairs(_facts(view))]
    if view.stack:
        parts.append(section("Called from (innermost first)", *_stack_lines(view.stack)))
    if arguments := list(argument_lines(view.call.arguments)):
        parts.append(section("Arguments", pairs(arguments)))
    if view.around.uses:
        parts.append(section("Tensors", _tensors(view), Text(), _stats(view)))
    for title, edges in (("Inputs made by", view.around.makers), ("Outputs read by", view.around.readers)):
        if edges:
            parts.append(_edges(title, edges, view.edges_shown))
    if children := view.around.children:
        shown = children[: view.edges_shown]
        lines = [plain(_call_words(call)) for call in shown]
        parts.append(section("Calls inside it", *lines, *left_out(len(children) - len(shown))))
    parts += [_elements(tensor) for tensor in view.elements]
    return Group(*parts)


def _facts(view: CallView) -> list[tuple[str, object]]:
    call, around = view.call, view.around
    return [
        ("op", f"{call.op} ({call.kind.value})"),
        ("where", f"step {call.step}, micro-step {call.micro_step}, {call.phase.value}, {view.process}"),
        ("module", None if call.module is None else f"{call.module or '(root)'} ({call.module_class})"),
        ("inside", None if around.parent is None else _call_words(around.parent)),
        ("forward", None if around.forward is None else _call_words(around.forward)),
        *(("backward", _call_words(backward)) for backward in around.backwards),
        ("autocast", call.autocast),
        ("recompute", "run again during backward (checkpointing)" if call.recompute else None),
        ("random", f"generator state {call.generator or 'unknown'} before the call" if call.random else None),
        ("error", None if call.error is None else plain(call.error, style="red")),
    ]


def _stack_lines(stack: Iterable[Frame]) -> Iterator[RenderableType]:
    for frame in stack:
        yield plain(frame)
        line = source_line(frame.file, frame.line)
        if line is not None:
            yield set_in(plain(line, style="cyan"), by=4)


def _tensors(view: CallView) -> RenderableType:
    values = view.around.values
    some_saved = any(value.data is not None for value in values.values())
    headers = ["role", "place", "value", "dtype", "shape", "device", "digest", *(["saved"] if some_saved else [])]
    rows = [_tensor_row(use, values.get(use.value))[: len(headers)] for use in view.around.uses]
    return table(headers, rows, right=_NUMBERS, folds=("place", "shape"))


def _tensor_row(use: Use, value: Value | None) -> list[object]:
    if value is None:
        return [use.role.value, use.place, use.value, "missing", "", "", "", ""]
    digest = "-" if value.digest is None else f"{value.digest:016x}"
    saved = "yes" if value.data is not None else "no"
    content = digest if value.initialized else "uninitialised"
    return [use.role.value, use.place, use.value, value.dtype, list(value.shape), value.device, content, saved]


def _stats(view: CallView) -> RenderableType:
    first: dict[int, Use] = {}
    for use in view.around.uses:
        first.setdefault(use.value, use)
    used = ((use, view.around.values.get(number)) for number, use in first.items())
    rows = [(use, value.stats) for use, value in used if value is not None and value.stats is not None]
    if not rows:
        return plain("No stats.")
    counted = [column for column in _COUNTS if any(getattr(stats, _COUNTS[column]) for _, stats in rows)]
    headers = ["value", "place", "min", "max", "mean", "norm", *counted]
    cells = [
        [use.value, use.place, *stats_cells(stats, *(getattr(stats, _COUNTS[column]) or 0 for column in counted))]
        for use, stats in rows
    ]
    drawn = table(headers, cells, right=_NUMBERS, folds=("place",))
    return drawn if counted else Group(drawn, plain("no nan, no inf, nothing set aside"))


def _edges(title: str, edges: tuple[Edge, ...], limit: int | None) -> RenderableType:
    shown = edges[:limit]
    rows = ([edge.use.place, _call_words(edge.call), f"as {edge.place}" if edge.place else ""] for edge in shown)
    return section(title, table(["tensor", "call", ""], rows), *left_out(len(edges) - len(shown)))


def _call_words(call: Call) -> str:
    return f"{call.name} (id {call.id})"


def _elements_of_call(view: ElementsView) -> RenderableType:
    title = plain(f"{_call_words(view.call)} of {view.process}, step {view.call.step}", style="bold")
    return Group(title, *(_elements(tensor) for tensor in view.tensors))


def _elements(tensor: TensorElements) -> RenderableType:
    value, shown = tensor.value, len(tensor.indices)
    title = f"{tensor.use.role.value} {tensor.use.place}: {value.dtype}{list(value.shape)}"
    if not value.initialized:
        title += ", uninitialised: nobody has written these elements"
    rows = [[list(index), element] for index, element in zip(tensor.indices, tensor.elements, strict=True)]
    rest = [plain(f"{shown:,} of {tensor.total:,} elements, first and last")] if shown < tensor.total else []
    return section(title, table(["index", "element"], rows), *rest)


def _whole_trace_json(view: WholeTraceView) -> dict[str, Any]:
    overview = view.overview
    ranks = [
        {
            "name": rank.name,
            **fields_of(rank.info),
            "coverage": None if rank.info.closed is None else rank.info.coverage,
            **fields_of(rank, "steps", "missing", "calls", "values", "saved_values"),
            "kinds": rank.counts,
            **({} if rank.training is None else training_entry(rank.training)),
        }
        for rank in overview.ranks
    ]
    return {"view": view.aspect, "trace": overview.path, "missing": overview.missing, "ranks": ranks}


def _call_list_json(view: CallListView) -> dict[str, Any]:
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
        "elements": [_elements_json(tensor) for tensor in view.elements],
    }


def _elements_view(view: ElementsView) -> dict[str, Any]:
    where = {"trace": view.path, "process": view.process, "call": _brief(view.call)}
    return {"view": "elements", **where, "elements": [_elements_json(tensor) for tensor in view.tensors]}


def _tensor(use: Use, value: Value | None) -> dict[str, Any]:
    return {"role": use.role, "place": use.place, "value": value, "id": use.value}


def _edge(edge: Edge) -> dict[str, Any]:
    return {"tensor": edge.use.place, "value": edge.use.value, "call": _brief(edge.call), "as": edge.place}


def _brief(call: Call | None) -> dict[str, Any] | None:
    return None if call is None else fields_of(call, "id", "name", "step", "phase")


def _elements_json(tensor: TensorElements) -> dict[str, Any]:
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


_TOLD: dict[type, tuple[Callable[[Any], RenderableType], Callable[[Any], dict[str, Any]]]] = {
    WholeTraceView: (_whole_trace, _whole_trace_json),
    CallListView: (_call_list, _call_list_json),
    CallView: (_one_call, _call_view),
    ElementsView: (_elements_of_call, _elements_view),
}
"""How each view is told, as text and as JSON."""
