"""Runs a definition as a vector unit would that stores the result of every step: how much that may move its results.

Arithmetic on a `Stored` array moves its result a little, at random; that of the last step is left to the rounding of
the result itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

ARITHMETIC = frozenset((
    np.add, np.subtract, np.multiply, np.true_divide, np.power, np.square, np.sqrt, np.reciprocal, np.exp, np.expm1,
    np.log, np.log1p, np.tanh, np.sin, np.cos,
))  # fmt: skip
"""Steps that round; those that choose, compare or change a sign give their operands."""


@dataclass(slots=True)
class Steps:
    """Counts steps, and moves the results of those before the last."""

    moved: Callable[[Array], Array]
    last: int | None = None
    """The number of the last step; none while they are only counted."""
    count: int = 0

    def stored(self, result: Array) -> Array:
        self.count += 1
        return result if self.last is None or self.count >= self.last else self.moved(result)


class Stored(np.ndarray[Any, np.dtype[Any]]):
    """An array whose arithmetic is a sequence of stored steps."""

    steps: Steps | None = None

    def __array_finalize__(self, source: Any) -> None:
        self.steps = getattr(source, "steps", None)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **settings: Any) -> Any:
        steps = self.steps
        out = settings.pop("out", None)
        result = getattr(ufunc, method)(*map(_plain, inputs), **{name: _plain(each) for name, each in settings.items()})
        if not isinstance(result, np.ndarray | np.generic) or steps is None:
            return result
        if ufunc in ARITHMETIC and result.dtype.kind == "f":
            result = steps.stored(np.asarray(result))
        if out is not None:
            _plain(out[0])[...] = result
            return out[0]
        return stored(np.asarray(result), steps)


def stored(array: Array, steps: Steps) -> Array:
    """The array, taking part in counted steps."""
    view = array.view(Stored)
    view.steps = steps
    return view


def _plain(each: Any) -> Any:
    return each.view(np.ndarray) if isinstance(each, Stored) else each
