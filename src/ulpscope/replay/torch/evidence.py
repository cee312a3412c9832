"""Puts what a device computed beside what is true, one output or gradient at a time."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.operations.registry import operation
from ulpscope.operations.traits import Trait
from ulpscope.records.checks import GRADIENT, Direction, OutputEvidence, Rule
from ulpscope.replay.torch.factorising import invariants
from ulpscope.replay.torch.running import Feed, Ran, Recipe
from ulpscope.replay.torch.selecting import ImpossibleSelectionError, ordered, selected, selects
from ulpscope.replay.torch.sensitivity import results
from ulpscope.replay.torch.tensors import to_array

ROUNDOFF_32 = DTYPES["float32"].unit_roundoff
ROUNDOFF_64 = DTYPES["float64"].unit_roundoff

# Given with one of these, a call that moves numbers computes them.
COMPUTING_KEYWORDS = frozenset("reduce decimals max_norm".split())


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
        factors = self._invariants(ran)
        true = results(precise)
        gradients = {f"{GRADIENT}{place}": gradient for place, gradient in ran.gradients.items()}
        told = results(ran) if factors is None else gradients
        found = [self._one(place, computed, true[place]) for place, computed in told.items() if place in true]
        return [*(factors or ()), *found]

    def _one(self, place: str, computed: Tensor, exact: Tensor) -> OutputEvidence:
        evidence = self._evidence(place, computed, exact)
        if computed.shape != exact.shape:
            told = f"shape {list(computed.shape)} instead of {list(exact.shape)}"
            return replace(evidence, violation=told)
        if selects(self._recipe.op, place, computed):
            return self._by_selection(evidence, computed, exact)
        return evidence if evidence.direction is Direction.BACKWARD else self._ordered(evidence, computed, exact)

    def _ordered(self, evidence: OutputEvidence, computed: Tensor, exact: Tensor) -> OutputEvidence:
        found, right = (ordered(self._recipe.op, self._recipe.arguments, each) for each in (computed, exact))
        return evidence if found is computed else replace(evidence, computed=to_array(found), exact=to_array(right))

    def _evidence(self, place: str, computed: Tensor, exact: Tensor) -> OutputEvidence:
        backward = place.startswith(GRADIENT)
        dtype = self._grid(place, computed)
        accumulation = ROUNDOFF_64 if roundoff(dtype) == ROUNDOFF_64 else ROUNDOFF_32
        return OutputEvidence(
            place=place,
            direction=Direction.BACKWARD if backward else Direction.FORWARD,
            rule=self._rule_of_gradient(computed) if backward else self._rule(computed),
            dtype=dtype_name(dtype),
            computed=to_array(computed),
            exact=to_array(exact),
            reduction=1.0,
            accumulation=accumulation,
            input_roundoff=max(self._inside or 0.0, roundoff(dtype), *self._input_roundoffs()),
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
        alone = len(self._recipe.differentiated) == 1 and len(set(self._recipe.firsts.values())) == len(
            self._recipe.firsts
        )
        return Rule.EXACT if whole and alone and operation(self._recipe.op).has(Trait.PASSING_ON) else Rule.ROUNDED

    def _grid(self, place: str, computed: Tensor) -> torch.dtype:
        """A gradient comes back through autocast's cast: it was rounded there, whatever it is stored in."""
        source = self._feed.tensors.get(place.removeprefix(GRADIENT))
        return source.dtype if place.startswith(GRADIENT) and source is not None else computed.dtype

    def _input_roundoffs(self) -> Iterator[float]:
        yield 0.0
        yield from (roundoff(tensor.dtype) for tensor in self._feed.tensors.values())

    def _by_selection(self, evidence: OutputEvidence, computed: Tensor, exact: Tensor) -> OutputEvidence:
        source = self._feed.tensors.get("args.0", self._feed.tensors.get("kwargs.input"))
        if source is None:
            return evidence
        arguments = self._recipe.arguments
        try:
            chosen = ordered(
                self._recipe.op, arguments, selected(self._recipe.op, arguments, source, computed.detach().to("cpu"))
            )
        except ImpossibleSelectionError as error:
            return replace(evidence, violation=str(error))
        right = ordered(self._recipe.op, arguments, selected(self._recipe.op, arguments, source, exact))
        return replace(
            evidence,
            rule=Rule.EXACT,
            dtype=dtype_name(source.dtype),
            computed=to_array(chosen),
            exact=to_array(right),
        )

    def _invariants(self, ran: Ran) -> list[OutputEvidence] | None:
        source = self._feed.tensors.get("args.0", self._feed.tensors.get("kwargs.A"))
        if source is None or not ran.outputs:
            return None
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
