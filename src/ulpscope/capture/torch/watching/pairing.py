"""Pairs each backward exactly with its forward, without touching the graph.

Before a call the gradient edges of its inputs are noted; after it, autograd's nodes are walked from its outputs back to
those edges. A hook on the output nodes sees the gradients that come in, one on the nodes whose edges cross to an input
sees the gradients that go out. No node is added and nothing is returned from a hook, so the gradients and the order in
which they are summed stay as they were. A node gets one hook, however many calls watch it: a module and the function
inside it often end at the same node.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from ulpscope.capture.recording.calls import GRAD_INPUT, GRAD_OUTPUT, OpenCall
from ulpscope.capture.recording.tensors import Placed
from ulpscope.capture.torch.recorder import TorchRecorder
from ulpscope.capture.torch.watching.edges import (
    COPY_SLICES,
    Arrival,
    Change,
    Crossing,
    Edge,
    InputEdges,
    arrivals,
    crossings,
)
from ulpscope.records.enums import Kind, Level

NO_GRADIENT = -1

# Nodes of torch's own that leave incoming gradients as they are: these can be looked at after the node has run.
_NATIVE = {kind for kind in vars(torch._C._functions).values() if isinstance(kind, type)}
_READING: frozenset[type] = frozenset(_NATIVE - {COPY_SLICES})

_BACKWARD = Kind.BACKWARD
_current_task = torch._C._current_graph_task_id

Gradients = Sequence[torch.Tensor | None]


class Paired:
    """A forward call whose backward may run, perhaps several times."""

    __slots__ = ("calls", "expected", "forward", "kind", "on_run", "places", "totals")

    def __init__(self, forward: OpenCall, kind: Kind, on_run: Callable[[OpenCall], None] | None) -> None:
        self.forward = forward
        self.kind = kind
        self.on_run = on_run
        self.places: list[list[str]] = []
        """Of each input that gradients leave for."""
        self.expected: list[int] = []
        """How many gradients flow to each of them; their sum is the input's gradient."""
        self.calls: dict[int, OpenCall] = {}
        """Its backward in the backward passes that are running."""
        self.totals: dict[tuple[int, int], tuple[int, torch.Tensor | None]] | None = None
        """Of a pass and an input with several gradients: how many have come, and their sum."""


class Watched:
    """A node of autograd's graph, and which calls' gradients enter and leave there. It keeps no node alive."""

    __slots__ = ("_pairing", "arriving", "first", "leaving", "owner")

    def __init__(self, pairing: "Pairing") -> None:
        self._pairing = pairing
        self.owner: Paired | None = None
        """The innermost recorded call that the node belongs to."""
        self.first: list[tuple[Paired, int, str, Change | None]] = []
        """Arriving gradients that must be looked at before the node runs."""
        self.arriving: list[tuple[Paired, int, str, Change | None]] = []
        self.leaving: list[tuple[Paired, int, int, Change | None]] = []

    def before(self, arriving: Gradients) -> None:
        """The node is about to run."""
        pairing = self._pairing
        if pairing.recorder.capturing:
            pairing.recorder.guarded_in_hook("backward", pairing.use_arriving, self.first, arriving)

    def after(self, leaving: Gradients, arriving: Gradients) -> None:
        """The node has run."""
        pairing = self._pairing
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
        if owner is None:
            return None
        task = _current_task()
        return (owner.calls.get(task) or self._open(owner, task)).id

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
        call = paired.calls.get(task) or self._open(paired, task)
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
        """The backward of a call begins in a backward pass."""
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
