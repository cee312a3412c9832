"""How much each call's own error adds to the final difference of two runs.

An error made at a call reaches the end through every call after it. To first order it arrives multiplied by the
derivative of the end with respect to the call's output; derivatives are taken half way between the two runs' inputs,
where their error is of third order in the difference. They are computed from the trace's own calls, so that runs
without a backward can be told, too.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ulpscope.records.pairs import Pair
from ulpscope.records.values import Value
from ulpscope.replay.torch.ledger import ReplayedCall, ReplayedPair
from ulpscope.replay.torch.running import Feed, raise_tensor, run_precise
from ulpscope.replay.torch.tensors import saved_tensor
from ulpscope.trace.reader import RankTrace


@dataclass(frozen=True, slots=True)
class Ending:
    """The value at which two runs are compared at last."""

    target: int
    """Id of the value in the target."""
    seed: Tensor
    difference: float


def make_ending(values: Pair[Value], ranks: Pair[RankTrace]) -> Ending | None:
    """The end of a forward: a loss as it is, anything else along its own difference."""
    reference, target = (
        raise_tensor(saved_tensor(rank, value))
        for rank, value in ((ranks.reference, values.reference), (ranks.target, values.target))
    )
    if reference.shape != target.shape or not reference.is_floating_point():
        return None
    apart = target - reference
    length = float(apart.norm())
    if not 0.0 < length < float("inf"):
        return None
    seed = torch.ones_like(apart) if apart.numel() == 1 else apart / length
    return Ending(values.target.id, seed, float(apart.sum()) if apart.numel() == 1 else length)


class Sweep:
    """Walks from the end of a forward to its beginning."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending
        self._adjoints: dict[int, Tensor] = {ending.target: ending.seed}
        self._leaves: dict[int, Pair[Value]] = {}

    def wants(self, outputs: Mapping[str, Value]) -> bool:
        """Whether a call with these outputs has a part in the end."""
        return any(value.id in self._adjoints for value in outputs.values())

    def through(self, pair: ReplayedPair) -> dict[str, float]:
        """What the call's own errors contribute, by output; then go on to its inputs."""
        outputs = pair.sides.target.recorded.outputs
        arrived = {place: self._adjoints[value.id] for place, value in outputs.items() if value.id in self._adjoints}
        gradients = run_precise(
            pair.sides.target.recipe, Feed(_middle(pair.sides), arrived), differentiate_all=True
        ).gradients
        found = {place: _contribution(pair, place, adjoint) for place, adjoint in arrived.items()}
        for place in arrived:
            del self._adjoints[outputs[place].id]
        self._pass_on(pair, gradients)
        return found

    def rest(self, ranks: Pair[RankTrace], unseen: Collection[int]) -> tuple[float, float]:
        """What is left at the values that nothing was replayed for: those of the unseen calls, and all the others."""
        reached = self._adjoints.get(self._ending.target) is not self._ending.seed
        start, left = 0.0, 0.0 if reached else self._ending.difference
        for number, adjoint in self._adjoints.items():
            values = self._leaves.get(number)
            apart = None if values is None else _apart(values, ranks)
            if values is None or apart is None or apart.shape != adjoint.shape:
                continue
            part = float((adjoint * torch.nan_to_num(apart)).sum())
            if values.target.producer in unseen:
                left += part
            else:
                start += part
        return start, left

    def _pass_on(self, pair: ReplayedPair, gradients: Mapping[str, Tensor]) -> None:
        target = pair.sides.target
        for place, gradient in gradients.items():
            value = target.recorded.inputs[place]
            known = self._adjoints.get(value.id)
            self._adjoints[value.id] = gradient if known is None else known + gradient
            if place in pair.sides.reference.recorded.inputs:
                self._leaves[value.id] = Pair(pair.sides.reference.recorded.inputs[place], value)


def _contribution(pair: ReplayedPair, place: str, adjoint: Tensor) -> float:
    made = _made(pair.sides.target, place)
    other = _made(pair.sides.reference, place)
    if made is None or other is None or made.shape != other.shape or made.shape != adjoint.shape:
        return 0.0
    total = made - other
    if pair.crossed is not None and place in pair.crossed.outputs:
        total = total + (pair.sides.target.precise.outputs[place] - pair.crossed.outputs[place]).detach()
    return float((adjoint * torch.nan_to_num(total)).sum())


def _made(call: ReplayedCall, place: str) -> Tensor | None:
    """What a call gave beyond the truth for its inputs."""
    output, exact = call.outputs.get(place), call.precise.outputs.get(place)
    if output is None or exact is None or output.shape != exact.shape or not exact.is_floating_point():
        return None
    return raise_tensor(output) - exact.detach()


def _middle(sides: Pair[ReplayedCall]) -> dict[str, Tensor]:
    found = {}
    for place, tensor in sides.target.feed.tensors.items():
        other = sides.reference.feed.tensors.get(place)
        high = raise_tensor(tensor)
        halves = other is not None and other.shape == tensor.shape and high.is_floating_point()
        found[place] = (high + raise_tensor(other)) / 2 if halves and other is not None else high
    return found


def _apart(values: Pair[Value], ranks: Pair[RankTrace]) -> Tensor | None:
    reference = saved_tensor(ranks.reference, values.reference)
    target = saved_tensor(ranks.target, values.target)
    return raise_tensor(target) - raise_tensor(reference) if reference.shape == target.shape else None
