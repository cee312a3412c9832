"""A network's plan as text: which tensor is compared with which original.

graph ge_default_20260101000000_11: target <- reference
  14 MatMulV2 fc1/MatMul [several to one]
      input:0 <- flatten/Reshape:output:0
      output:0 <- fc1/BiasAdd:output:0
"""

from collections.abc import Iterator
from typing import Any

from ulpscope.records.network import NetworkPlan, OperatorGroup, PlannedOperator


def network_plan_lines(plan: NetworkPlan) -> list[str]:
    """A line a tensor."""
    lines = [f"graph {plan.graph}: target <- reference"]
    for group in plan.groups:
        for member in group.members:
            lines += _operator_lines(group, member)
    return lines


def network_plan_json(plan: NetworkPlan) -> dict[str, Any]:
    """The plan as JSON: a group an entry."""
    return {"schema": 1, "graph": plan.graph, "groups": [_group_json(group) for group in plan.groups]}


def _group_json(group: OperatorGroup) -> dict[str, Any]:
    return {
        "index": group.index,
        "relation": group.relation.value,
        "originals": group.originals,
        "operators": [_operator_json(member) for member in group.members],
    }


def _operator_json(member: PlannedOperator) -> dict[str, Any]:
    operator = member.operator
    return {
        "id": operator.id,
        "name": operator.name,
        "type": operator.type,
        "inserted": member.inserted,
        "quantised": member.quantised,
        "inputs": [[str(original) for original in tensor.candidates] for tensor in member.inputs],
        "outputs": [[str(original) for original in tensor.candidates] for tensor in member.outputs],
    }


def _operator_lines(group: OperatorGroup, member: PlannedOperator) -> Iterator[str]:
    operator = member.operator
    note = " (quantised: not compared)" if member.quantised else ""
    yield f"  {group.index} {operator.type} {operator.name} [{group.relation.value}]{note}"
    if member.quantised:
        return
    for side, tensors in (("input", member.inputs), ("output", member.outputs)):
        for position, tensor in enumerate(tensors):
            told = ", else ".join(map(str, tensor.candidates)) or "(no original)"
            yield f"      {side}:{position} <- {told}"
