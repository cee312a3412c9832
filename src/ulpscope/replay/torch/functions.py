"""Finds the function behind a recorded name, without evaluating anything.

A name may lead only to what torch itself lets be overridden, to functions that make tensors, and to what the user
registered; never to what a module merely contains (torch.os.system, torch.load).

What operations compute that torch itself computes in float32 only, in plain torch.
"""

import contextlib
import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import get_overridable_functions

from ulpscope.capture.torch.watching.apis import COMPUTING_PROPERTIES
from ulpscope.operations.registry import Trait, operation, operation_name
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.replay.registry import registered

Function = Callable[..., Any]

# Rooms of torch whose functions are operations.
_NAMESPACES: dict[str, Any] = {
    "torch": torch,
    "torch.functional": torch.functional,
    "torch.nn.functional": torch.nn.functional,
    "torch.Tensor": torch.Tensor,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch.special": torch.special,
    "torch.nn.init": torch.nn.init,
    "torch._C._nn": torch._C._nn,
    "torch._C._linalg": torch._C._linalg,  # type: ignore[attr-defined]
    "torch._C._fft": torch._C._fft,  # type: ignore[attr-defined]
    "torch._C._special": torch._C._special,  # type: ignore[attr-defined]
}

# Libraries of operators that do not compute.
_NOT_COMPUTING = frozenset(("prim", "profiler", "c10d", "rpc", "inductor"))
_PROPERTIES = COMPUTING_PROPERTIES | {"data", "grad"}


def find_function(op: str) -> Function:
    """The function of this name: the user's own, one of torch, or a registered operator."""
    own = registered(op)
    if own is not None and own.function is not None:
        return own.function
    room, _, name = op.rpartition(".")
    if room in _NAMESPACES:
        return _torch_function(op, _NAMESPACES[room], name)
    if room != "torch_npu":
        return _registered_operator(op)
    found = getattr(sys.modules.get("torch_npu"), name, None) if name.startswith("npu_") else None
    if not callable(found):
        raise CannotReplayError(f"{op} needs torch_npu, or a function registered with ulpscope.reference_for")
    return found  # type: ignore[no-any-return]


def _torch_function(op: str, room: Any, name: str) -> Function:
    found = inspect.getattr_static(room, name, None) if room is torch.Tensor else getattr(room, name, None)
    if room is torch.Tensor and (inspect.isgetsetdescriptor(found) or isinstance(found, property)):
        if name not in _PROPERTIES:
            raise CannotReplayError(f"{op} is no operation that may be executed again")
        return found.__get__
    if found is None or not callable(found):
        raise CannotReplayError(f"this torch has no {op}")
    if not _is_operation(room, name):
        raise CannotReplayError(f"{op} is no operation that may be executed again")
    return found  # type: ignore[no-any-return]


def _is_operation(room: Any, name: str) -> bool:
    if operation(name).has(Trait.REACHING_OUT):
        return False
    if room is torch and inspect.isbuiltin(getattr(torch, name)) and hasattr(torch._C._VariableFunctions, name):
        return True
    function = getattr(room, name, None)
    own = room is torch.nn.functional and getattr(function, "__module__", "") == "torch.nn.functional"
    known = (
        operation(name).has(Trait.MAKER) or room in (torch._C._nn, torch.nn.init) or (own and not name.startswith("_"))
    )
    with contextlib.suppress(TypeError):  # what has no hash is none of torch's
        return known or function in _all_overridable()
    return False


@cache
def _all_overridable() -> frozenset[Any]:
    return frozenset(function for functions in get_overridable_functions().values() for function in functions)


def _registered_operator(op: str) -> Function:
    library, _, rest = op.partition(".")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, library, None), name, None) if library.isidentifier() and name else None
    found = getattr(packet, overload, None) if overload else packet
    reaches_out = operation(name).has(Trait.REACHING_OUT) or library in _NOT_COMPUTING
    if not isinstance(found, torch._ops.OpOverload | torch._ops.OpOverloadPacket) or reaches_out:
        known = f"{op} is not known here; register it"
        if registered(op) is not None:
            known = "its reference is registered, but not what to execute"
        raise CannotReplayError(f"{known}: ulpscope.reference_for({op!r}, function=...)")
    return found


UNSCALE = "amp_foreach_non_finite_check_and_unscale"
LARGEST_SCALE = torch.finfo(torch.float32).max


def find_reference(op: str) -> Function:
    """The function that stands for this one in high precision on the CPU."""
    own = registered(op)
    return own.reference if own is not None else _REFERENCES.get(operation_name(op)) or find_function(op)


def unscale(gradients: list[Tensor], found_inf: Tensor, inverse_scale: Tensor) -> None:
    """GradScaler: divide gradients by the scale, and note whether one of them is not finite."""
    for gradient in gradients:
        if not gradient.isfinite().all():
            found_inf.fill_(1.0)
        gradient.mul_(inverse_scale)


def update_scale(
    scale: Tensor, tracker: Tensor, found_inf: Tensor, growth_factor: float, backoff_factor: float, interval: int
) -> Tensor:
    """GradScaler: a smaller scale after an overflow, a larger one after `interval` steps without."""
    if found_inf.item():
        scale.mul_(backoff_factor)
        tracker.zero_()
        return scale
    tracker.add_(1)
    if tracker.item() == interval:
        if scale.item() * growth_factor <= LARGEST_SCALE:
            scale.mul_(growth_factor)
        tracker.zero_()
    return scale


_REFERENCES: dict[str, Function] = {
    UNSCALE: unscale,
    "amp_update_scale": update_scale,
}
