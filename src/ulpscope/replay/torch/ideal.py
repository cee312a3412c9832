"""A sound run to measure others by: the call as torch composes it, each of its kernels correctly rounded.

A call may store intermediate results in its own dtype: cross_entropy in bfloat16 rounds the logarithms of its softmax.
No kernel is to blame for that. Here every kernel inside the call computes in float64 and rounds once to the dtype that
it would have given; the error that is left is what composing it so costs.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ulpscope.replay.torch.arguments import raised


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
