"""Executes a recorded call again from its saved inputs, puts what the run got beside it, and tells what its error adds.

An error made at a call reaches the end through every call after it. To first order it arrives multiplied by the
derivative of the end with respect to the call's output; derivatives are taken half way between the two runs' inputs,
where their error is of third order in the difference. They are computed from the trace's own calls, so that runs
without a backward can be told, too.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ulpscope.operations.registry import Trait, operation
from ulpscope.records.calls import Value
from ulpscope.records.checks import OutputEvidence, ShareEvidence
from ulpscope.records.evidence import PairEvidence
from ulpscope.records.pairs import Pair
from ulpscope.replay.memory import check_size
from ulpscope.replay.pairs import evidence_of_pair
from ulpscope.replay.recorded import CannotReplayError, Places, RecordedCall
from ulpscope.replay.torch.drawing import dropout_arguments
from ulpscope.replay.torch.engine import Executed
from ulpscope.replay.torch.evidence import Comparer
from ulpscope.replay.torch.factorising import factorises
from ulpscope.replay.torch.running import (
    Feed,
    Ran,
    Recipe,
    cast_inputs,
    make_recipe,
    raise_tensor,
    results,
    run,
    run_precise,
)
from ulpscope.replay.torch.tensors import saved_tensor, to_array, torch_dtype
from ulpscope.replay.yardsticks import tf32_roundoff
from ulpscope.trace.reader import RankTrace


class ReplayedCall:
    """One run's call with its saved inputs and results."""

    def __init__(self, recorded: RecordedCall, rank: RankTrace) -> None:
        check_size(recorded)
        again = recorded.repeated

        def saved(places: Places) -> dict[str, Tensor]:
            return {place: saved_tensor(rank, value) for place, value in places.items()}

        self.recorded = recorded
        firsts = {place: value for place, value in recorded.inputs.items() if place not in again}
        self.feed = Feed(saved(firsts), saved(recorded.grad_outputs))
        self.outputs, self.gradients = saved(recorded.outputs), saved(recorded.grad_inputs)
        recipe = make_recipe(recorded, self.feed, device="cpu")
        self._inside = inside_of(rank, recorded) if recipe.autocast is None else None
        self.mask: Tensor | None = None
        """What dropout multiplied each element by."""
        self.recipe = self._without_chance(recipe)
        self._tells_autocast = "tool" not in rank.info.capture
        self._cast: Feed | None = None
        """What the call has seen, if its operands were cast and nobody recorded it."""

    @property
    def on_cpu(self) -> bool:
        return all(value.device == "cpu" for value in self.recorded.outputs.values())

    @cached_property
    def precise(self) -> Ran:
        """The call in float64, from its inputs as they were stored."""
        return run_precise(self.recipe, self.feed)

    @cached_property
    def executed(self) -> Executed:
        """The run's own results as evidence."""
        seen = self._cast or cast_inputs(self.recipe, self.feed, self.outputs)
        precise = self.precise if seen is self.feed else run_precise(self.recipe, seen)
        # Signs of factors are free, and gradients depend on them.
        gradients = {} if factorises(self.recipe.op) else self.gradients
        ran = Ran(self.outputs, {}, self.feed.tensors, gradients)
        comparer = Comparer(self.recipe, seen, roundoff_inside=self._inside)
        return Executed(self.recipe, seen, ran, list(comparer.compare(ran, precise)), precise)

    def evidence(self) -> dict[str, OutputEvidence]:
        return {each.place: each for each in self.executed.evidence if not isinstance(each, ShareEvidence)}

    def native(self) -> dict[str, OutputEvidence]:
        """The same with what this machine's own kernel gives for these inputs."""
        return {
            place: replace(each, computed=self._native[place])
            for place, each in self.evidence().items()
            if place in self._native and self._native[place].shape == each.exact.shape
        }

    @cached_property
    def _native(self) -> dict[str, NDArray[Any]]:
        if self._inside is not None or self._cast is not None:
            return {}  # no yardstick for a device that has rounded its operands
        try:
            ran = run(self.recipe, self.feed, device="cpu")
        except (RuntimeError, NotImplementedError):
            return {}
        return {place: to_array(tensor) for place, tensor in results(ran).items()}

    def casts(self, precisions: Collection[str]) -> "Iterator[ReplayedCall]":
        """The call as autocast to one of these might have made it, where its trace does not say whether that was on:
        its operands cast, its result rounded, or both."""
        if self._tells_autocast or self.recipe.autocast is not None:
            return
        for lower in map(torch_dtype, sorted(precisions)):
            cast = self.feed.changed(partial(_cast, lower))
            rounded = _rounded(self.outputs, lower)
            yield self._with(cast, self.outputs)
            if rounded is not None:
                yield self._with(cast, rounded)
                yield self._with(self.feed, rounded)

    def _with(self, seen: Feed, outputs: dict[str, Tensor]) -> "ReplayedCall":
        other = copy(self)
        for name in ("executed", "_native"):
            other.__dict__.pop(name, None)
        other._cast, other.outputs = seen, outputs
        return other

    def _without_chance(self, recipe: Recipe) -> Recipe:
        """Dropout with the mask that was drawn; no other random call can be repeated."""
        if not (self.recorded.call.random or operation(recipe.op).has(Trait.DROPPING)):
            return recipe
        if not operation(recipe.op).has(Trait.DROPPING) or "alpha" in recipe.op or "output.0" not in self.outputs:
            raise CannotReplayError("random")
        self.mask = factors = _factors(self)

        def multiply(*args: Tensor, **kwargs: Tensor) -> Tensor:
            (source,) = (*args, *kwargs.values())
            return source * factors.to(source.dtype)

        place = next(iter(self.feed.tensors))
        given: dict[str, Any] = {"args": [{"$tensor": place}]}
        if place.startswith("kwargs."):
            given = {"args": [], "kwargs": {place.removeprefix("kwargs."): {"$tensor": place}}}
        return replace(recipe, reference=multiply, function=multiply, arguments=given)


