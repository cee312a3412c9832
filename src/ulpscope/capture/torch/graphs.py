"""Forwards whose backward may still come: their autograd graph is alive, and no backward has passed since."""

import weakref
from typing import Any

import torch

from ulpscope.capture.torch.arguments import find_tensors
from ulpscope.capture.torch.watching.edges import is_transformed, may_be_stale

_KEY = "ulpscope"

# So many may be dead before they are looked for.
LEAST_PRUNED = 64


class _Token:
    """Lives as long as the node that holds it."""


class OpenGraphs:
    """Knows whether a graph that a forward has built can still be gone back through."""

    def __init__(self) -> None:
        self._tokens: list[weakref.ref[_Token]] = []
        self._prune_at = LEAST_PRUNED

    def note(self, result: Any) -> None:
        """A forward has given this."""
        for _, tensor in find_tensors(result, "output"):
            node = _node(tensor)
            if node is not None:
                token = node.metadata[_KEY] = _Token()
                self._tokens.append(weakref.ref(token))
        if len(self._tokens) > self._prune_at:  # a run with an optimizer that never steps
            self._prune()
            self._prune_at = max(LEAST_PRUNED, 2 * len(self._tokens))

    def forget(self) -> None:
        """A backward has passed, or a step has ended."""
        self._tokens.clear()

    def any_alive(self) -> bool:
        self._prune()
        return bool(self._tokens)

    def _prune(self) -> None:
        self._tokens = [token for token in self._tokens if token() is not None]


def _node(tensor: torch.Tensor) -> Any:
    """The node of autograd's graph by which gradients come back to a tensor, if there is one."""
    if not tensor.requires_grad or is_transformed(tensor):
        return None
    # To ask such a view would make a node; its base has one that lives as long.
    source = tensor._base if may_be_stale(tensor) else tensor
    return None if source is None else source.grad_fn
