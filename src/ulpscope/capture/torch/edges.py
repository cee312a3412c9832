"""Gradient edges of a call: where gradients enter it from its outputs, and where they leave it to its inputs.

Autograd's graph is only read here. Even reading can change it: `grad_fn` of a view whose base was written since makes
a new node at that moment, and a node's age decides in which order gradients are summed. Such views are looked at after
the call, when autograd itself has done so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ulpscope.capture.torch.arguments import Placed

ACCUMULATE = "torch::autograd::AccumulateGrad"
COPY_SLICES = "CopySlices"
CAST = "ToCopyBackward0"

Edge = Any
"""(node, output number) of a tensor with a history, id of a leaf."""

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class InputEdges:
    """The inputs of a call that want gradients."""

    sequence: int
    """Nodes made before this number do not belong to the call."""
    autocast: bool
    places: dict[Edge, list[str]] = field(default_factory=dict)
    of_tensor: dict[int, Edge] = field(default_factory=dict)
    later: Placed = field(default_factory=list)
    """Inputs whose edge may only be read after the call."""

    def add(self, place: str, tensor: torch.Tensor) -> None:
        node = tensor.grad_fn
        edge = id(tensor) if node is None else (node, tensor.output_nr)
        self.places.setdefault(edge, []).append(place)
        self.of_tensor[id(tensor)] = edge


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gradient that enters a call: the number of a node's output, and the place of the call's output."""

    node: Any
    number: int
    place: str
    change: Change | None = None


@dataclass(frozen=True, slots=True)
class Crossing:
    """An edge on which a gradient leaves the call for one of its inputs."""

    node: Any
    index: int
    edge: Edge
    change: Change | None = None


def note_inputs(tensors: Placed, *, writes: bool) -> InputEdges | None:
    """Edges before a call; None if no graph is being built. A call that writes uses all of its inputs' edges itself."""
    if not torch.is_grad_enabled():
        return None
    wanting = [(place, tensor) for place, tensor in tensors if tensor.requires_grad]
    if not wanting or any(_is_transformed(tensor) for _, tensor in wanting):
        return None
    device = wanting[0][1].device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    edges = InputEdges(torch._C._autograd._get_sequence_nr(), autocast)
    for place, tensor in wanting:
        if not writes and _may_be_stale(tensor):
            edges.later.append((place, tensor))
        else:
            edges.add(place, tensor)
    return edges


def _is_transformed(tensor: torch.Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _may_be_stale(tensor: torch.Tensor) -> bool:
    # Not is_leaf: to answer that, torch makes the node.
    return tensor._is_view() and tensor._version > 0


def arrivals(outputs: Placed, untouched: set[int], written: set[int], edges: InputEdges) -> list[Arrival]:
    """Where gradients will enter; completes `edges` if the call has built a graph.

    `untouched` and `written` are the ids of inputs that the call left alone and of tensors that it wrote.
    """
    fresh = [(place, tensor) for place, tensor in outputs if tensor.requires_grad and id(tensor) not in untouched]
    if any(_is_transformed(tensor) for _, tensor in fresh):
        return []
    if fresh:
        for place, tensor in edges.later:
            edges.add(place, tensor)
    edges.later.clear()
    found = [_arrival(place, tensor, edges, written=id(tensor) in written) for place, tensor in fresh]
    return [arrival for arrival in found if arrival is not None]


def _arrival(place: str, tensor: torch.Tensor, edges: InputEdges, *, written: bool) -> Arrival | None:
    if written and (node := _copy_slices(tensor, edges)) is not None:
        return Arrival(node, 0, place, _window(tensor))
    node = tensor.grad_fn
    if node is None or (node, tensor.output_nr) in edges.places:
        return None  # an output that is an untouched input
    return Arrival(node, tensor.output_nr, place)


def _copy_slices(tensor: torch.Tensor, edges: InputEdges) -> Any:
    """The node of a write into a view: gradients pass through its base's history, not through the view's own."""
    if not tensor._is_view() or tensor._base is None:
        return None
    node = tensor._base.grad_fn
    if node is None or not node.name().endswith(COPY_SLICES) or node._sequence_nr() < edges.sequence:
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


def crossings(arriving: list[Arrival], outputs: Placed, edges: InputEdges) -> tuple[list[Crossing], set[Any]]:
    """Edges from the call's nodes to its inputs, and the nodes of the call."""
    written = {arrival.node for arrival in arriving if arrival.change is not None}
    found = _window_crossings(arriving, outputs, edges)
    stops = {edge[0] for edge in edges.places if not isinstance(edge, int)}
    seen: set[Any] = set()
    waiting = [arrival.node for arrival in arriving]
    while waiting:
        node = waiting.pop()
        if node in seen or (node in stops and node not in written):
            continue
        seen.add(node)
        for index, (following, number) in enumerate(node.next_functions):
            if following is None or (index == 0 and node in written):
                continue
            crossing = _crossing(node, index, following, number, edges)
            if crossing is not None:
                found.append(crossing)
            elif following.name() != ACCUMULATE and following._sequence_nr() >= edges.sequence:
                waiting.append(following)
    return found, seen


def _crossing(node: Any, index: int, following: Any, number: int, edges: InputEdges) -> Crossing | None:
    edge = id(following.variable) if following.name() == ACCUMULATE else (following, number)
    if edge in edges.places:
        return Crossing(node, index, edge)
    if edges.autocast and following.name() == CAST:
        # Autocast keeps its cast of a weight for later calls: what enters the cast is this call's share.
        beyond = following.next_functions[0][0]
        if beyond is not None and beyond.name() == ACCUMULATE and id(beyond.variable) in edges.places:
            dtype = beyond.variable.dtype
            return Crossing(node, index, id(beyond.variable), lambda gradient: gradient.to(dtype))
    return None


def _window_crossings(arriving: list[Arrival], outputs: Placed, edges: InputEdges) -> list[Crossing]:
    tensors = dict(outputs)
    return [
        Crossing(arrival.node, 0, edges.of_tensor[id(tensors[arrival.place])], arrival.change)
        for arrival in arriving
        if arrival.change is not None and id(tensors[arrival.place]) in edges.of_tensor
    ]
