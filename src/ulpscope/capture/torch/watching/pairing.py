"""Pairs each backward exactly with its forward, without touching the graph.

Before a call the gradient edges of its inputs are noted; after it, autograd's nodes are walked from its outputs back to
those edges. A hook on the output nodes sees the gradients that come in, one on the nodes whose edges cross to an input
sees the gradients that go out. No node is added and nothing is returned from a hook, so the gradients and the order in
which they are summed stay as they were. A node gets one hook, however many calls watch it: a module and the function
inside it often end at the same node.

Even reading autograd's graph can change it: `grad_fn` of a view whose base was written since makes a new node at that
moment, and a node's age decides in which order gradients are summed. Such views are looked at after the call, when
autograd itself has done so.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import torch

from ulpscope.capture.recording.calls import GRAD_INPUT, GRAD_OUTPUT, OpenCall
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.torch.recorder import TorchRecorder
from ulpscope.capture.torch.tensors import is_transformed, may_be_stale
from ulpscope.records.enums import Kind, Level

_FUNCTIONS: Any = torch._C._functions
ACCUMULATE = _FUNCTIONS.AccumulateGrad
COPY_SLICES = _FUNCTIONS.CopySlices
CAST = _FUNCTIONS.ToCopyBackward0

Edge = Any
"""(node, output number) of a tensor with a history, id of a leaf."""

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(slots=True, eq=False)
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
    tensors = dict(outputs)
    found: list[Crossing] = [
        (node, 0, edges.of_tensor[id(tensors[place])], change)
        for node, _, place, change in arriving
        if change is not None and id(tensors[place]) in edges.of_tensor
    ]
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


NO_GRADIENT = -1

# Nodes of torch's own that leave incoming gradients as they are: these can be looked at after the node has run.
_NATIVE = {kind for kind in vars(torch._C._functions).values() if isinstance(kind, type)}
_READING: frozenset[type] = frozenset(_NATIVE - {COPY_SLICES})

_BACKWARD = Kind.BACKWARD
_current_task = torch._C._current_graph_task_id

Gradients = Sequence[torch.Tensor | None]


@dataclass(slots=True, eq=False)
class Paired:
    """A forward call whose backward may run, perhaps several times."""

    forward: OpenCall
    kind: Kind
    on_run: Callable[[OpenCall], None] | None
    places: list[list[str]] = field(default_factory=list)
    """Of each input that gradients leave for."""
    expected: list[int] = field(default_factory=list)
    """How many gradients flow to each of them; their sum is the input's gradient."""
    calls: dict[int, OpenCall] = field(default_factory=dict)
    """Its backward in the backward passes that are running."""
    totals: dict[tuple[int, int], tuple[int, torch.Tensor | None]] | None = None
    """Of a pass and an input with several gradients: how many have come, and their sum."""


@dataclass(slots=True, eq=False)
class Watched:
    """A node of autograd's graph, and which calls' gradients enter and leave there. It keeps no node alive."""

    pairing: "Pairing"
    owner: Paired | None = None
    """The innermost recorded call that the node belongs to."""
    first: list[tuple[Paired, int, str, Change | None]] = field(default_factory=list)
    """Arriving gradients that must be looked at before the node runs."""
    arriving: list[tuple[Paired, int, str, Change | None]] = field(default_factory=list)
    leaving: list[tuple[Paired, int, int, Change | None]] = field(default_factory=list)

    def before(self, arriving: Gradients) -> None:
        """The node is about to run."""
        pairing = self.pairing
        if pairing.recorder.capturing:
            pairing.recorder.guarded_in_hook("backward", pairing.use_arriving, self.first, arriving)

    def after(self, leaving: Gradients, arriving: Gradients) -> None:
        """The node has run."""
        pairing = self.pairing
        if pairing.recorder.capturing:
            pairing.recorder.guarded_in_hook("backward", pairing.use_both, self, leaving, arriving)


