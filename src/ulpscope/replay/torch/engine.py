"""Executes a case on a device and in high precision, and gives the evidence.

engine = Engine("cuda:0", seed=0)
executed = engine.execute(case, recorded, rank)
executed.evidence                 one entry an output or gradient
executed.refine()                 adds sensitivities: a few more runs in float64
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ulpscope.numerics.dtypes import FLOATING
from ulpscope.records.calls import Value
from ulpscope.records.checks import CaseId, OutputEvidence, ShareEvidence, Variant
from ulpscope.records.errors import UlpscopeError
from ulpscope.replay.memory import check_size
from ulpscope.replay.planning import longer
from ulpscope.replay.recorded import CannotReplayError, RecordedCall
from ulpscope.replay.registry import load_references
from ulpscope.replay.torch.composing import measure_composition
from ulpscope.replay.torch.drawing import added, draws, random_evidence
from ulpscope.replay.torch.evidence import Comparer, measure_reductions, measure_sensitivity
from ulpscope.replay.torch.factorising import factorises, with_signs_of
from ulpscope.replay.torch.running import (
    Feed,
    Ran,
    Recipe,
    cast_inputs,
    make_recipe,
    results,
    run,
    run_precise,
)
from ulpscope.replay.torch.tensors import case_tensor, to_array
from ulpscope.replay.yardsticks import ROUNDOFF_64, refined, tf32_roundoff, unrefined
from ulpscope.trace.reader import RankTrace

# A share of a half is told from a wrong one by about so many draws.
ENOUGH_DRAWS = 64
MOST_REPEATED = 64


class Engine:
    """Executes cases on one device."""

    def __init__(
        self,
        device: str,
        *,
        seed: int = 0,
        references: Sequence[Path] = (),
        change: Callable[[Feed], Feed] | None = None,
        autocast: bool = True,
    ) -> None:
        """`change`: what is done to inputs and gradients. Without `autocast` it is off, whatever was recorded."""
        torch.set_num_threads(1)
        self._device, self._seed, self._change, self._autocast = device, seed, change, autocast
        for file in references:
            load_references(file)
        _check_device(device)

    def execute(self, case: CaseId, recorded: RecordedCall, rank: RankTrace) -> "Executed":
        """Run the case on the device and in float64."""
        check_size(recorded)
        feed = self.feed(case, recorded, rank)
        if self._change is not None:
            feed = self._change(feed)
        recipe = make_recipe(recorded, feed, device=self._device, autocast=self._autocast)
        torch.manual_seed(self._seed)
        ran = run(recipe, feed, device=self._device)
        if recorded.call.random or draws(recipe):
            return Executed(recipe, feed, ran, self._random(recipe, feed, ran))
        seen = cast_inputs(recipe, feed, ran.outputs)
        precise = run_precise(recipe, seen)
        if set(ran.outputs) != set(precise.outputs):
            raise CannotReplayError("its reference returns other outputs")
        if factorises(recipe.op) and seen.grad_outputs:
            seen = replace(seen, grad_outputs=with_signs_of(recipe.op, ran.outputs, precise.outputs, seen.grad_outputs))
            precise = run_precise(recipe, seen)
        inside = None
        if torch.device(self._device).type == "cuda":
            # What operands are rounded to because the user lets them be.
            matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
            inside = tf32_roundoff(recipe.op, products=matmul.allow_tf32, by_cudnn=cudnn.allow_tf32)
        comparer = Comparer(recipe, seen, roundoff_inside=inside)
        return Executed(recipe, seen, ran, list(comparer.compare(ran, precise)), precise)

    def _random(self, recipe: Recipe, feed: Feed, first: Ran) -> list[OutputEvidence | ShareEvidence]:
        """Evidence of one execution, and of the law of as many as it takes to tell anything."""
        evidence = random_evidence(recipe, feed, first)
        for again in range(1, MOST_REPEATED):
            if all(each.trials >= ENOUGH_DRAWS for each in evidence if isinstance(each, ShareEvidence)):
                break
            torch.manual_seed(self._seed + again)
            further = random_evidence(recipe, feed, run(recipe, feed, device=self._device))
            if not any(each.trials for each in further if isinstance(each, ShareEvidence)):
                break
            evidence = [added(one, other) for one, other in zip(evidence, further, strict=True)]
        return evidence

    def feed(self, case: CaseId, recorded: RecordedCall, rank: RankTrace) -> Feed:
        """What the case is executed with."""
        inputs, grads = recorded.inputs, recorded.grad_outputs
        if case.variant is Variant.LONG:
            inputs, grads = longer(recorded)
        again = recorded.repeated

        def tensor(place: str, value: Value, variant: Variant) -> torch.Tensor:
            return case_tensor(case, place, value, rank=rank, seed=self._seed, variant=variant)

        first = next((place for place, value in inputs.items() if value.dtype in FLOATING), None)
        return Feed(
            {
                place: tensor(place, value, case.variant if place == first else Variant.RECORDED)
                for place, value in inputs.items()
                if place not in again
            },
            {place: tensor(f"grad.{place}", value, Variant.RECORDED) for place, value in grads.items()},
        )


@dataclass(slots=True)
class Executed:
    """An executed case."""

    recipe: Recipe
    feed: Feed
    ran: Ran
    evidence: list[OutputEvidence | ShareEvidence]
    precise: Ran | None = None

    def refine(self) -> None:
        """Fill in what judging a rounded result needs: the condition of each element, the length of its sums."""
        wanted = unrefined(self.evidence)
        if self.precise is None or not wanted:
            return
        exact = {place: to_array(tensor) for place, tensor in results(self.precise).items()}
        unit = max(each.input_roundoff for each in wanted)
        sensitivity = measure_sensitivity(self.recipe, self.feed, exact, unit=max(unit, ROUNDOFF_64**0.5))
        reductions = measure_reductions(self.recipe, self.feed)
        composed = measure_composition(self.recipe, self.feed, exact, unit=unit)
        better = {each.place: refined(each, sensitivity, reductions, composed, place=each.place) for each in wanted}
        self.evidence = [better.get(each.place, each) for each in self.evidence]

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Inputs, what was computed and what is true, by place."""
        found = self.feed.arrays()
        for each in self.evidence:
            if isinstance(each, OutputEvidence):
                found[f"computed.{each.place}"] = each.computed
                found[f"exact.{each.place}"] = each.exact
        return {name: np.ascontiguousarray(array) for name, array in found.items()}


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, AttributeError, NotImplementedError) as error:
        accelerator = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
        count = 0 if accelerator is None else torch.accelerator.device_count()
        known = ["cpu", *(f"{getattr(accelerator, 'type', '')}:{index}" for index in range(count))]
        raise UlpscopeError(
            f"device {device} is not there: {str(error).splitlines()[0]}",
            expected=f"one of {', '.join(known)}",
            next_step="name another with --device",
        ) from error
