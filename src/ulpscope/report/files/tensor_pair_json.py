"""What the page of a served report is told of two tensors, as values that json.dumps(allow_nan=False) takes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.numerics.pairs.overview import (
    AxisBlocks,
    ErrorTotals,
    Histogram,
    PairElement,
    PairOverview,
)
from ulpscope.numerics.pairs.pieces import PairBoxes
from ulpscope.records.calls import Stats, Value
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.record_json import fields_of, to_json

NAMED = 8
"""Worst blocks of an axis that are named."""


def side_json(value: Value | None, trace: str, problem: UlpscopeError | None) -> dict[str, Any]:
    """One tensor of a pair, with its stats."""
    shown = ("dtype", "shape", "device")
    return {
        "trace": trace,
        **(dict.fromkeys(shown) if value is None else fields_of(value, *shown)),
        "stats": None if value is None or value.stats is None else _stats(value.stats),
        "problem": None if problem is None else error_json(problem),
    }


def error_json(error: UlpscopeError) -> dict[str, Any]:
    """An error with its four answers; `kind` is a word for the page's own languages, where there is one."""
    problem = getattr(error, "problem", None)
    return {
        "kind": None if problem is None else problem.value,
        "what": error.seen,
        "expected": error.expected,
        "next": error.next_step,
    }


def overview_json(found: PairOverview) -> dict[str, Any]:
    """What one read of both tensors told."""
    lists = fields_of(found, "absolute", "relative", "ulps", "broken")
    told: dict[str, Any] = to_json(
        {
            **fields_of(found, "elements", "different", "mismatched", "zeros", "not_finite"),
            "magnitudes": None if found.magnitudes is None else histogram_json(found.magnitudes),
            "errors": {
                "unit": "ulp" if found.in_ulps else "difference",
                "equal": found.errors.equal,
                **_lists(found.errors, "lows", "below", "above"),
            },
            "axes": [_axis(axis) for axis in found.axes],
            "worst": {name: [_element(element) for element in elements] for name, elements in lists.items()},
        }
    )
    return told


def histogram_json(found: Histogram) -> dict[str, Any]:
    return {"edges": numbers_json(found.edges), **_lists(found.counts, "reference", "target")}


def heat_json(found: ErrorTotals) -> dict[str, Any]:
    """Errors over one or two axes."""
    return {
        "axes": [_blocks(axis) for axis in found.axes],
        "largest": numbers_json(found.largest),
        "mean": numbers_json(found.mean()),
        "mismatched": found.mismatched.tolist() if found.mismatched.any() else None,
    }


def window_json(pair: PairBoxes, *, rows: int, columns: int | None, index: tuple[slice, ...]) -> dict[str, Any]:
    """A part of both tensors, as rows of numbers; one row where there is only one axis."""
    sides = fields_of(pair.box(index).numbers, "reference", "target")
    return {side: numbers_json(_matrix(numbers, rows, columns)) for side, numbers in sides.items()}


def numbers_json(numbers: NDArray[np.float64]) -> Any:
    """Nested lists; what is not finite is a text, nan of a mean without elements among them."""
    listed = numbers.tolist()
    return listed if bool(np.isfinite(numbers).all()) else to_json(listed)


def _matrix(numbers: NDArray[np.float64], rows: int, columns: int | None) -> NDArray[np.float64]:
    if columns is None:
        return numbers.reshape(1, -1)
    others = [axis for axis in range(numbers.ndim) if axis not in (rows, columns)]
    return numbers.transpose([rows, columns, *others]).reshape(numbers.shape[rows], numbers.shape[columns])


def _stats(stats: Stats) -> dict[str, Any]:
    told: dict[str, Any] = to_json({name: item for name, item in fields_of(stats).items() if name != "exponents"})
    return told


def _lists(record: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name).tolist() for name in names}


def _axis(totals: ErrorTotals) -> dict[str, Any]:
    axis = totals.axes[0]
    with np.errstate(over="ignore"):
        total = float(totals.total.sum())
    order = np.lexsort((-totals.total, -totals.mismatched))[:NAMED]
    means = totals.mean()
    worst = [
        {
            "first": int(place) * axis.block,
            "last": min((int(place) + 1) * axis.block, axis.size) - 1,
            "share": float(totals.total[place]) / total if 0.0 < total < np.inf else None,
            "largest": float(totals.largest[place]),
            "mean": float(means[place]),
            "mismatched": int(totals.mismatched[place]),
        }
        for place in order
        if totals.total[place] > 0.0 or totals.mismatched[place]
    ]
    return {**_blocks(axis), "largest": numbers_json(totals.largest), "mean": numbers_json(means), "worst": worst}


def _blocks(axis: AxisBlocks) -> dict[str, int]:
    return fields_of(axis, "axis", "size", "block")


def _element(element: PairElement) -> dict[str, Any]:
    return {
        "index": element.index,
        **fields_of(element.texts, "reference", "target"),
        **fields_of(element, "absolute", "relative", "ulps"),
    }
