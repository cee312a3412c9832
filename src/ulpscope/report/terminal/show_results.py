"""Tells what result tables of other tools say, and what graphs alone show: casts, and what another compilation changed.

compare_result_20261115060612.csv: a result of msprobe's compare
  118 of 1,120 rows do not pass: 112 error, 6 warning

NPU Name                                  Result  Cosine   Err_message
Functional.layer_norm.3.forward.output.0  error   0.99998  ...

result_20260101000000.csv: 6 of 28 operators have an output with a cosine of at most 0.98

index  operator  NPU       reference  tensor      cosine
   15  fc1/Relu  fc1/Relu  fc1/Relu   input.0   1.000000
                                      output.0  0.567533

ge_default_11 and ge_default_21 (0_11): 13 of 14 operators alike

  operator  type  tensor   reference           target
  fc1/Relu  Relu  input.0  float16 FRACTAL_NZ  float32 FRACTAL_NZ
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ulpscope.diagnose.network_graphs import DangerousCast, GraphSimilarity, OperatorDifference
from ulpscope.dialects.ascend.result_table import ComparedOperator, ComparedTensor
from ulpscope.dialects.msprobe.result_tables import VERDICTS, ResultTable, Row, TableKind
from ulpscope.records.graphs import TensorDesc
from ulpscope.report.record_json import answer_json, fields_of
from ulpscope.report.tables import apart, left_out, plain, render, section, table
from ulpscope.report.words.language import count_text

_PASSING = ("pass", "skip", "yes", "n/a", "none", "-", "")
_FIGURES = {
    TableKind.COMPARE: ("Cosine", "MaxAbsErr", "MaxRelativeErr", "NormRelativeErr", "NPU MD5", "BENCH MD5"),
    TableKind.CHECK: (),
    TableKind.CHECK_DETAILS: ("余弦相似度", "最大绝对误差", "双千指标"),
    TableKind.DEVICES_DETAILS: ("均方根误差比值", "相对误差最大值比值", "相对误差平均值比值"),
}
_NAMES = ("NPU Name", "API Name", "API name")
_DTYPES = ("NPU Dtype", "DEVICE Dtype")
_MESSAGES = ("Err_message", "Message")


@dataclass(frozen=True, slots=True)
class TableView:
    """A table, and how many of the rows that do not pass are to be told."""

    path: Path
    content: ResultTable
    limit: int | None

    @property
    def failing(self) -> list[Row]:
        return [row for row in self.content.rows if self.verdict(row) not in _PASSING]

    def verdict(self, row: Row) -> str:
        """The worst word among the row's verdicts, in lower case."""
        words = [row[column].lower() for column in VERDICTS if column in row]
        return max(words, key=lambda word: (word not in _PASSING, word == "error"), default="")


def table_text(view: TableView, *, width: int, color: bool) -> str:
    """The answer as text of this width."""
    failing = view.failing
    counts = Counter(view.verdict(row) for row in failing)
    told = ", ".join(f"{number:,} {word}" for word, number in counts.most_common())
    rows = count_text(len(view.content.rows), "row")
    share = f"{len(failing):,} of {rows} {'does' if len(view.content.rows) == 1 else 'do'} not pass"
    parts: list[RenderableType] = [
        plain(f"{view.path}: {view.content.kind.value}", style="bold"),
        plain(f"  {share}{f': {told}' if told else ''}"),
    ]
    shown = failing[: view.limit]
    if shown:
        wanted = (*_NAMES, *_DTYPES, *VERDICTS, *_FIGURES[view.content.kind], *_MESSAGES)
        columns = [column for column in wanted if column in view.content.columns]
        names = [column for column in columns if column in (*_NAMES, *_MESSAGES)]
        parts += [plain(""), table(columns, ([row[column] for column in columns] for row in shown), folds=names)]
    parts += left_out(len(failing) - len(shown))
    return render(Group(*parts), width=width, color=color)


