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
from ulpscope.capture.torch.edges import Arrival, Change, Crossing, Edge, InputEdges, arrivals, crossings
from ulpscope.capture.torch.quiet import quiet
from ulpscope.capture.torch.recorder import OpenCall, Recorder
from ulpscope.records.enums import Kind, Role

METADATA_KEY = "ulpscope"


@dataclass(slots=True, eq=False)
class Paired:
    """A forward call whose backward may run, perhaps several times."""

    forward: OpenCall
    kind: Kind
    expected: dict[Edge, int] = field(default_factory=dict)
    """How many gradients flow over each input's edge; their sum is the input's gradient."""
    places: dict[Edge, list[str]] = field(default_factory=dict)
    runs: dict[int, "BackwardRun"] = field(default_factory=dict)
    on_run: Callable[[OpenCall], None] | None = None


@dataclass(slots=True, eq=False)
class BackwardRun:
    """One execution of a call's backward."""

    call: OpenCall
    arrived: dict[Edge, int] = field(default_factory=dict)
    totals: dict[Edge, torch.Tensor] = field(default_factory=dict)


class Pairing:
    """Sets the hooks and records what they see."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._running: list[Paired] = []

    def attach(
        self,
        forward: OpenCall,
        outputs: Placed,
        edges: InputEdges,
        *,
        untouched: set[int],
        written: set[int],
        kind: Kind = Kind.BACKWARD,
        on_run: Callable[[OpenCall], None] | None = None,
    ) -> list[Any]:
        """Watch the backward of a call; gives the nodes at its outputs."""
        arriving = arrivals(outputs, untouched, written, edges)
        if not arriving:
            return []
        paired = Paired(forward, kind, on_run=on_run)
        if not forward.wanted:
            self._count_only(paired, arriving)
            return list({arrival.node for arrival in arriving})
        leaving, nodes = crossings(arriving, outputs, edges)
        for crossing in leaving:
            key = _key(crossing.edge)
            paired.expected[key] = paired.expected.get(key, 0) + 1
            paired.places[key] = edges.places[crossing.edge]
        self._watch_arrivals(paired, arriving)
        self._watch_crossings(paired, leaving)
        for node in nodes:
            node.metadata.setdefault(METADATA_KEY, paired)
        return list({arrival.node for arrival in arriving})

    def finish(self) -> None:
        """A backward pass has ended: record totals that are still open, forget what belongs to it."""
        running, self._running = self._running, []
        for paired in running:
            runs, paired.runs = paired.runs, {}
            for run in runs.values():
                for edge, total in run.totals.items():
                    self._use_gradient(run, paired.places[edge], total)

    def current_parent(self) -> int | None:
        """The backward call that autograd is executing in this thread."""
        node: Any = torch._C._current_autograd_node()
        paired = node.metadata.get(METADATA_KEY) if node is not None else None
        if paired is None:
            return None
        return self._run_of(paired).call.id

    def _count_only(self, paired: Paired, arriving: list[Arrival]) -> None:
        """A call that a filter leaves out is still numbered: names do not depend on filters."""
        for node in {arrival.node for arrival in arriving}:
            node.register_prehook(self._see_arriving(paired, []))

    def _watch_arrivals(self, paired: Paired, arriving: list[Arrival]) -> None:
        by_node: dict[Any, list[tuple[int, str, Change | None]]] = {}
        for arrival in arriving:
            by_node.setdefault(arrival.node, []).append((arrival.number, arrival.place, arrival.change))
        for node, wanted in by_node.items():
            node.register_prehook(self._see_arriving(paired, wanted))

    def _watch_crossings(self, paired: Paired, leaving: list[Crossing]) -> None:
        by_node: dict[Any, list[tuple[int, Edge, Change | None]]] = {}
        for crossing in leaving:
            by_node.setdefault(crossing.node, []).append((crossing.index, _key(crossing.edge), crossing.change))
        for node, wanted in by_node.items():
            node.register_hook(self._see_leaving(paired, wanted))

    def _see_arriving(self, paired: Paired, wanted: list[tuple[int, str, Change | None]]) -> Callable[[Any], None]:
        def see(gradients: tuple[torch.Tensor | None, ...]) -> None:
            if not self._recorder.capturing:
                return
            with self._guarded(paired):
                run = self._run_of(paired)
                for number, place, change in wanted:
                    gradient = _changed(gradients, number, change)
                    if gradient is not None:
                        self._recorder.use(run.call, Role.GRAD_OUTPUT, place, gradient)

        return see

    def _see_leaving(self, paired: Paired, wanted: list[tuple[int, Edge, Change | None]]) -> Callable[[Any, Any], None]:
        def see(leaving: tuple[torch.Tensor | None, ...], _arriving: Any) -> None:
            if not self._recorder.capturing:
                return
            with self._guarded(paired):
                run = self._run_of(paired)
                for index, edge, change in wanted:
                    self._add_gradient(paired, run, edge, _changed(leaving, index, change))

        return see

    def _add_gradient(self, paired: Paired, run: BackwardRun, edge: Edge, gradient: torch.Tensor | None) -> None:
        expected = paired.expected[edge]
        run.arrived[edge] = run.arrived.get(edge, 0) + 1
        if expected == 1:
            if gradient is not None:
                self._use_gradient(run, paired.places[edge], gradient)
            return
        if gradient is not None:
            total = run.totals.get(edge)
            run.totals[edge] = gradient.detach().clone() if total is None else total + gradient.detach()
        if run.arrived[edge] == expected and edge in run.totals:
            self._use_gradient(run, paired.places[edge], run.totals.pop(edge))

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
        call = self._recorder.open_backward(paired.kind, paired.forward)
        call.autocast = paired.forward.autocast
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


def _key(edge: Edge) -> Edge:
    """An edge without a reference to its node: hooks must not keep the graph alive."""
    return edge if isinstance(edge, int) else (id(edge[0]), edge[1])


def _changed(gradients: tuple[torch.Tensor | None, ...], index: int, change: Change | None) -> torch.Tensor | None:
    gradient = gradients[index] if index < len(gradients) else None
    return gradient if gradient is None or change is None else change(gradient)
