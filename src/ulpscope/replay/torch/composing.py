"""What it costs that a call is composed of kernels which hand rounded results on to each other."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ulpscope.operations.registry import operation_name
from ulpscope.replay.torch.running import Feed, Recipe, results, run
from ulpscope.replay.torch.tensors import raised, to_array
from ulpscope.replay.yardsticks import CHANCES, Composed, Composition, composition_of

WRITTEN = "written."

Way = tuple[Recipe, SDPBackend | None]
"""How a call is composed: with which backend of attention, where one is chosen."""


class IdealKernels(TorchDispatchMode):
    """Replaces each kernel by itself in float64, rounded once: to nearest, or by chance."""

    def __init__(self, chance: torch.Generator | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._chance = chance
        # By address; the tensors are kept so that no other gets it.
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def before_rounding(self, result: Tensor) -> Tensor:
        """A result of the call in float64, as the last kernel had it before it rounded."""
        own, high = self._before.get(result.data_ptr(), (result, result))
        if own.shape == result.shape:
            return high
        return high.reshape(result.shape) if own.numel() == result.numel() and result.is_contiguous() else result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Skipping would import all of dynamo at the first call: a second for nothing, as nothing is compiled here.
        return False

    def __torch_dispatch__(
        self, function: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _computes(function, args, kwargs):
            return function(*args, **kwargs)
        try:
            high_args, high_kwargs = _raised((args, kwargs))
            high = function(*high_args, **high_kwargs)
        except (RuntimeError, NotImplementedError):
            return function(*args, **kwargs)
        own = function(*args, **kwargs)
        for written, precise in zip(_written(function, args), _written(function, high_args), strict=True):
            self._round(written, precise)
        leaves = iter(tree_leaves(high))
        return tree_map_only(Tensor, lambda tensor: self._round(tensor, next(leaves)), own)

    def _round(self, own: Tensor, high: Any) -> Tensor:
        """Give a kernel's result the precise value, in its own dtype."""
        if not isinstance(high, Tensor) or high.shape != own.shape or high.dtype != raised(own.dtype):
            return own
        self._before[own.data_ptr()] = own, high
        if self._chance is None or not own.is_floating_point():
            return own.copy_(high)
        unit = torch.finfo(own.dtype).eps / 2
        noise = torch.rand(high.shape, generator=self._chance, dtype=torch.float64) * 2 - 1
        return own.copy_(high * (1 + unit * noise))


def _computes(function: Any, args: Any, kwargs: Any) -> bool:
    """Whether rounding happens inside: floats below float64, and no view of what is there."""
    returns = function._schema.returns
    if any(each.alias_info is not None and not each.alias_info.is_write for each in returns):
        return False
    if torch.Tag.nondeterministic_seeded in function.tags:
        return False
    return any(isinstance(leaf, Tensor) and raised(leaf.dtype) != leaf.dtype for leaf in tree_leaves((args, kwargs)))


def _raised(arguments: Any) -> Any:
    high = tree_map_only(Tensor, lambda tensor: tensor.to(raised(tensor.dtype)), arguments)
    return tree_map_only(torch.dtype, raised, high)


def _written(function: Any, args: tuple[Any, ...]) -> list[Tensor]:
    named = zip(function._schema.arguments, args, strict=False)
    return [
        arg
        for argument, arg in named
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(arg, Tensor)
    ]


def measure_composition(
    recipe: Recipe, feed: Feed, exact: Mapping[str, NDArray[np.generic]], *, unit: float
) -> Composition:
    """Execute the call with ideal kernels a few times, in every way that devices are known to compose it."""
    ideal = replace(recipe, function=recipe.reference)
    # What is written in passing is no result that a kernel returns: nothing is known of it before it was rounded.
    returned = {place: array for place, array in exact.items() if not place.startswith(WRITTEN)}
    found = [_measure(way, feed, returned, unit) for way in _ways(ideal)]
    places = dict.fromkeys(place for each in found for place in each.sensitivity)
    squares = {
        place: sum(np.square(each.sensitivity[place]) for each in found if place in each.sensitivity)
        for place in places
    }
    return Composition(found[0].ordinary, {place: np.sqrt(square) for place, square in squares.items()})


def _ways(recipe: Recipe) -> list[Way]:
    """As torch does it here, and as other devices do: attention fused or not, autocast's casts inside or not."""
    found: list[Way] = [(recipe, None)]
    if "attention" in operation_name(recipe.op):
        found.append((recipe, SDPBackend.MATH))
    if recipe.autocast is not None:
        found.append((replace(recipe, autocast=None), None))
    return found


def _measure(way: Way, feed: Feed, exact: Mapping[str, NDArray[np.generic]], unit: float) -> Composition:
    chance = torch.Generator().manual_seed(CHANCES)
    return composition_of(
        lambda: _execute(way, feed, IdealKernels()),
        lambda: _execute(way, feed, IdealKernels(chance)),
        exact,
        unit=unit,
        cannot=(RuntimeError, NotImplementedError),
    )


def _execute(way: Way, feed: Feed, kernels: IdealKernels) -> Composed:
    recipe, backend = way
    with contextlib.nullcontext() if backend is None else sdpa_kernel([backend]), kernels:
        ran = results(run(recipe, feed, device="cpu"))
    before = {place: to_array(kernels.before_rounding(tensor.detach())) for place, tensor in ran.items()}
    return {place: to_array(tensor) for place, tensor in ran.items()}, before
