"""Executes a recorded call once: on a device as it was, or on the CPU in high precision.

recipe = make_recipe(recorded, feed, device="cuda:0")
run(recipe, feed, device="cuda:0")           what the device computes
run_precise(recipe, feed)                    what is true

First steps of a worker: does this CPU do what torch thinks it can, and is everything loaded that cases need?
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulpscope.capture.torch.tensors import find_tensors
from ulpscope.numerics.dtypes import AUTOCAST_DTYPES
from ulpscope.operations.registry import Trait, operation
from ulpscope.replay.recorded import RecordedCall
from ulpscope.replay.torch.functions import UNSCALE, Function, find_function, find_reference
from ulpscope.replay.torch.tensors import Decoder, raised, to_array, torch_dtype

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a recorded call is executed."""

    op: str
    function: Function
    reference: Function
    arguments: Mapping[str, Any]
    firsts: Mapping[str, str]
    """For the place of each input the first place of the same tensor: most often itself."""
    differentiated: tuple[str, ...]
    autocast: torch.dtype | None


@dataclass(frozen=True, slots=True)
class Feed:
    """What one execution is given, on the CPU and in its own dtypes."""

    tensors: Tensors
    """By first places."""
    grad_outputs: Tensors

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Feed":
        return Feed(
            {place: change(tensor) for place, tensor in self.tensors.items()},
            {place: change(tensor) for place, tensor in self.grad_outputs.items()},
        )

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """All of it, by the names that saved cases have."""
        inputs = {f"input.{place}": to_array(tensor) for place, tensor in self.tensors.items()}
        return inputs | {f"grad_output.{place}": to_array(grad) for place, grad in self.grad_outputs.items()}


@dataclass(frozen=True, slots=True)
class Ran:
    """What one execution gave."""

    outputs: Tensors
    """With the histories that gradients need."""
    written: Tensors
    """Inputs that it changed, by place."""
    leaves: Tensors
    gradients: Tensors
    """By place of the input."""


def results(ran: Ran) -> dict[str, Tensor]:
    """Everything that an execution gave, by the places that evidence has."""
    return {
        **ran.outputs,
        **{f"written.{place}": tensor for place, tensor in ran.written.items()},
        **{f"grad.{place}": tensor for place, tensor in ran.gradients.items()},
    }


def make_recipe(recorded: RecordedCall, feed: Feed, *, device: str, autocast: bool = True) -> Recipe:
    """How a call is executed: under the autocast that was recorded, or that explains the types of what was recorded.

    Other tools do not record it. It shows in a call that gives another type than it does for the same inputs alone.
    """
    call = recorded.call
    recipe = Recipe(
        op=call.op,
        function=find_function(call.op),
        reference=find_reference(call.op),
        arguments=call.arguments,
        firsts={place: place for place in recorded.inputs} | recorded.repeated,
        differentiated=recorded.differentiated,
        autocast=torch_dtype(call.autocast) if autocast and call.autocast is not None else None,
    )
    dtypes = {value.dtype for value in (*recorded.inputs.values(), *recorded.outputs.values())}
    lower = dtypes & AUTOCAST_DTYPES
    if not autocast or recipe.autocast is not None or not lower or "float32" not in dtypes:
        return recipe
    alone = replace(recipe, differentiated=())
    tried = [None, *(torch_dtype(name) for name in sorted(lower))]
    explaining = (dtype for dtype in tried if _gives(replace(alone, autocast=dtype), feed, recorded, device=device))
    return replace(recipe, autocast=next(explaining, None))


def _gives(recipe: Recipe, feed: Feed, recorded: RecordedCall, *, device: str) -> bool:
    """Whether this execution gives results of the types that were recorded."""
    try:
        outputs = run(recipe, feed, device=device).outputs
    except (RuntimeError, NotImplementedError):
        return False
    wanted = {place: torch_dtype(value.dtype) for place, value in recorded.outputs.items()}
    return {place: tensor.dtype for place, tensor in outputs.items()} == wanted


def run(recipe: Recipe, feed: Feed, *, device: str) -> Ran:
    """Execute the call in its own dtypes."""
    there = feed.changed(lambda tensor: tensor.to(device))
    kind, dtype = torch.device(device).type, recipe.autocast
    autocast = contextlib.nullcontext() if dtype is None else torch.autocast(kind, dtype=dtype)
    # Where functions that make tensors make them; on the CPU no mode is needed, and none would be free.
    with autocast, contextlib.nullcontext() if device == "cpu" else torch.device(device):
        return _execute(recipe, recipe.function, there.tensors, there.grad_outputs, decode={"device": device})


