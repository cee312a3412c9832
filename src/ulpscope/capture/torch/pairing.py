"""Pairs each backward exactly with its forward, without touching the graph.

Before a call the gradient edges of its inputs are noted; after it, autograd's nodes are walked from its outputs back to
those edges. A pre-hook on the output nodes sees the gradients that come in, a hook on the nodes whose edges cross to an
input sees the gradients that go out. No node is added and nothing is returned from a hook, so the gradients and the
order in which they are summed stay as they were.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ulpscope.capture.torch.arguments import Placed
from ulpscope.capture.torch.quiet import quiet
from ulpscope.capture.torch.recorder import OpenCall, Recorder
from ulpscope.records.enums import Kind, Phase, Role

ACCUMULATE = "torch::autograd::AccumulateGrad"
METADATA_KEY = "ulpscope"

Edge = Any
"""(node, output number) of a tensor with a history, id of a leaf."""


@dataclass(slots=True)
class InputEdges:
    """Where gradients leave a call: its inputs' edges, with the places of the inputs behind each."""

    places: dict[Edge, list[str]]
    sequence: int
    """Nodes made before this number do not belong to the call."""


@dataclass(slots=True, eq=False)
class Paired:
    """A forward call whose backward may run, perhaps several times."""

    forward: OpenCall
    kind: Kind
    expected: dict[Edge, int] = field(default_factory=dict)
    """How many gradients flow over each input's edge; their sum is the input's gradient."""
    runs: dict[int, "BackwardRun"] = field(default_factory=dict)
    on_run: Callable[[OpenCall], None] | None = None


@dataclass(slots=True, eq=False)
class BackwardRun:
    """One execution of a call's backward."""

    call: OpenCall
    arrived: dict[Edge, int] = field(default_factory=dict)
    totals: dict[Edge, torch.Tensor] = field(default_factory=dict)
    places: dict[Edge, list[str]] = field(default_factory=dict)


