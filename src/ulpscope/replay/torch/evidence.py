"""Puts what a device computed beside what is true, one output or gradient at a time.

Places that a call chose (argmax, sort, pooling) are taken as the values that lie there: ties may be broken either way.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.checks import GRADIENT, Direction, OutputEvidence, Rule
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.replay.torch.factorising import invariants
from ulpscope.replay.torch.running import Feed, Ran, Recipe, raise_tensor, results, run_precise
from ulpscope.replay.torch.tensors import dtype_name, to_array
from ulpscope.replay.yardsticks import PERTURBATIONS, ROUNDOFF_32, ROUNDOFF_64, UNIFORM, Arrays, rms_changes

# Given with one of these, a call that moves numbers computes them.
COMPUTING_KEYWORDS = frozenset("reduce decimals max_norm".split())


def roundoff(dtype: torch.dtype) -> float:
    known = DTYPES.get(dtype_name(dtype))
    return 0.0 if known is None else known.unit_roundoff


class Comparer:
    """Makes evidence of one executed call."""

    def __init__(self, recipe: Recipe, feed: Feed, *, roundoff_inside: float | None = None) -> None:
        self._recipe = recipe
        self._feed = feed
        """As the call saw it: rounded by autocast, if it was."""
        self._inside = roundoff_inside
        """What a device is known to round operands to before it multiplies them (TF32)."""

    def compare(self, ran: Ran, precise: Ran) -> list[OutputEvidence]:
        """Evidence for all outputs and gradients."""
        factors, true = self._invariants(ran), results(precise)
        found = [
            self._one(place, computed, true[place])
            for place, computed in results(ran).items()
            if place in true and (factors is None or place.startswith(GRADIENT))
        ]
        return [*(factors or ()), *found]

    def _one(self, place: str, computed: Tensor, exact: Tensor) -> OutputEvidence:
        evidence = self._evidence(place, computed, exact)
        if computed.shape != exact.shape:
            told = f"shape {list(computed.shape)} instead of {list(exact.shape)}"
            return replace(evidence, violation=told)
        if selects(self._recipe.op, place, computed):
            return self._by_selection(evidence, computed, exact)
        if evidence.direction is Direction.BACKWARD:
            return evidence
        found, right = (ordered(self._recipe.op, self._recipe.arguments, each) for each in (computed, exact))
        return evidence if found is computed else replace(evidence, computed=to_array(found), exact=to_array(right))

    def _evidence(self, place: str, computed: Tensor, exact: Tensor) -> OutputEvidence:
        backward, dtype = place.startswith(GRADIENT), computed.dtype
        if backward and place.removeprefix(GRADIENT) in self._feed.tensors:
            # It comes back through autocast's cast: it was rounded there, whatever it is stored in.
            dtype = self._feed.tensors[place.removeprefix(GRADIENT)].dtype
        accumulation = ROUNDOFF_64 if roundoff(dtype) == ROUNDOFF_64 else ROUNDOFF_32
        given = [tensor.dtype for tensor in self._feed.tensors.values()]
        return OutputEvidence(
            place=place,
            direction=Direction.BACKWARD if backward else Direction.FORWARD,
            rule=self._rule_of_gradient(computed) if backward else self._rule(computed),
            dtype=dtype_name(dtype),
            computed=to_array(computed),
            exact=to_array(exact),
            reduction=1.0,
            accumulation=accumulation,
            input_roundoff=max(self._inside or 0.0, *map(roundoff, (dtype, *given))),
        )

    def _rule(self, computed: Tensor) -> Rule:
        whole = not (computed.is_floating_point() or computed.is_complex())
        executed, keywords = operation(self._recipe.op), self._recipe.arguments.get("kwargs", {})
        moves = executed.has(Trait.EXACT) and COMPUTING_KEYWORDS.isdisjoint(keywords)
        if executed.has(Trait.COMPUTED_IF_COMPLEX):
            moves = not any(tensor.is_complex() for tensor in self._feed.tensors.values())
        return Rule.EXACT if whole or moves else Rule.ROUNDED

    def _rule_of_gradient(self, computed: Tensor) -> Rule:
        """Of one that was added up over a broadcast or a repeated input: rounded."""
        sent = self._feed.grad_outputs.values()
        whole = len(sent) == 1 and all(grad.numel() == computed.numel() for grad in sent)
        firsts = self._recipe.firsts
        alone = len(self._recipe.differentiated) == 1 and len(set(firsts.values())) == len(firsts)
        return Rule.EXACT if whole and alone and operation(self._recipe.op).has(Trait.PASSING_ON) else Rule.ROUNDED

    def _by_selection(self, evidence: OutputEvidence, computed: Tensor, exact: Tensor) -> OutputEvidence:
        source = self._feed.tensors.get("args.0", self._feed.tensors.get("kwargs.input"))
        if source is None:
            return evidence
        op, arguments = self._recipe.op, self._recipe.arguments
        try:
            chosen = ordered(op, arguments, selected(op, arguments, source, computed.detach().to("cpu")))
        except ImpossibleSelectionError as error:
            return replace(evidence, violation=str(error))
        right = to_array(ordered(op, arguments, selected(op, arguments, source, exact)))
        return replace(
            evidence, rule=Rule.EXACT, dtype=dtype_name(source.dtype), computed=to_array(chosen), exact=right
        )

    def _invariants(self, ran: Ran) -> list[OutputEvidence] | None:
        source = self._feed.tensors.get("args.0", self._feed.tensors.get("kwargs.A"))
        held = None
        if source is not None and ran.outputs:
            held = invariants(self._recipe.op, self._recipe.arguments, source, ran.outputs)
        if held is None:
            return None
        first = next(iter(ran.outputs.values()))
        blank = self._evidence("output.0", first, first)
        return [
            replace(
                blank,
                place=f"invariant.{invariant.name}",
                rule=Rule.NORMWISE,
                computed=to_array(invariant.computed),
                exact=to_array(invariant.exact),
                reduction=float(invariant.length),
                scale=invariant.scale,
            )
            for invariant in held
        ]


_POOL_AXES = {"1d": 1, "2d": 2, "3d": 3}
# Where `dim` stands among the positional arguments, if not second.
_DIM_AT = {"topk": 2, "kthvalue": 2}


def selected(op: str, arguments: Mapping[str, Any], source: Tensor, index: Tensor) -> Tensor:
    """The values of `source` at the places that the call gave."""
    name = operation(op).name
    for ending, axes in _POOL_AXES.items():
        if ending in name:
            return _at(source.flatten(-axes), index.flatten(-axes), -1, once=False)
    dim = _dimension(name, arguments)
    if dim is None:
        return _at(source.flatten(), index.flatten(), 0, once=False)
    if not source.dim():
        return source
    placed = index.unsqueeze(dim) if index.dim() < source.dim() else index
    return _at(source, placed, dim, once=operation(op).has(Trait.PERMUTING))


def ordered(op: str, arguments: Mapping[str, Any], values: Tensor) -> Tensor:
    """Values in rising order where the call may give them in any: topk without `sorted`."""
    args, kwargs = arguments.get("args", []), arguments.get("kwargs", {})
    if operation(op).name != "topk" or kwargs.get("sorted", args[4] if len(args) > 4 else True) is not False:
        return values
    return values.sort(_dimension("topk", arguments) or 0).values if values.dim() else values


def selects(op: str, place: str, output: Tensor) -> bool:
    """Whether an output is places of elements: the second of those that give values, too."""
    given_alone = operation(op).name.startswith("arg")
    return (
        operation(op).has(Trait.SELECTING)
        and place == ("output.0" if given_alone else "output.1")
        and output.dtype == torch.int64
    )


class ImpossibleSelectionError(Exception):
    """An index that no right answer could hold; the text says which."""


def _dimension(name: str, arguments: Mapping[str, Any]) -> int | None:
    args, kwargs, place = arguments.get("args", []), arguments.get("kwargs", {}), _DIM_AT.get(name, 1)
    given = kwargs.get("dim", kwargs.get("axis"))
    if given is None and len(args) > place and isinstance(args[place], int) and not isinstance(args[place], bool):
        given = args[place]
    if given is None:
        return None if name in ("argmax", "argmin") else -1 if name != "msort" else 0
    if not isinstance(given, int):
        raise CannotReplayError("its dimension is not a plain number")
    return given


def _at(source: Tensor, index: Tensor, dim: int, *, once: bool) -> Tensor:
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= source.shape[dim]):
        raise ImpossibleSelectionError(f"an index lies outside of 0 to {source.shape[dim] - 1}")
    if once and index.shape[dim] > 1 and bool((index.sort(dim).values.diff(dim=dim) == 0).any()):
        raise ImpossibleSelectionError("an index stands there twice")
    return torch.take_along_dim(source, index, dim)


# Elements of an output whose dependence on the inputs is counted.
PROBED = 3


def measure_sensitivity(recipe: Recipe, feed: Feed, exact: Mapping[str, NDArray[np.generic]], *, unit: float) -> Arrays:
    """RMS change of each element per unit relative change of all inputs; without any, of the element itself."""
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in feed.tensors.values()):
        return {place: np.abs(array) for place, array in exact.items() if array.dtype == np.float64}
    generator = torch.Generator().manual_seed(PERTURBATIONS)

    def move(tensor: Tensor) -> Tensor:
        high = raise_tensor(tensor)
        if not (high.is_floating_point() or high.is_complex()):
            return tensor
        # Uniform, of variance 1/12; drawn in float32, which is twice as fast and fine enough.
        noise = torch.rand(high.shape, generator=generator, dtype=torch.float32).sub_(0.5)
        return torch.addcmul(high, high, noise.to(high.dtype), value=unit * UNIFORM)

    moved = (
        {place: to_array(tensor) for place, tensor in results(run_precise(recipe, feed.changed(move))).items()}
        for _ in range(PERTURBATIONS)
    )
    return rms_changes(exact, moved, unit=unit)


def measure_reductions(recipe: Recipe, feed: Feed) -> dict[str, float]:
    """About how many terms an element of each result is made of: counted where gradients tell, else from sizes."""
    try:
        ran = run_precise(recipe, feed, differentiate_all=True)
    except RuntimeError:
        ran = run_precise(recipe, feed)
    leaves = {place: leaf for place, leaf in ran.leaves.items() if leaf.requires_grad}
    largest = max((tensor.numel() for tensor in feed.tensors.values()), default=1)
    found: dict[str, float] = {}
    for name, output in ran.outputs.items():
        counts = _dependence(output, leaves)
        found[name] = max(counts.values()) if counts else max(1.0, largest / max(output.numel(), 1))
        for place, count in counts.items():
            # Each of the output's elements has `count` entries in the Jacobian: so many a column, on average.
            length = count * output.numel() / max(leaves[place].numel(), 1)
            found[f"grad.{place}"] = max(found.get(f"grad.{place}", 1.0), length, found[name])
    return found


def _dependence(output: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, float]:
    """How many elements of each input one element of the output depends on; the most of a few."""
    if not output.requires_grad or not leaves or not output.numel():
        return {}
    flat = output.reshape(-1)
    most: dict[str, float] = dict.fromkeys(leaves, 1.0)
    for index in sorted({0, flat.numel() // 2, flat.numel() - 1})[:PROBED]:
        one = flat[index].abs() if flat.is_complex() else flat[index]
        with contextlib.suppress(RuntimeError):
            found = torch.autograd.grad(one, list(leaves.values()), retain_graph=True, allow_unused=True)
            for place, gradient in zip(leaves, found, strict=True):
                if gradient is not None:
                    most[place] = max(most[place], float(torch.count_nonzero(gradient)))
    return most