class Pairing:
    """Sets the hooks and records what they see."""

    def __init__(self, recorder: TorchRecorder) -> None:
        self.recorder = recorder
        # Where kernels are recorded, what comes into a node is told before them.
        self._reading = frozenset() if recorder.settings.level is Level.KERNEL else _READING
        self._running: list[Paired] = []

    def attach(
        self,
        forward: OpenCall,
        outputs: Placed,
        edges: InputEdges,
        *,
        inputs: Placed,
        written: AbstractSet[int],
        kind: Kind = _BACKWARD,
        on_run: Callable[[OpenCall], None] | None = None,
    ) -> list[Any]:
        """Watch the backward of a call; gives the nodes at its outputs."""
        arriving = arrivals(outputs, inputs, written, edges)
        if not arriving:
            return []
        paired = Paired(forward, kind, on_run)
        if forward.wanted:
            leaving, nodes = crossings(arriving, outputs, edges)
            self._watch_arrivals(paired, arriving)
            self._watch_crossings(paired, leaving, edges)
            for node in nodes:
                watched = self._watched(node)
                if watched.owner is None:
                    watched.owner = paired
        else:  # it is still numbered: names do not depend on filters
            self._watch_arrivals(paired, [(node, NO_GRADIENT, "", None) for node in {node for node, *_ in arriving}])
        return [arrival[0] for arrival in arriving]

    def finish(self) -> None:
        """A backward pass has ended: record totals that are still open, forget what belongs to it."""
        self.recorder.finish_backward()
        running, self._running = self._running, []
        for paired in running:
            for (task, slot), (_, total) in (paired.totals or {}).items():
                if total is not None:
                    self._use_gradient(paired.calls[task], paired.places[slot], total)
            paired.totals = None
            paired.calls = {}

    def current_parent(self) -> int | None:
        """The backward call that autograd is executing in this thread."""
        node: Any = torch._C._current_autograd_node()
        watched: Watched | None = node.metadata.get(self) if node is not None else None
        owner = watched.owner if watched is not None else None
        # Of a call and the one around it, either may have been recorded by compiled code.
        parent = self.recorder.current_parent(-1 if owner is None else owner.forward.id)
        if parent is not None:
            return parent
        return None if owner is None else self._open(owner, _current_task()).id

    def _watch_arrivals(self, paired: Paired, arriving: list[Arrival]) -> None:
        for node, number, place, change in arriving:
            watched = self._watched(node)
            if type(node) in self._reading:
                if not (watched.arriving or watched.leaving):
                    node.register_hook(watched.after)
                watched.arriving.append((paired, number, place, change))
            else:
                if not watched.first:
                    node.register_prehook(watched.before)
                watched.first.append((paired, number, place, change))

    def _watch_crossings(self, paired: Paired, leaving: list[Crossing], edges: InputEdges) -> None:
        slots: dict[Edge, int] = {}
        for node, index, edge, change in leaving:
            slot = slots.get(edge)
            if slot is None:
                slot = slots[edge] = len(slots)
                paired.places.append(edges.places[edge])
                paired.expected.append(0)
            paired.expected[slot] += 1
            watched = self._watched(node)
            if not (watched.arriving or watched.leaving):
                node.register_hook(watched.after)
            watched.leaving.append((paired, index, slot, change))

    def _watched(self, node: Any) -> Watched:
        metadata = node.metadata
        watched: Watched | None = metadata.get(self)
        if watched is None:
            watched = metadata[self] = Watched(self)
        return watched

    def use_both(self, watched: Watched, leaving: Gradients, arriving: Gradients) -> None:
        """Record what came into a node and what it gave."""
        if watched.arriving:
            self.use_arriving(watched.arriving, arriving)
        task = _current_task()
        for paired, index, slot, change in watched.leaving:
            gradient = leaving[index] if index < len(leaving) else None
            if gradient is not None and change is not None:
                gradient = change(gradient)
            if paired.expected[slot] > 1:
                self._add_gradient(paired, task, slot, gradient)
            elif gradient is not None:
                self._use_gradient(paired.calls.get(task) or self._open(paired, task), paired.places[slot], gradient)

    def use_arriving(self, wanted: list[tuple[Paired, int, str, Change | None]], arriving: Gradients) -> None:
        """Record what came into a node."""
        task = _current_task()
        for paired, number, place, change in wanted:
            call = paired.calls.get(task) or self._open(paired, task)
            gradient = arriving[number] if 0 <= number < len(arriving) else None
            if gradient is not None:
                self.recorder.use(call, GRAD_OUTPUT, place, gradient if change is None else change(gradient))

    def _add_gradient(self, paired: Paired, task: int, slot: int, gradient: torch.Tensor | None) -> None:
        """One of several gradients of an input: their sum is recorded when all have come."""
        call = self._open(paired, task)
        totals = paired.totals = paired.totals or {}
        arrived, total = totals.pop((task, slot), (0, None))
        if gradient is not None:
            total = gradient.detach().clone() if total is None else total + gradient.detach()
        if arrived + 1 < paired.expected[slot]:
            totals[task, slot] = arrived + 1, total
        elif total is not None:
            self._use_gradient(call, paired.places[slot], total)

    def _use_gradient(self, call: OpenCall, places: list[str], gradient: torch.Tensor) -> None:
        for place in places:
            self.recorder.use(call, GRAD_INPUT, place, gradient)

    def _open(self, paired: Paired, task: int) -> OpenCall:
        """The backward of a call in a backward pass, which may begin here."""
        with self.recorder.lock:  # another thread of autograd's may have begun it
            if task in paired.calls:
                return paired.calls[task]
            call = paired.calls[task] = self.recorder.open_backward(paired.kind, paired.forward)
            self._running.append(paired)
        call.autocast = paired.forward.autocast
        self.recorder.close(call)
        if paired.on_run is not None:
            paired.on_run(call)
        return call
