"""What an operation on single elements makes of errors, measured: executed on numbers like its operands', and on the
same numbers a little off.

The relative error of a tensor says nothing of those elements that count in the result: of a quotient they are where the
divisor is small, of a logarithm near 1 and near 0, of softplus where its operand is far below 0.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ulpscope.judge.rounding.limits import DERIVATIVE_STEP, DRAWS
from ulpscope.numerics.dtypes import Floats

Function = Callable[..., Floats]


def _sigmoid(x: Floats) -> Floats:
    return np.exp(-np.logaddexp(0.0, -x))


_lgamma, _erf = (np.vectorize(function, otypes=[np.float64]) for function in (math.lgamma, math.erf))


def _gelu(x: Floats) -> Floats:
    half: Floats = 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))
    return half


def _gelu_by_tanh(x: Floats) -> Floats:
    half: Floats = 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return half


_ONE: dict[str, Function] = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "square")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "sign", "floor", "ceil")},
    **{name: getattr(np, name) for name in ("trunc", "round", "reciprocal")},
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "frac": lambda x: x - np.trunc(x),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sigmoid": _sigmoid, "silu": lambda x: x * _sigmoid(x), "gelu": _gelu,
    "softplus": lambda x: np.logaddexp(0.0, x), "logsigmoid": lambda x: -np.logaddexp(0.0, -x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0.0, x)),
    "elu": lambda x: np.maximum(x, 0.0) + np.expm1(np.minimum(x, 0.0)),
    "logit": lambda x: np.log(x / (1.0 - x)),
    "lgamma": _lgamma, "erf": _erf,
}  # fmt: skip
_TWO: dict[str, Function] = {
    **dict.fromkeys(("div", "divide", "truediv", "true_divide"), np.divide),
    "pow": np.power, "atan2": np.arctan2, "logaddexp": np.logaddexp, "hypot": np.hypot,
    "fmod": np.fmod, "remainder": np.remainder, "xlogy": lambda x, y: x * np.log(y),
}  # fmt: skip
FUNCTIONS: Mapping[str, tuple[int, Function]] = {
    name: (arity, function) for arity, table in ((1, _ONE), (2, _TWO)) for name, function in table.items()
}
"""By the operation's name: of how many operands, and the function."""


_CASTS = frozenset("to type float double half bfloat16 clone contiguous detach".split())
_MORE: dict[str, tuple[int, Function]] = {
    "add": (2, np.add), "sub": (2, np.subtract), "rsub": (2, lambda x, y: y - x), "mul": (2, np.multiply),
    "neg": (1, np.negative), "relu": (1, lambda x: np.maximum(x, 0.0)), "abs": (1, np.abs),
    **dict.fromkeys(_CASTS, (1, np.positive)),
}  # fmt: skip
"""What is as wrong as its operands whatever these are, and casts."""
HARMLESS = frozenset(("inplace", "dtype", "copy", "non_blocking", "memory_format", "device"))


def formula_of(name: str, stated: Mapping[str, Any]) -> tuple[int, Function] | None:
    """Of how many operands an operation with these arguments is, and its function; none if an argument says more."""
    named = {key: entry for key, entry in stated.items() if key not in ("args", "returned")}
    words = dict(named.get("kwargs", named))
    if name == "gelu" and words.pop("approximate", "none") == "tanh":
        return 1, _gelu_by_tanh
    known = _MORE.get(name) or FUNCTIONS.get(name)
    # Softplus is given its beta as a second argument.
    unnamed = known is not None and len(stated.get("args", ())) > known[0] and name not in _CASTS
    return None if unnamed or words.keys() - HARMLESS else known


@dataclass(frozen=True, slots=True)
class Drawn:
    """Numbers like those of a recorded operand."""

    numbers: Floats
    error: float
    """By how much the operand differs between the runs, relative to its norm."""
    bounds: tuple[float, float]
    """Between which it lies in both runs."""

    def moved(self, random: np.random.Generator, *, evenly: bool) -> Floats:
        """The numbers a little off: all by about as much, or each by about the same share of itself."""
        numbers = self.numbers
        size = np.sqrt(np.mean(np.square(numbers))) if evenly else np.abs(numbers)
        return np.clip(numbers + self.error * size * random.standard_normal(numbers.shape), *self.bounds)


def result_error(function: Function, operands: Sequence[Drawn]) -> float:
    """By how much the result moves with its operands, relative to its norm."""
    return _movement(lambda *numbers: function(*numbers), operands)


def gradient_error(function: Function, operands: Sequence[Drawn], gradient: Drawn, place: int) -> float:
    """By how much the gradient for one of the operands moves with all of them and with what was sent."""

    def sent_back(sent: Floats, *numbers: Floats) -> Floats:
        step = DERIVATIVE_STEP * np.maximum(np.abs(numbers[place]), np.finfo(np.float64).tiny ** 0.5)
        above, below = ([*numbers[:place], numbers[place] + way * step, *numbers[place + 1 :]] for way in (1.0, -1.0))
        derivative: Floats = sent * (function(*above) - function(*below)) / (2.0 * step)
        return derivative

    return _movement(sent_back, [gradient, *operands])


def _movement(function: Function, operands: Sequence[Drawn]) -> float:
    random = np.random.Generator(np.random.PCG64(0))
    found = 0.0
    with np.errstate(all="ignore"):
        still = function(*(each.numbers for each in operands))
        for evenly in [True, False] * DRAWS:
            apart = function(*(each.moved(random, evenly=evenly) for each in operands)) - still
            known = np.isfinite(apart) & np.isfinite(still)
            norm = math.sqrt(float(np.sum(np.square(still[known]))))
            moved = math.sqrt(float(np.sum(np.square(apart[known]))))
            found = max(found, moved / norm if norm > 0 else 0.0)
    return found
