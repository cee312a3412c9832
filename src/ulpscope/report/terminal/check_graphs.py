"""Tells what graphs alone show: dangerous casts, and what another compilation of a network did otherwise.

ge_default_11 and ge_default_21 (0_11): 13 of 14 operators alike

  operator  type  tensor   reference           target
  fc1/Relu  Relu  input.0  float16 FRACTAL_NZ  float32 FRACTAL_NZ
"""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType

from ulpscope.diagnose.network_graphs import DangerousCast, GraphSimilarity, OperatorDifference
from ulpscope.records.graphs import TensorDesc
from ulpscope.report.tables import apart, left_out, plain, render, section, table
from ulpscope.report.words.language import count_text


def similarity_text(found: Sequence[GraphSimilarity], *, limit: int | None, width: int, color: bool) -> str:
    """The answer as text of this width; of each graph `limit` operators are listed."""
    if not found:
        return "Nothing compared: no graph is of the same session and number in both.\n"
    return render(apart(_similarity(each, limit) for each in found), width=width, color=color)


def similarity_json(found: Sequence[GraphSimilarity]) -> list[dict[str, Any]]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    return [
        {
            "session_graph": each.session,
            "reference": each.graphs.reference,
            "target": each.graphs.target,
            "compared": each.compared,
            "similar": each.similar,
            "only_reference": list(each.only_reference),
            "only_target": list(each.only_target),
            "differences": [row for difference in each.differences for row in _difference_json(difference)],
        }
        for each in found
    ]


def casts_text(casts: Sequence[DangerousCast], *, limit: int | None, width: int, color: bool) -> str:
    """The answer as text of this width; `limit` of them are listed."""
    parts: list[RenderableType] = [plain(count_text(len(casts), "dangerous cast"), style="bold")]
    if casts:
        rows = [[each.operator.name, each.operator.graph, each.source, each.target] for each in casts[:limit]]
        parts += [plain(""), table(["operator", "graph", "from", "to"], rows, folds=("operator", "graph"))]
        parts += left_out(len(casts) - len(rows))
    return render(Group(*parts), width=width, color=color)


def casts_json(casts: Sequence[DangerousCast]) -> list[dict[str, Any]]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    return [
        {"operator": each.operator.name, "graph": each.operator.graph, "from": each.source, "to": each.target}
        for each in casts
    ]


def _similarity(found: GraphSimilarity, limit: int | None) -> Iterator[RenderableType]:
    session = "" if found.session is None else f" ({found.session})"
    names = " and ".join(name or "(main)" for name in (found.graphs.reference, found.graphs.target))
    alike = f"{found.similar:,} of {count_text(found.compared, 'operator')} alike"
    yield plain(f"{names}{session}: {alike}", style="bold")
    listed = found.differences[:limit]
    if listed:
        headers = ["operator", "type", "tensor", "reference", "target"]
        rows = [row for each in listed for row in _rows(each)]
        rest = left_out(len(found.differences) - len(listed), option="-n")
        yield section("of another type or layout", table(headers, rows, folds=("operator",)), *rest)
    for side, only in (("reference", found.only_reference), ("target", found.only_target)):
        if only:
            rest = left_out(len(only) - len(only[:limit]), option="-n")
            yield section(f"only in the {side}", *map(plain, only[:limit]), *rest)


def _rows(difference: OperatorDifference) -> Iterator[list[str]]:
    operator = difference.operators.reference
    for tensor in difference.tensors:
        forms = (tensor.descs.reference, tensor.descs.target)
        yield [operator.name, operator.type, tensor.place, *map(_form, forms)]


def _difference_json(difference: OperatorDifference) -> Iterator[dict[str, Any]]:
    for name, kind, place, reference, target in _rows(difference):
        yield {"operator": name, "type": kind, "tensor": place, "reference": reference, "target": target}


def _form(desc: TensorDesc | None) -> str:
    return "-" if desc is None else f"{desc.dtype} {desc.layout}".strip()
