"""Places that a call chose (argmax, sort, pooling), as the values that lie there: ties may be broken either way."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ulpscope.operations.registry import operation
from ulpscope.operations.traits import Trait
from ulpscope.replay.recorded import CannotReplayError

_POOL_AXES = {"1d": 1, "2d": 2, "3d": 3}
# Where `dim` stands among the positional arguments, if not second.
_DIM_AT = {"topk": 2, "kthvalue": 2}
# Every place may be given once only.


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
    given = arguments.get("kwargs", {}).get("dim", arguments.get("kwargs", {}).get("axis"))
    args = arguments.get("args", [])
    place = _DIM_AT.get(name, 1)
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
    if once and index.shape[dim] > 1:
        ordered = index.sort(dim).values
        if bool(
            (ordered.narrow(dim, 1, ordered.shape[dim] - 1) == ordered.narrow(dim, 0, ordered.shape[dim] - 1)).any()
        ):
            raise ImpossibleSelectionError("an index stands there twice")
    return torch.take_along_dim(source, index, dim)
