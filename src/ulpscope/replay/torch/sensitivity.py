"""How much each element of a result moves when the inputs move by their rounding: in float64, without formulas.

A kernel that computes the exact result of inputs changed in their last bit is as good as the inputs are. The root mean
square change over a few random perturbations, per unit of relative change, is the condition of each element.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulpscope.replay.torch.running import Feed, Ran, Recipe, raise_tensor, run_precise
from ulpscope.replay.torch.tensors import to_array

# Fewer have tails: with 2 runs, 12 of 255 sound results looked wrong.
PERTURBATIONS = 6
# Elements of an output whose dependence on the inputs is counted.
PROBED = 3

Arrays = dict[str, NDArray[np.generic]]


def results(ran: Ran) -> dict[str, Tensor]:
    """Everything that an execution gave, by the places that evidence has."""
    return {
        **ran.outputs,
        **{f"written.{place}": tensor for place, tensor in ran.written.items()},
        **{f"grad.{place}": tensor for place, tensor in ran.gradients.items()},
    }


def measure_sensitivity(recipe: Recipe, feed: Feed, exact: Mapping[str, NDArray[np.generic]], *, unit: float) -> Arrays:
    """RMS change of each element per unit relative change of all inputs; without any, of the element itself."""
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in feed.tensors.values()):
        return {place: np.abs(array) for place, array in exact.items() if array.dtype == np.float64}
    generator = torch.Generator().manual_seed(PERTURBATIONS)
    totals = {place: np.zeros(array.shape) for place, array in exact.items() if array.dtype == np.float64}
    for _ in range(PERTURBATIONS):
        moved = results(run_precise(recipe, _perturbed(feed, unit, generator)))
        for place, total in totals.items():
            if place in moved:
                _add_square(total, to_array(moved[place]), exact[place], unit)
    return {place: np.sqrt(total / PERTURBATIONS) for place, total in totals.items()}


def _add_square(
    total: NDArray[np.float64], moved: NDArray[np.generic], exact: NDArray[np.generic], unit: float
) -> None:
    if moved.shape != exact.shape:
        return
    with np.errstate(invalid="ignore", over="ignore"):
        change = (moved.astype(np.float64) - exact.astype(np.float64)) / unit
        total += np.where(np.isfinite(change), change * change, 0.0)


def _perturbed(feed: Feed, unit: float, generator: torch.Generator) -> Feed:
    def move(tensor: Tensor) -> Tensor:
        high = raise_tensor(tensor)
        if not (high.is_floating_point() or high.is_complex()):
            return tensor
        # Uniform, of variance 1/12; drawn in float32, which is twice as fast and fine enough.
        noise = torch.rand(high.shape, generator=generator, dtype=torch.float32).sub_(0.5)
        return torch.addcmul(high, high, noise.to(high.dtype), value=unit * 12**0.5)

    return Feed(
        {place: move(tensor) for place, tensor in feed.tensors.items()},
        {place: move(tensor) for place, tensor in feed.grad_outputs.items()},
    )


def measure_reductions(recipe: Recipe, feed: Feed) -> dict[str, float]:
    """About how many terms an element of each result is made of: counted where gradients tell, else from sizes."""
    try:
        ran = run_precise(recipe, feed, differentiate_all=True)
    except RuntimeError:
        ran = run_precise(recipe, feed)
    leaves = {place: leaf for place, leaf in ran.leaves.items() if leaf.requires_grad}
    found: dict[str, float] = {}
    for name, output in ran.outputs.items():
        counts = _dependence(output, leaves)
        found[name] = max(counts.values()) if counts else _size_ratio(feed, output)
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
        for place, gradient in zip(leaves, _gradients(one, leaves), strict=True):
            if gradient is not None:
                most[place] = max(most[place], float(torch.count_nonzero(gradient)))
    return most


def _gradients(one: Tensor, leaves: Mapping[str, Tensor]) -> tuple[Tensor | None, ...]:
    try:
        return torch.autograd.grad(one, list(leaves.values()), retain_graph=True, allow_unused=True)
    except RuntimeError:
        return (None,) * len(leaves)


def _size_ratio(feed: Feed, output: Tensor) -> float:
    largest = max((tensor.numel() for tensor in feed.tensors.values()), default=1)
    return max(1.0, largest / max(output.numel(), 1))