def _cast(lower: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(lower) if tensor.dtype == torch.float32 else tensor


def _rounded(outputs: Mapping[str, Tensor], lower: torch.dtype) -> dict[str, Tensor] | None:
    """Results in a coarser type, if that holds all of them; none if not."""
    floats = {place: tensor for place, tensor in outputs.items() if tensor.dtype == torch.float32}
    held = all(torch.equal(tensor.nan_to_num(), tensor.nan_to_num().to(lower).float()) for tensor in floats.values())
    return {**outputs, **{place: tensor.to(lower) for place, tensor in floats.items()}} if floats and held else None


def inside_of(rank: RankTrace, recorded: RecordedCall) -> float | None:
    """What the run let its device round float32 operands to: TF32."""
    switches = rank.info.environment.get("switches", {})
    rounded = [value for value in recorded.inputs.values() if value.dtype == "float32" and value.device != "cpu"]
    if not rounded or recorded.call.autocast is not None:
        return None
    return tf32_roundoff(
        recorded.call.op,
        products=switches.get("float32_matmul_precision", "highest") != "highest",
        by_cudnn=bool(switches.get("cudnn_allow_tf32")),
    )


def _factors(call: ReplayedCall) -> Tensor:
    """What each element was multiplied by: 0 where it fell, else the same number everywhere."""
    source = next(iter(call.feed.tensors.values())).double()
    output = call.outputs["output.0"].double()
    kept = output != 0
    for gradient in call.gradients.values():
        # Of an element that is zero itself only its gradient tells.
        if gradient.shape == source.shape:
            kept |= (source == 0) & (gradient != 0)
    training, share = dropout_arguments(call.recorded.call.arguments)
    if not training:
        return torch.ones_like(source)
    return torch.where(kept, 1.0 / (1.0 - share) if share < 1 else 0.0, 0.0).double()


@dataclass(frozen=True, slots=True)
class ReplayedPair:
    """A pair of calls, both executed again."""

    sides: Pair[ReplayedCall]
    crossed: Ran | None
    """The reference's call with the target's inputs, where the two calls' arguments differ."""

    def with_sides(self, sides: Pair[ReplayedCall]) -> "ReplayedPair":
        """The same pair, its calls taken otherwise."""
        return replace(self, sides=sides)

    def evidence(self) -> list[PairEvidence]:
        """Outputs and gradients that both runs have."""
        crossed = {} if self.crossed is None else results(self.crossed)
        return evidence_of_pair(
            self.sides.map(lambda side: side.evidence()),
            self.sides.map(lambda side: {place: to_array(tensor) for place, tensor in results(side.precise).items()}),
            {place: to_array(tensor) for place, tensor in crossed.items()},
        )


def replay_pair(recorded: Pair[RecordedCall], ranks: Pair[RankTrace]) -> ReplayedPair:
    """Execute both calls of a pair again."""
    sides = Pair(ReplayedCall(recorded.reference, ranks.reference), ReplayedCall(recorded.target, ranks.target))
    crossed, masks = None, [side.mask for side in sides if side.mask is not None]
    other_mask = len(masks) == 2 and not torch.equal(masks[0] != 0, masks[1] != 0)
    differ = _plain(recorded.reference) != _plain(recorded.target) or other_mask
    same_places = set(sides.reference.feed.tensors) == set(sides.target.feed.tensors)
    if differ and same_places and not operation(recorded.target.call.op).has(Trait.SELECTING):
        crossed = run_precise(sides.reference.recipe, sides.target.feed)
    return ReplayedPair(sides, crossed)


def _plain(recorded: RecordedCall) -> Any:
    """What is not a tensor, whether it was given by place or by name."""
    arguments = recorded.call.arguments
    items = [*arguments.get("args", []), *arguments.get("kwargs", {}).values()]
    return [recorded.call.op, sorted(json.dumps(item, sort_keys=True) for item in items if "$tensor" not in str(item))]


@dataclass(frozen=True, slots=True)
class Ending:
    """The value at which two runs are compared at last."""

    target: int
    """Id of the value in the target."""
    seed: Tensor
    difference: float


def make_ending(values: Pair[Value], ranks: Pair[RankTrace]) -> Ending | None:
    """The end of a forward: a loss as it is, anything else along its own difference."""
    reference, target = (raise_tensor(saved_tensor(rank, value)) for rank, value in zip(ranks, values, strict=True))
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
        feed = Feed(_middle(pair.sides), arrived)
        gradients = run_precise(pair.sides.target.recipe, feed, differentiate_all=True).gradients
        found = {place: _contribution(pair, place, adjoint) for place, adjoint in arrived.items()}
        for place in arrived:
            del self._adjoints[outputs[place].id]
        inputs = pair.sides.map(lambda side: side.recorded.inputs)
        for place, gradient in gradients.items():
            value = inputs.target[place]
            known = self._adjoints.get(value.id)
            self._adjoints[value.id] = gradient if known is None else known + gradient
            if place in inputs.reference:
                self._leaves[value.id] = Pair(inputs.reference[place], value)
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


def _contribution(pair: ReplayedPair, place: str, adjoint: Tensor) -> float:
    other, made = (_made(side, place) for side in pair.sides)
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
    reference, target = (raise_tensor(saved_tensor(rank, value)) for rank, value in zip(ranks, values, strict=True))
    return target - reference if reference.shape == target.shape else None
