"""Tells which operators of a comparison's result have outputs that are not alike.

result_20260101000000.csv: 6 of 28 operators have an output with a cosine of at most 0.98

index  operator  NPU       reference  tensor      cosine
   15  fc1/Relu  fc1/Relu  fc1/Relu   input.0   1.000000
                                      output.0  0.567533
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ulpscope.dialects.ascend.result_table import ComparedOperator, ComparedTensor
from ulpscope.report.record_json import answer_json
from ulpscope.report.tables import plain, render, table
from ulpscope.report.words.language import count_text

_NAMES = ("operator", "NPU", "reference")
_HEADERS = ("index", *_NAMES, "tensor", "cosine")


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
    parts: list[RenderableType] = []
    for each in found:
        parts += [*([plain("")] if parts else []), *_low(each)]
    return render(Group(*parts), width=width, color=color)


def low_json(found: Sequence[LowOperators]) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    results = [_result_json(each) for each in found]
    return answer_json("show", {"view": "results", "results": results})


def _low(found: LowOperators) -> Iterator[RenderableType]:
    share = f"{found.total:,} of {count_text(found.compared, 'operator')}"
    have = "has" if found.compared == 1 else "have"
    words = f"{share} {have} an output with a cosine of at most {found.cosine:g}"
    yield plain(f"{found.path}: {words}", style="bold")
    if found.operators:
        rows = [row for operator in found.operators for row in _rows(operator, found.cosine)]
        yield plain("")
        yield table(_HEADERS, rows, right=("index", "cosine"), folds=_NAMES)
    if found.total > len(found.operators):
        yield plain(f"{found.total - len(found.operators):,} more; --limit 0 for all")


def _rows(operator: ComparedOperator, limit: float) -> Iterator[list[object]]:
    names = [operator.index, operator.name, ", ".join(operator.target), ", ".join(operator.reference)]
    for tensor in operator.tensors:
        yield [*names, _place(tensor), _cosine(tensor, limit)]
        names = [""] * len(names)


def _place(tensor: ComparedTensor) -> str:
    return f"{tensor.side.value}.{tensor.index}"


def _cosine(tensor: ComparedTensor, limit: float) -> Text:
    if math.isnan(tensor.cosine):
        return plain("-")
    return plain(f"{tensor.cosine:.6f}", style="red" if tensor.cosine <= limit else "")


def _result_json(found: LowOperators) -> dict[str, Any]:
    return {
        "path": str(found.path),
        "cosine": found.cosine,
        "compared": found.compared,
        "total": found.total,
        "operators": [_operator_json(operator) for operator in found.operators],
    }


def _operator_json(operator: ComparedOperator) -> dict[str, Any]:
    tensors = [
        {"tensor": _place(tensor), "cosine": None if math.isnan(tensor.cosine) else tensor.cosine}
        for tensor in operator.tensors
    ]
    fields = ("index", "name", "target", "reference")
    return {**{field: getattr(operator, field) for field in fields}, "tensors": tensors}