def run_precise(recipe: Recipe, feed: Feed, *, differentiate_all: bool = False) -> Ran:
    """Execute the call in float64 on the CPU, on contiguous copies; other kernels than those of its own dtypes."""
    executed = operation(recipe.op)
    # view(dtype) looks at bits.
    looks = executed.name == "view" and any(
        isinstance(item, dict) and "$dtype" in item for item in recipe.arguments["args"]
    )
    if looks or executed.has(Trait.OF_OWN_DTYPE):
        # There is no higher precision for it: its result depends on which numbers its dtype has.
        return _execute(recipe, recipe.reference, feed.tensors, feed.grad_outputs, decode={"device": "cpu"})
    high = feed.changed(raise_tensor)
    if differentiate_all:
        wanted = tuple(
            place
            for place, leaf in high.tensors.items()
            if (leaf.is_floating_point() or leaf.is_complex()) and not _may_write_silently(recipe, place)
        )
        recipe = replace(recipe, differentiated=wanted)
    decode = {"device": "cpu", "precise": True, "scalars": scalar_dtype(recipe, feed)}
    return _execute(recipe, recipe.reference, high.tensors, high.grad_outputs, decode=decode)


def raise_tensor(tensor: Tensor) -> Tensor:
    return tensor.to(raised(tensor.dtype)).contiguous()


def cast_inputs(recipe: Recipe, feed: Feed, outputs: Tensors) -> Feed:
    """The feed as autocast hands it on: rounded, where the call computed in autocast's dtype."""
    lower = recipe.autocast
    if lower is None or not any(output.dtype == lower for output in outputs.values()):
        return feed
    rounded = {
        place: tensor.to(lower) if tensor.dtype == torch.float32 else tensor for place, tensor in feed.tensors.items()
    }
    return replace(feed, tensors=rounded)


def _execute(recipe: Recipe, function: Function, tensors: Tensors, grads: Tensors, *, decode: Mapping[str, Any]) -> Ran:
    leaves = {
        place: tensor.detach().requires_grad_(place in recipe.differentiated) for place, tensor in tensors.items()
    }
    with torch.set_grad_enabled(bool(recipe.differentiated)):
        # The call may write what it is given, which a leaf that wants a gradient forbids.
        given = {place: leaf.clone() for place, leaf in leaves.items()}
        versions = {place: tensor._version for place, tensor in given.items()}
        decoder = Decoder({place: given[first] for place, first in recipe.firsts.items()}, **decode)
        args, kwargs = decoder.arguments(recipe.arguments)
        result = function(*args, **kwargs)
        outputs = _outputs(result, args)
    written = {
        place: tensor
        for place, tensor in given.items()
        if (tensor._version != versions[place] or _may_write_silently(recipe, place))
        and all(tensor is not output for output in outputs.values())
    }
    return Ran(outputs, written, leaves, _gradients(recipe, leaves, outputs, grads))


def _outputs(result: Any, args: list[Any]) -> dict[str, Tensor]:
    if result is None and args and isinstance(args[0], Tensor):
        return {"output.0": args[0]}
    found = dict(find_tensors(result, "output"))
    if not found and isinstance(result, bool | int | float | complex):
        # In float64 or int64: the number itself.
        return {"returned": torch.tensor(result, dtype=torch.float64 if isinstance(result, float) else None)}
    return found


def _may_write_silently(recipe: Recipe, place: str) -> bool:
    """Running statistics, and what GradScaler unscales, change without a trace in the version counter."""
    executed = operation(recipe.op)
    if executed.name == UNSCALE:
        return place == "args.1" or place.startswith("args.0.")
    statistics = ("args.1", "args.2", "kwargs.running_mean", "kwargs.running_var")
    return executed.has(Trait.RUNNING_STATS) and place in statistics


def _gradients(recipe: Recipe, leaves: Tensors, outputs: Tensors, grads: Tensors) -> dict[str, Tensor]:
    wanted = {place: leaves[place] for place in recipe.differentiated}
    sent = {place: grad for place, grad in grads.items() if place in outputs and outputs[place].requires_grad}
    if not wanted or not sent:
        return {}
    found = torch.autograd.grad(
        [outputs[place] for place in sent],
        list(wanted.values()),
        [grad.to(outputs[place].dtype) for place, grad in sent.items()],
        allow_unused=True,
        retain_graph=True,
    )
    return {place: gradient for place, gradient in zip(wanted, found, strict=True) if gradient is not None}


def scalar_dtype(recipe: Recipe, feed: Feed) -> torch.dtype | None:
    """Kernels compute with plain numbers in float32, and compare with them in the tensor's own dtype."""
    floats = [tensor.dtype for tensor in feed.tensors.values() if tensor.dtype.is_floating_point]
    executed = operation(recipe.op)
    if not floats or torch.float64 in floats:
        return None
    if executed.has(Trait.COMPARING):
        return floats[0]
    sized = executed.has(Trait.SIZED_BY_NUMBERS) or executed.name.startswith("upsample")
    return None if sized or executed.has(Trait.EXACT) else torch.float32


SIDE = 64


def probe() -> None:
    """Use torch once, so that no case pays for what it loads late, or dies of what this machine cannot do."""
    # oneDNN may choose instructions for this that the operating system forbids: SIGILL.
    square = torch.ones(SIDE, SIDE, dtype=torch.bfloat16)
    square @ square
    # A first backward with a given gradient imports a computer algebra system: a second or more.
    leaf = torch.ones(2, requires_grad=True)
    torch.autograd.grad(leaf * 2, leaf, torch.ones(2))