def table_json(view: TableView) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    counts = Counter(view.verdict(row) or "blank" for row in view.content.rows)
    return answer_json(
        "show",
        view="table",
        path=view.path,
        kind=view.content.kind,
        counts=counts,
        rows=view.failing[: view.limit],
    )


_OPERATOR_NAMES = ("operator", "NPU", "reference")
_HEADERS = ("index", *_OPERATOR_NAMES, "tensor", "cosine")


@dataclass(frozen=True, slots=True)
class LowOperators:
    """Operators of one result with an output that is not alike enough."""

    path: Path
    cosine: float
    operators: tuple[ComparedOperator, ...]
    """The first of them, in the order of the file."""
    total: int
    compared: int
    """Operators that have a compared tensor."""


def low_text(found: Sequence[LowOperators], *, width: int, color: bool) -> str:
    """The answer as text of this width."""
    return render(apart(map(_low, found)), width=width, color=color)


def low_json(found: Sequence[LowOperators]) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    results = [
        {
            **fields_of(each, "path", "cosine", "compared", "total"),
            "operators": [_operator_json(operator) for operator in each.operators],
        }
        for each in found
    ]
    return answer_json("show", {"view": "results", "results": results})


def _low(found: LowOperators) -> Iterator[RenderableType]:
    share = f"{found.total:,} of {count_text(found.compared, 'operator')}"
    have = "has" if found.compared == 1 else "have"
    words = f"{share} {have} an output with a cosine of at most {found.cosine:g}"
    yield plain(f"{found.path}: {words}", style="bold")
    if found.operators:
        rows: list[list[object]] = []
        for operator in found.operators:
            names = [operator.index, operator.name, ", ".join(operator.target), ", ".join(operator.reference)]
            for tensor in operator.tensors:
                rows.append([*names, _place(tensor), _cosine(tensor, found.cosine)])
                names = [""] * len(names)
        yield plain("")
        yield table(_HEADERS, rows, right=("index", "cosine"), folds=_OPERATOR_NAMES)
    yield from left_out(found.total - len(found.operators))


def _place(tensor: ComparedTensor) -> str:
    return f"{tensor.side.value}.{tensor.index}"


def _cosine(tensor: ComparedTensor, limit: float) -> Text:
    if math.isnan(tensor.cosine):
        return plain("-")
    return plain(f"{tensor.cosine:.6f}", style="red" if tensor.cosine <= limit else "")


def _operator_json(operator: ComparedOperator) -> dict[str, Any]:
    tensors = [
        {"tensor": _place(tensor), "cosine": None if math.isnan(tensor.cosine) else tensor.cosine}
        for tensor in operator.tensors
    ]
    return {**fields_of(operator, "index", "name", "target", "reference"), "tensors": tensors}


_DIFFERENCE_HEADERS = ("operator", "type", "tensor", "reference", "target")


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
            **fields_of(each.graphs, "reference", "target"),
            **fields_of(each, "compared", "similar"),
            "only_reference": list(each.only_reference),
            "only_target": list(each.only_target),
            "differences": [
                dict(zip(_DIFFERENCE_HEADERS, row, strict=True))
                for difference in each.differences
                for row in _difference_rows(difference)
            ],
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
        rows = [row for each in listed for row in _difference_rows(each)]
        rest = left_out(len(found.differences) - len(listed), option="-n")
        yield section("of another type or layout", table(_DIFFERENCE_HEADERS, rows, folds=("operator",)), *rest)
    for side, only in (("reference", found.only_reference), ("target", found.only_target)):
        if only:
            rest = left_out(len(only) - len(only[:limit]), option="-n")
            yield section(f"only in the {side}", *map(plain, only[:limit]), *rest)


def _difference_rows(difference: OperatorDifference) -> Iterator[list[str]]:
    operator = difference.operators.reference
    for tensor in difference.tensors:
        forms = (tensor.descs.reference, tensor.descs.target)
        yield [operator.name, operator.type, tensor.place, *map(_form, forms)]


def _form(desc: TensorDesc | None) -> str:
    return "-" if desc is None else f"{desc.dtype} {desc.layout}".strip()
