"""Which argument each gradient of a backward entry belongs to, as msprobe writes them without a name."""

from collections.abc import Sequence
from typing import Any

from ulpscope.dialects.msprobe.arguments import Found


def gradient_places(gradients: Sequence[Any], given: Found) -> list[str]:
    """Places for the gradients that a backward returned, from the tensors that its forward was given.

    Gradients have the shape of their argument, and stand in the order of the tensor arguments or of those that require
    a gradient. Of a call that is several autograd nodes msprobe sees the last one only: what fits no argument is a
    gradient inside the call, and its place is `node.i`.
    """
    if not given:
        return [f"args.{index}" for index in range(len(gradients))]
    shapes = [item.get("shape") if isinstance(item, dict) else None for item in gradients]
    requiring = [(place, tensor) for place, tensor in given if tensor.get("requires_grad") is True]
    for candidates in (given, requiring):
        if len(candidates) == len(shapes) and _fit(shapes, candidates):
            return [place for place, _ in candidates]
    return _by_shape(shapes, given)


def _fit(shapes: Sequence[Any], candidates: Found) -> bool:
    return all(shape is None or shape == tensor["shape"] for shape, (_, tensor) in zip(shapes, candidates, strict=True))


def _by_shape(shapes: Sequence[Any], given: Found) -> list[str]:
    """The argument of the same shape, where there is one such gradient and one such argument."""
    places = []
    for index, shape in enumerate(shapes):
        alike = [place for place, tensor in given if tensor["shape"] == shape]
        alone = shape is not None and len(alike) == 1 and shapes.count(shape) == 1
        places.append(alike[0] if alone else f"node.{index}")
    return places
