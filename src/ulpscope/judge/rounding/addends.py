"""Operands that are only added to a result: what their error does to it is known from their size.

A bias that began at zero may differ by half of itself after one step, and yet moves the result by next to nothing.
"""

import math
from collections.abc import Iterable

from ulpscope.judge.rounding.families import Operand

# Arguments of torch's functions that are added at the end, by the bare name of the operation.
_BIAS = "kwargs.bias"
ADDENDS: dict[str, frozenset[str]] = {
    "linear": frozenset(("args.2", _BIAS)),
    **{f"conv{axes}d": frozenset(("args.2", _BIAS)) for axes in (1, 2, 3)},
    **{f"conv_transpose{axes}d": frozenset(("args.2", _BIAS)) for axes in (1, 2, 3)},
    "layer_norm": frozenset(("args.3", _BIAS)),
    "group_norm": frozenset(("args.3", _BIAS)),
    "batch_norm": frozenset(("args.4", _BIAS)),
    "instance_norm": frozenset(("args.4", _BIAS)),
}


def addend_places(op: str) -> frozenset[str]:
    """The places of a call's operands that are only added; `op` is the operation's bare name."""
    return ADDENDS.get(op, frozenset())


def felt_error(addends: Iterable[Operand], output: Operand) -> float:
    """The relative error of an output that the errors of what is added to it make."""
    if output.norm <= 0:
        return 0.0
    spread = (operand.distance * math.sqrt(output.elements / max(operand.elements, 1.0)) for operand in addends)
    return math.fsum(spread) / output.norm
