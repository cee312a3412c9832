"""In which types the forward behind a loss holds numbers, by autograd's graph of it: autocast and casts are seen."""

from collections import deque
from typing import Any

import torch

from ulpscope.capture.torch.tensors import word_of
from ulpscope.numerics.dtypes import DTYPES

MOST_NODES = 200_000
"""Of a graph that are looked at: a second's work, once in a run."""
_CLOSED = ("CompiledFunction", "CheckpointFunction")
"""How names of nodes begin inside of which nobody sees."""


def coarsest_in_graph(loss: torch.Tensor) -> str | None:
    """The coarsest type of real numbers in the graph that leads to a loss; None if not all of it can be seen."""
    waiting: deque[Any] = deque([loss.grad_fn])
    seen: set[Any] = set()
    types = {loss.dtype}
    while waiting:
        node = waiting.popleft()
        if node is None or node in seen:
            continue
        if len(seen) >= MOST_NODES or node.name().startswith(_CLOSED):
            return None
        seen.add(node)
        types.update(each.dtype for each in node._input_metadata)
        waiting.extend(ahead for ahead, _ in node.next_functions)
    return max((word_of(each) for each in types if each.is_floating_point), key=lambda name: DTYPES[name].unit_roundoff)