class Pairing:
    """Sets the hooks and records what they see."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._running: list[Paired] = []

    def note_inputs(self, tensors: Placed) -> InputEdges | None:
        """The edges of the inputs that want gradients; None if there are none or no graph is being built."""
        if not torch.is_grad_enabled():
            return None
        places: dict[Edge, list[str]] = {}
        for place, tensor in tensors:
            if tensor.requires_grad:
                places.setdefault(_edge_of(tensor), []).append(place)
        if not places or torch._C._functorch.peek_interpreter_stack() is not None:
            return None
        return InputEdges(places, torch._C._autograd._get_sequence_nr())

    def attach(
        self,
        forward: OpenCall,
        outputs: Placed,
        edges: InputEdges,
        *,
        kind: Kind = Kind.BACKWARD,
        on_run: Callable[[OpenCall], None] | None = None,
    ) -> list[Any]:
        """Watch the backward of a call; gives the nodes at its outputs."""
        paired = Paired(forward, kind, on_run=on_run)
        roots = self._watch_outputs(paired, outputs, edges)
        for node, crossing in _crossings(roots, edges, paired):
            for _, edge in crossing:
                paired.expected[edge] = paired.expected.get(edge, 0) + 1
            names = [(index, edge, edges.places[edge]) for index, edge in crossing]
            node.register_hook(self._see_leaving(paired, [(i, _key(edge), places) for i, edge, places in names]))
        paired.expected = {_key(edge): count for edge, count in paired.expected.items()}
        return roots

    def finish(self) -> None:
        """A backward pass has ended: record totals that are still open, forget what belongs to it."""
        running, self._running = self._running, []
        for paired in running:
            runs, paired.runs = paired.runs, {}
            for run in runs.values():
                for edge in list(run.totals):
                    self._emit_total(run, edge)

    def current_parent(self) -> int | None:
        """The backward call that autograd is executing in this thread."""
        node: Any = torch._C._current_autograd_node()
        paired = node.metadata.get(METADATA_KEY) if node is not None else None
        if paired is None:
            return None
        return self._run_of(paired).call.id

    def _watch_outputs(self, paired: Paired, outputs: Placed, edges: InputEdges) -> list[Any]:
        by_node: dict[Any, list[tuple[int, str]]] = {}
        for place, tensor in outputs:
            node = tensor.grad_fn
            if node is None or (node, tensor.output_nr) in edges.places:
                continue  # an output that is an untouched input
            by_node.setdefault(node, []).append((tensor.output_nr, place))
        for node, wanted in by_node.items():
            node.register_prehook(self._see_arriving(paired, wanted))
        return list(by_node)

    def _see_arriving(self, paired: Paired, wanted: list[tuple[int, str]]) -> Callable[[Any], None]:
        def see(gradients: tuple[torch.Tensor | None, ...]) -> None:
            if not self._recorder.capturing:
                return
            with self._guarded(paired):
                run = self._run_of(paired)
                for number, place in wanted:
                    gradient = gradients[number] if number < len(gradients) else None
                    if gradient is not None:
                        self._recorder.use(run.call, Role.GRAD_OUTPUT, place, gradient)

        return see

    def _see_leaving(self, paired: Paired, crossing: list[tuple[int, Edge, list[str]]]) -> Callable[[Any, Any], None]:
        def see(leaving: tuple[torch.Tensor | None, ...], _arriving: Any) -> None:
            if not self._recorder.capturing:
                return
            with self._guarded(paired):
                run = self._run_of(paired)
                for index, edge, places in crossing:
                    gradient = leaving[index] if index < len(leaving) else None
                    self._add_gradient(paired, run, edge, places, gradient)

        return see

    def _add_gradient(
        self, paired: Paired, run: BackwardRun, edge: Edge, places: list[str], gradient: torch.Tensor | None
    ) -> None:
        expected = paired.expected[edge]
        run.arrived[edge] = run.arrived.get(edge, 0) + 1
        if expected == 1:
            if gradient is not None:
                self._use_gradient(run, places, gradient)
            return
        if gradient is not None:
            total = run.totals.get(edge)
            run.totals[edge] = gradient.detach().clone() if total is None else total + gradient.detach()
            run.places[edge] = places
        if run.arrived[edge] == expected and edge in run.totals:
            self._emit_total(run, edge)

    def _emit_total(self, run: BackwardRun, edge: Edge) -> None:
        self._use_gradient(run, run.places[edge], run.totals.pop(edge))

    def _use_gradient(self, run: BackwardRun, places: list[str], gradient: torch.Tensor) -> None:
        for place in places:
            self._recorder.use(run.call, Role.GRAD_INPUT, place, gradient)

    def _run_of(self, paired: Paired) -> BackwardRun:
        task = torch._C._current_graph_task_id()
        run = paired.runs.get(task)
        if run is None:
            run = paired.runs[task] = BackwardRun(self._open(paired))
            self._running.append(paired)
        return run

    def _open(self, paired: Paired) -> OpenCall:
        forward = paired.forward
        call = self._recorder.open(
            paired.kind,
            forward.op,
            module=forward.module,
            module_class=forward.module_class,
            parent=None,
            phase=Phase.BACKWARD,
            forward=forward,
        )
        call.autocast = forward.autocast
        self._recorder.close(call)
        if paired.on_run is not None:
            paired.on_run(call)
        return call

    @contextlib.contextmanager
    def _guarded(self, paired: Paired) -> Iterator[None]:
        """Work unseen by any mode; an error of ours does not reach the run."""
        try:
            with quiet():
                yield
        except Exception as error:
            self._recorder.own_error(f"backward of {paired.forward.op}", error)


def _edge_of(tensor: torch.Tensor) -> Edge:
    node = tensor.grad_fn
    return id(tensor) if node is None else (node, tensor.output_nr)


def _key(edge: Edge) -> Edge:
    """An edge without a reference to its node: hooks must not keep the graph alive."""
    return edge if isinstance(edge, int) else (id(edge[0]), edge[1])


def _crossings(roots: list[Any], edges: InputEdges, paired: Paired) -> list[tuple[Any, list[tuple[int, Edge]]]]:
    """Nodes of the call from which an edge leads to one of its inputs."""
    stops = {edge[0] for edge in edges.places if not isinstance(edge, int)}
    seen: set[Any] = set()
    waiting = list(roots)
    found = []
    while waiting:
        node = waiting.pop()
        if node in seen or node in stops:
            continue
        seen.add(node)
        node.metadata.setdefault(METADATA_KEY, paired)
        crossing = []
        for index, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            leaf = following.name() == ACCUMULATE
            edge = id(following.variable) if leaf else (following, number)
            if edge in edges.places:
                crossing.append((index, edge))
            elif not leaf and following._sequence_nr() >= edges.sequence:
                waiting.append(following)
        if crossing:
            found.append((node, crossing))
    return found
