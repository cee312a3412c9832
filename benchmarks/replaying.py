"""Executes one recorded call again, alone, from nothing but its trace.

    rank = RecordedRank(open_trace("runs/ref").ranks[0])
    replayed = replay(rank, rank.calls[17])
    replayed.gradients({"output.0": gradient})    -> {"args.0": ..., "args.1": ...}

A function is found by its recorded name, arguments are rebuilt from their closed encoding; nothing is evaluated.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from ulpscope.capture.torch.tensors import find_tensors
from ulpscope.capture.torch.watching.apis import api_name
from ulpscope.records.calls import Call, Use, Value
from ulpscope.records.enums import Role
from ulpscope.replay.recorded import find_repeated
from ulpscope.trace.objects import use_from_row
from ulpscope.trace.reader import RankTrace

Functions = Mapping[str, type[Function]]
ByPlace = dict[str, Tensor]


class CannotReplayError(Exception):
    """A call that a trace does not say enough about; its text is the reason."""


class RecordedRank:
    """A rank's calls, uses and values, read at once."""

    def __init__(self, rank: RankTrace) -> None:
        self._rank = rank
        ids = rank.collect(rank.calls().select("id"))["id"].to_list()
        self.calls: dict[int, Call] = rank.find_calls(ids)
        self.uses: dict[int, list[Use]] = {}
        for row in rank.collect(rank.tensors()).iter_rows(named=True):
            self.uses.setdefault(row["call"], []).append(use_from_row(row))
        self.values: dict[int, Value] = rank.find_values({use.value for uses in self.uses.values() for use in uses})

    def places(self, call: Call, role: Role) -> dict[str, Value]:
        """The values a call used in one role, by place."""
        return {use.place: self.values[use.value] for use in self.uses.get(call.id, ()) if use.role is role}

    def tensors(self, call: Call, role: Role) -> ByPlace:
        return {place: self.tensor(value) for place, value in self.places(call, role).items()}

    def tensor(self, value: Value) -> Tensor:
        """A value's elements in a tensor of its own, laid out as they were."""
        array = self._rank.data(value)
        if array is None:
            raise CannotReplayError("data not saved" if value.initialized else "uninitialized memory")
        flat = torch.from_numpy(np.array(array, order="C").reshape(-1).view(np.uint8).copy())
        dense = flat.view(torch_dtype(value.dtype)).reshape(value.shape)
        return laid_out(dense, value.strides).to(value.device)


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CannotReplayError(f"no dtype {name}")
    return dtype


def laid_out(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The same elements with these strides; contiguous where elements would share memory."""
    if tensor.stride() == strides or tensor.numel() < 2 or 0 in strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def resolve(op: str, functions: Functions) -> Callable[..., Any]:
    """The function behind a recorded name."""
    if op in functions:
        return functions[op].apply
    root, *path = op.split(".")
    found: Any = torch if root == "torch" else getattr(torch.ops, root)
    for name in path:
        found = inspect.getattr_static(found, name) if found is torch.Tensor else getattr(found, name, None)
    if inspect.isgetsetdescriptor(found) or isinstance(found, property):
        return found.__get__  # type: ignore[no-any-return]
    if isinstance(found, type) and issubclass(found, Function):
        return found.apply
    # A path may lead out of torch (torch.os.system): what it leads to must have the recorded name itself.
    if not callable(found) or (root == "torch" and api_name(found) != op):
        raise CannotReplayError(f"no torch function {op}")
    return found  # type: ignore[no-any-return]


def decode(encoded: Any, tensors: Mapping[str, Tensor]) -> Any:
    """An argument from its recorded form."""
    if isinstance(encoded, list):
        return [decode(item, tensors) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    ((word, content), *_) = encoded.items()
    if word == "$tensor":
        return tensors[content]
    if word not in _DECODERS:
        raise CannotReplayError(f"argument {word[1:]}")
    return _DECODERS[word](content, tensors)


def _decode_list(content: list[Any], tensors: Mapping[str, Tensor]) -> list[Any]:
    return [decode(item, tensors) for item in content]


def _torch_word(kind: type) -> Callable[[Any, Any], Any]:
    def find(content: str, _tensors: Any) -> Any:
        found = getattr(torch, content, None)
        if not isinstance(found, kind):
            raise CannotReplayError(f"no {kind.__name__} {content}")
        return found

    return find


_DECODERS: dict[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "$tuple": lambda content, tensors: tuple(_decode_list(content, tensors)),
    "$size": lambda content, tensors: torch.Size(_decode_list(content, tensors)),
    "$dict": lambda content, tensors: {key: decode(item, tensors) for key, item in content},
    "$slice": lambda content, tensors: slice(*_decode_list(content, tensors)),
    "$complex": lambda content, tensors: complex(*_decode_list(content, tensors)),
    "$float": lambda content, _tensors: float(content),
    "$ellipsis": lambda _content, _tensors: Ellipsis,
    "$device": lambda content, _tensors: torch.device(content),
    "$dtype": _torch_word(torch.dtype),
    "$layout": _torch_word(torch.layout),
    "$memory_format": _torch_word(torch.memory_format),
}


@dataclass
class Replayed:
    """A call that was executed again."""

    firsts: dict[str, str]
    """For the place of each input the first one at which the same tensor was given: most often itself."""
    leaves: ByPlace
    """The tensors that were given, by their first places."""
    outputs: ByPlace

    def gradients(self, grad_outputs: ByPlace) -> dict[str, Tensor | None]:
        """Gradients of the inputs that want one; at each place of an input that was given twice, the total."""
        wanted = {place: leaf for place, leaf in self.leaves.items() if leaf.requires_grad}
        found = torch.autograd.grad(
            [self.outputs[place] for place in grad_outputs],
            list(wanted.values()),
            list(grad_outputs.values()),
            allow_unused=True,
        )
        totals = dict(zip(wanted, found, strict=True))
        return {place: totals[first] for place, first in self.firsts.items() if first in totals}


def replay(rank: RecordedRank, call: Call, functions: Functions) -> Replayed:
    """Execute a recorded call with its saved inputs."""
    if call.random:
        raise CannotReplayError("random")
    function = resolve(call.op, functions)
    inputs = rank.places(call, Role.INPUT)
    firsts = {place: place for place in inputs} | dict(find_repeated(call.arguments))
    leaves = {place: leaf(rank.tensor(inputs[place]), inputs[place]) for place in set(firsts.values())}
    with torch.enable_grad(), autocast_as(call, inputs):
        # The call may write what it is given, which a leaf that wants a gradient forbids.
        given = {place: tensor.clone() for place, tensor in leaves.items()}
        tensors = {place: given[first] for place, first in firsts.items()}
        args = decode(call.arguments["args"], tensors)
        kwargs = {name: decode(item, tensors) for name, item in call.arguments.get("kwargs", {}).items()}
        result = function(*args, **kwargs)
    outputs = find_tensors(args[0] if result is None else result, "output")
    return Replayed(firsts, leaves, dict(outputs))


def leaf(tensor: Tensor, value: Value) -> Tensor:
    differentiable = tensor.is_floating_point() or tensor.is_complex()
    return tensor.requires_grad_(value.requires_grad and differentiable)


def autocast_as(call: Call, inputs: Mapping[str, Value]) -> contextlib.AbstractContextManager[Any]:
    if call.autocast is None:
        return contextlib.nullcontext()
    device = next((value.device for value in inputs.values()), "cpu")
    return torch.autocast(torch.device(device).type, dtype=torch_dtype(call.autocast))
