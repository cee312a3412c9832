"""What a fault is, and the three ways to make one out of a sound function.

@fault("torch.nn.functional.layer_norm", rows)                 another call of the sound function: both directions
def layer_norm_with_small_eps(layer_norm, x, shape, weight, bias, eps):
    return layer_norm(x, shape, weight, bias, 1e-12)

@wrong_forward(...)      its result alone is wrong, the gradients are those of the sound function
@wrong_backward(...)     changes the sound function's gradients, in the order of the tensors that want one
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce, wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

ALL = ("float32", "bfloat16", "float16")
HALVES = ("bfloat16", "float16")
FP32 = ("float32",)

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Data:
    """Makes tensors as a training step has them, in one dtype."""

    dtype: torch.dtype

    def x(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        """Activations, which want a gradient."""
        return self.fixed(*shape, scale=scale, mean=mean).requires_grad_()

    def fixed(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        return (torch.randn(shape) * scale + mean).to(self.dtype)

    def weight(self, *shape: int) -> Tensor:
        """A matrix or a filter, initialised by its fan-in."""
        fan_in = torch.Size(shape[1:]).numel()
        return self.x(*shape, scale=fan_in**-0.5)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return (torch.rand(shape) * (high - low) + low).to(self.dtype)

    @staticmethod
    def below(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape)


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def given(*args: Any, **kwargs: Any) -> Given:
    return Given(args, kwargs)


Giving = Callable[[Data], Given]


@dataclass(frozen=True, slots=True)
class Fault:
    """A wrong kernel and a call that it is put in the place of."""

    name: str
    op: str
    giving: Giving
    wrong: Function
    """Called with the sound function and the arguments."""
    dtypes: tuple[str, ...]
    keywords: frozenset[str]
    """Those that the wrong kernel knows."""

    def kernel(self) -> Function:
        sound = find(self.op)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            # torch records the defaults of its Python functions, too: inplace=False, _stacklevel=3.
            known = {name: value for name, value in kwargs.items() if name in self.keywords}
            return self.wrong(sound, *args, **known)

        return kernel


FAULTS: list[Fault] = []


def find(op: str) -> Function:
    """The sound function of this name."""
    found: Function = reduce(getattr, op.split(".")[1:], torch)  # type: ignore[arg-type]
    return found


def fault(op: str, giving: Giving, dtypes: tuple[str, ...] = ALL) -> Callable[[Function], Function]:
    def register(wrong: Function) -> Function:
        known = frozenset(inspect.signature(wrong).parameters)
        FAULTS.append(Fault(wrong.__name__.replace("_", " "), op, giving, wrong, dtypes, known))
        return wrong

    return register


def wrong_forward(op: str, giving: Giving, dtypes: tuple[str, ...] = ALL) -> Callable[[Function], Function]:
    def register(change: Function) -> Function:
        @wraps(change)
        def wrong(sound: Function, *args: Any, **kwargs: Any) -> Any:
            return _apply(sound, args, kwargs, forward=change)

        fault(op, giving, dtypes)(wrong)
        return change

    return register


def wrong_backward(op: str, giving: Giving, dtypes: tuple[str, ...] = ALL) -> Callable[[Function], Function]:
    """`change(gradients, sent, *args, **kwargs)` gives the gradients instead."""

    def register(change: Function) -> Function:
        @wraps(change)
        def wrong(sound: Function, *args: Any, **kwargs: Any) -> Any:
            return _apply(sound, args, kwargs, backward=change)

        fault(op, giving, dtypes)(wrong)
        return change

    return register


def _apply(
    sound: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    forward: Function | None = None,
    backward: Function | None = None,
) -> Any:
    leaves, form = tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Tensor) -> Any:
            own = list(leaves)
            ctx.own = [tensor.detach().requires_grad_() for tensor in tensors]
            for place, tensor in zip(places, ctx.own, strict=True):
                own[place] = tensor
            ctx.given = tree_unflatten(own, form)
            with torch.enable_grad():
                ctx.result = sound(*ctx.given[0], **ctx.given[1])
            if forward is None:
                return ctx.result.detach().clone()
            return forward(sound, *args, **kwargs).detach()

        @staticmethod
        def backward(ctx: Any, sent: Tensor) -> Any:
            found = torch.autograd.grad(ctx.result, ctx.own, sent)
            if backward is None:
                return found
            with torch.no_grad():
                return tuple(backward(list(found), sent, *ctx.given[0], **ctx.given[1]))

    if not places:
        return forward(sound, *args, **kwargs) if forward else sound(*args, **kwargs)
    return Kernel.apply(*(leaves[place] for place in places))


def wide(tensor: Tensor) -> Tensor:
    """Precise enough for all but the fault itself to be exact."""
    return tensor.detach().double()


def rows_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def in_blocks(left: Tensor, right: Tensor, dtype: torch.dtype, block: int = 16) -> Tensor:
    """left @ right, its partial sums kept in `dtype`."""
    total = torch.zeros(*left.shape[:-1], right.shape[-1], dtype=dtype)
    for begin in range(0, left.shape[-1], block):
        part = left[..., begin : begin + block].float() @ right[..., begin : begin + block, :].float()
        total = (total.float() + part).to(dtype)
    return total


def added_in(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """The sum along the last axis, one element after the other, in `dtype`."""
    total = torch.zeros(tensor.shape[:-1], dtype=dtype)
    for place in range(tensor.shape[-1]):
        total = total + tensor[..., place].to(dtype)
    return total


def tf32(tensor: Tensor) -> Tensor:
    """Ten bits of the significand, rounded to nearest."""
    bits = tensor.detach().contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def truncated(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded toward zero."""
    near = exact.to(dtype).contiguous()
    away = near.double().abs() > exact.double().abs()
    # One less as an integer is one step nearer to zero: sign and magnitude are apart.
    return torch.where(away, (near.view(torch.int16) - 1).view(dtype), near)
