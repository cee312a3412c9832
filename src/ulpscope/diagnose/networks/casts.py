"""Casts in a graph that lose what a network may need."""

from dataclasses import dataclass

from ulpscope.graph.query import all_operators
from ulpscope.records.graphs import GraphModel, Operator

CAST = "Cast"

DANGEROUS = frozenset({("float32", "int32")})
"""Types from which and to which: fractions go, and numbers from 2**31 on have no int32. As precision_tool warns."""


@dataclass(frozen=True, slots=True)
class DangerousCast:
    """An operator that casts so."""

    operator: Operator
    source: str
    target: str


def dangerous_casts(model: GraphModel) -> tuple[DangerousCast, ...]:
    """The dangerous casts of a model in the order of the file."""
    found = (_cast(operator) for operator in all_operators(model) if operator.type == CAST)
    return tuple(cast for cast in found if cast is not None and (cast.source, cast.target) in DANGEROUS)


def _cast(operator: Operator) -> DangerousCast | None:
    if not operator.inputs or operator.inputs[0].desc is None or not operator.outputs:
        return None
    return DangerousCast(operator, operator.inputs[0].desc.dtype, operator.outputs[0].dtype)
