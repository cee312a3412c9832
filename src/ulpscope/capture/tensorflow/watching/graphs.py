"""What compiled observers read inside of a graph that runs becomes calls inside of the one call that the graph is.

They are the calls that the script would have made eagerly: layers, the ops in them, the gradient of each op tied to
it, the tape's question, the optimizer's step.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ulpscope.capture.recording.calls import OpenCall, Scopes
from ulpscope.capture.tensorflow.graphs.nodes import Source
from ulpscope.capture.tensorflow.graphs.observer import GraphObserver
from ulpscope.capture.tensorflow.graphs.results import ObservedResults
from ulpscope.capture.tensorflow.recorder import TensorFlowRecorder
from ulpscope.capture.tensorflow.watching.graph_calls import content_of, make_plan
from ulpscope.capture.tensorflow.watching.graph_nodes import WrittenGraph
from ulpscope.capture.tensorflow.watching.graph_order import in_order
from ulpscope.capture.tensorflow.watching.graph_plans import Kept, Performance, Plan, Plans
from ulpscope.capture.tensorflow.watching.tracing import Tracer
from ulpscope.numerics.machine_code import NotCompiledError
from ulpscope.records.enums import Level, Save


class Told(NamedTuple):
    """The last run of a graph, with the numbers of its plan's contents."""

    graph: WrittenGraph
    plan: Plan
    contents: Sequence[int]


class GraphReader:
    """Reads graphs while they run, if the observer can be compiled here."""

    def __init__(
        self, recorder: TensorFlowRecorder, scopes: Scopes, tracer: Tracer, *, tell: Callable[[str, str], None]
    ) -> None:
        self._recorder = recorder
        self._scopes = scopes
        self._tracer = tracer
        self._tell = tell
        self._looks = recorder.settings.level is not Level.MODULE
        self._saves = recorder.settings.save is Save.TENSORS
        self._observer: GraphObserver | None = None
        self._left_out: int | None = None
        """How many names the observer was told."""
        self._is_reading = False
        self._graphs: dict[int, WrittenGraph] = {}
        self._kept = Kept()
        self._last: Told | None = None
        self._plans = Plans()
        self._nested: set[int] = set()
        """Numbers of graphs in which loops run inside of loops: their nodes are told as they ran."""

    def prepare(self) -> None:
        """Before a graph runs: from now on, those that TensorFlow prepares can be read."""
        if self._observer is None and self._looks:
            self._looks = False  # asked once
            try:
                self._observer = GraphObserver.load()
            except NotCompiledError as error:
                self._tell("graphs", f"{error}: graphs of TensorFlow are not looked into")
        if self._observer is not None:
            self._leave_out_updates(self._observer)

    def _leave_out_updates(self, observer: GraphObserver) -> None:
        """Of graphs that TensorFlow prepares from now on."""
        names = frozenset() if self._recorder.settings.level is Level.KERNEL else self._tracer.updating
        if len(names) != self._left_out:
            self._left_out = len(names)
            observer.leave_out(names)

    def forget_forwards(self) -> None:
        """No gradient will be asked of what was recorded until now."""
        self._kept.clear()

    def result(self, place: int | str) -> int | None:
        """The number of what the last graph has given: the result of this index, or the tensor of this name."""
        if self._last is None:
            return None
        root, plan, contents = self._last
        if isinstance(place, int):
            source = root.results.get(place)
        else:
            name, _, slot = place.partition(":")
            node = root.places.get(name)
            source = None if node is None else Source(node, int(slot or 0))
        content = None if source is None else content_of(plan.made, root, source)
        return None if content is None else contents[content]

    def has_told(self, handle: Any) -> bool:
        """Whether the last graph that was read has told what this variable holds after it."""
        return id(handle) in self._kept.updated

    @contextlib.contextmanager
    def reading(
        self, call: OpenCall | None, not_looked_into: str, graph: Any = None, args: Sequence[Any] = ()
    ) -> Iterator[None]:
        """While a graph runs that is this call: the one that the script has made, and what it is given."""
        observer, recorder = self._observer, self._recorder
        if call is None or self._is_reading or observer is None:
            if call is not None and not self._is_reading:
                recorder.unobserved(not_looked_into)
            yield
            return
        self._is_reading = True
        self._kept.updated.clear()
        self._last = None
        recorder.guarded("graph", observer.drain)
        observer.begin(data=self._saves)
        try:
            yield
        finally:
            observer.end()
            self._is_reading = False
            recorder.guarded("graph", self._record, observer, call, not_looked_into, graph, args)

    def _record(
        self, observer: GraphObserver, call: OpenCall, not_looked_into: str, graph: Any, args: Sequence[Any]
    ) -> None:
        results = observer.drain()
        if not results:
            self._recorder.unobserved(not_looked_into)
            return
        numbers = results.graphs
        for number in numbers:
            if number not in self._graphs:
                made = self._tracer.written(graph)
                self._graphs[number] = WrittenGraph(observer.graphs()[number], self._tracer, made)
        performance = Performance(self._recorder, call, args, self._kept)
        plan, order = self._plan(performance, results, numbers)
        self._last = Told(self._graphs[numbers[-1]], plan, performance.record(plan, results, order))

    def _plan(
        self, performance: Performance, results: ObservedResults, numbers: Sequence[int]
    ) -> tuple[Plan, NDArray[np.int64]]:
        """That of an earlier run that has executed the same, or a new one; with the order of results that it means."""
        about, nests = performance.key(), not self._nested.isdisjoint(numbers)
        order, executed = results.order(in_sequence=nests)
        plan = self._plans.find((executed, about), performance)
        if plan is not None:
            return plan, order
        graphs = {number: self._graphs[number] for number in numbers}
        observed = {number: written.graph for number, written in graphs.items()}
        ranks = {number: written.ranks for number, written in graphs.items()}
        executions, nested = in_order(results, observed, ranks)
        if nested and not nests:
            self._nested |= nested
            order, executed = results.order(in_sequence=True)
        plan = make_plan(performance, graphs, executions, order)
        self._plans.keep((executed, about), plan)
        return plan, order
