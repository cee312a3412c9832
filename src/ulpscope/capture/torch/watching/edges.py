"""Gradient edges of a call: where gradients enter it from its outputs, and where they leave it to its inputs.

Autograd's graph is only read here. Even reading can change it: `grad_fn` of a view whose base was written since makes
a new node at that moment, and a node's age decides in which order gradients are summed. Such views are looked at after
the call, when autograd itself has done so.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from ulpscope.capture.recording.tensors import Placed

_FUNCTIONS: Any = torch._C._functions
ACCUMULATE = _FUNCTIONS.AccumulateGrad
COPY_SLICES = _FUNCTIONS.CopySlices
CAST = _FUNCTIONS.ToCopyBackward0

Edge = Any
"""(node, output number) of a tensor with a history, id of a leaf."""

Change = Callable[[torch.Tensor], torch.Tensor]

is_transformed = torch._C._functorch.is_functorch_wrapped_tensor


class InputEdges:
    """The inputs of a call that want gradients."""

    __slots__ = ("autocast", "later", "of_tensor", "places", "sequence")

    def __init__(self, sequence: int, *, autocast: bool) -> None:
        self.sequence = sequence
        """Nodes made before this number do not belong to the call."""
        self.autocast = autocast
        self.places: dict[Edge, list[str]] = {}
        self.of_tensor: dict[int, Edge] = {}
        self.later: Placed = []
        """Inputs whose edge may only be read after the call."""

    def add(self, place: str, tensor: torch.Tensor) -> None:
        node = tensor.grad_fn
        edge = id(tensor) if node is None else (node, tensor.output_nr)
        places = self.places.get(edge)
        if places is None:
            self.places[edge] = [place]
        else:
            places.append(place)
        self.of_tensor[id(tensor)] = edge


Arrival = tuple[Any, int, str, Change | None]
"""A gradient that enters a call: node, the number of its output, the place of the call's output, how to look at it."""

Crossing = tuple[Any, int, Edge, Change | None]
"""An edge on which a gradient leaves a call: node, number of the edge there, the input's edge, how to look at it."""


def note_inputs(tensors: Placed, *, writes: bool) -> InputEdges | None:
    """Edges before a call; None if no graph is being built. A call that writes uses all of its inputs' edges itself."""
    if not torch.is_grad_enabled():
        return None
    edges: InputEdges | None = None
    for place, tensor in tensors:
        if not tensor.requires_grad:
            continue
        if is_transformed(tensor):
            return None
        if edges is None:
            autocast = autocast_dtype([(place, tensor)]) is not None
            edges = InputEdges(torch._C._autograd._get_sequence_nr(), autocast=autocast)
        if not writes and may_be_stale(tensor):
            edges.later.append((place, tensor))
        else:
            edges.add(place, tensor)
    return edges


def autocast_dtype(tensors: Placed) -> torch.dtype | None:
    """What autocast turns these tensors into, if it is at work."""
    if not torch._C._is_any_autocast_enabled():
        return None
    device = tensors[0][1].device.type if tensors else "cpu"
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def may_be_stale(tensor: torch.Tensor) -> bool:
    """Whether asking a tensor for its node may make one."""
    # Not is_leaf: to answer that, torch makes the node.
    return tensor._is_view() and tensor._version > 0


def arrivals(outputs: Placed, inputs: Placed, written: AbstractSet[int], edges: InputEdges) -> list[Arrival]:
    """Where gradients will enter; completes `edges` if the call has built a graph.

    `written` are the ids of tensors that the call wrote; other inputs among the outputs have passed untouched.
    """
    fresh = _fresh(outputs, inputs, written)
    if not fresh:
        return []
    if edges.later:
        for place, tensor in edges.later:
            edges.add(place, tensor)
        edges.later.clear()
    found: list[Arrival] = []
    for place, tensor in fresh:
        node: Any = _copy_slices(tensor, edges) if id(tensor) in written else None
        if node is not None:
            found.append((node, 0, place, _window(tensor)))
            continue
        node = tensor.grad_fn
        # Else it is an untouched input behind another name.
        if node is not None and (node, tensor.output_nr) not in edges.places:
            found.append((node, tensor.output_nr, place, None))
    return found


def _fresh(outputs: Placed, inputs: Placed, written: AbstractSet[int]) -> Placed:
    """Outputs that gradients may come back through; none if a function transform is at work."""
    untouched: set[int] | None = None
    fresh = []
    for place, tensor in outputs:
        if not tensor.requires_grad:
            continue
        if untouched is None:
            untouched = {id(other) for _, other in inputs} - written
        if id(tensor) not in untouched:
            if is_transformed(tensor):
                return []
            fresh.append((place, tensor))
    return fresh


def _copy_slices(tensor: torch.Tensor, edges: InputEdges) -> Any:
    """The node of a write into a view: gradients pass through its base's history, not through the view's own."""
    if not tensor._is_view() or tensor._base is None:
        return None
    node: Any = tensor._base.grad_fn
    if type(node) is not COPY_SLICES or node._sequence_nr() < edges.sequence:
        return None
    return node


def _window(view: torch.Tensor) -> Change:
    """Looks at a base's gradient as the view looks at its base."""
    base = view._base
    assert base is not None
    size, stride = view.size(), view.stride()
    offset = view.storage_offset() - base.storage_offset()
    base_size, base_stride = base.size(), base.stride()

    def look(gradient: torch.Tensor) -> torch.Tensor:
        whole = gradient.new_empty_strided(base_size, base_stride)
        whole.copy_(gradient)
        return whole.as_strided(size, stride, offset)

    return look


def crossings(arriving: list[Arrival], outputs: Placed, edges: InputEdges) -> tuple[list[Crossing], AbstractSet[Any]]:
    """Edges from the call's nodes to its inputs, and the nodes of the call."""
    written = {node for node, _, _, change in arriving if change is not None}
    found = _window_crossings(arriving, outputs, edges) if written else []
    places, sequence = edges.places, edges.sequence
    stops = {edge[0] for edge in places if type(edge) is tuple}
    seen: set[Any] = set()
    waiting = [arrival[0] for arrival in arriving]
    while waiting:
        node = waiting.pop()
        if node in seen or (node in stops and node not in written):
            continue
        seen.add(node)
        for index, following in enumerate(node.next_functions):
            ahead = following[0]
            if ahead is None or (index == 0 and node in written):
                continue
            is_leaf = type(ahead) is ACCUMULATE
            edge = id(ahead.variable) if is_leaf else following
            if edge in places:
                found.append((node, index, edge, None))
            elif edges.autocast and type(ahead) is CAST and (cast := _cast_crossing(node, index, ahead, edges)):
                found.append(cast)
            elif not is_leaf and ahead._sequence_nr() >= sequence:
                waiting.append(ahead)
    return found, seen


def _cast_crossing(node: Any, index: int, cast: Any, edges: InputEdges) -> Crossing | None:
    """Autocast keeps its cast of a weight for later calls: what enters the cast is this call's share."""
    beyond = cast.next_functions[0][0]
    if type(beyond) is not ACCUMULATE or id(beyond.variable) not in edges.places:
        return None
    dtype = beyond.variable.dtype
    return node, index, id(beyond.variable), lambda gradient: gradient.to(dtype)


def _window_crossings(arriving: list[Arrival], outputs: Placed, edges: InputEdges) -> list[Crossing]:
    tensors = dict(outputs)
    return [
        (node, 0, edges.of_tensor[id(tensors[place])], change)
        for node, _, place, change in arriving
        if change is not None and id(tensors[place]) in edges.of_tensor
    ]
