"""What compiled observers read inside of a graph that runs becomes calls inside of the one call that the graph is."""

import contextlib
import heapq
import math
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow.python.framework.dtypes import as_dtype

from ulpscope.capture.recording.arguments import to_json
from ulpscope.capture.recording.calls import INPUT, OUTPUT, ModuleScope, OpenCall, Scopes
from ulpscope.capture.tensorflow.graphs.nodes import GraphNode, NotRead, ObservedGraph, Source
from ulpscope.capture.tensorflow.graphs.observer import GraphObserver
from ulpscope.capture.tensorflow.graphs.results import ObservedResult
from ulpscope.capture.tensorflow.recorder import TensorFlowRecorder
from ulpscope.capture.tensorflow.tensors import word_of
from ulpscope.capture.tensorflow.watching.ops import PREFIX
from ulpscope.numerics.machine_code import NotCompiledError
from ulpscope.records.enums import Kind, Level, Phase, Save

BACKWARD_SCOPES = ("gradient_tape/", "gradients/")
"""How TensorFlow names ops that compute gradients."""


class GraphReader:
    """Reads graphs while they run, if the observer can be compiled here."""

    def __init__(self, recorder: TensorFlowRecorder, scopes: Scopes, *, tell: Callable[[str, str], None]) -> None:
        self._recorder = recorder
        self._scopes = scopes
        self._tell = tell
        self._looks = recorder.settings.level is not Level.MODULE
        self._saves = recorder.settings.save is Save.TENSORS
        self._observer: GraphObserver | None = None
        self._is_reading = False
        self._texts: dict[tuple[int, int, tuple[str, ...]], str] = {}
        """What is told of a node's arguments, which it is each time that it runs."""

    def prepare(self) -> None:
        """Before a graph runs: from now on, those that TensorFlow prepares can be read."""
        if self._observer is None and self._looks:
            self._looks = False  # asked once
            try:
                self._observer = GraphObserver.load()
            except NotCompiledError as error:
                self._tell("graphs", f"{error}: graphs of TensorFlow are not looked into")

    @contextlib.contextmanager
    def reading(self, call: OpenCall | None, not_looked_into: str) -> Iterator[None]:
        """While a graph runs that is this call."""
        observer, recorder = self._observer, self._recorder
        if call is None or self._is_reading or observer is None:
            if call is not None and not self._is_reading:
                recorder.unobserved(not_looked_into)
            yield
            return
        self._is_reading = True
        recorder.guarded("graph", observer.drain)
        observer.begin(data=self._saves)
        try:
            yield
        finally:
            observer.end()
            self._is_reading = False
            recorder.guarded("graph", self._record, observer, call, not_looked_into)

    def _record(self, observer: GraphObserver, call: OpenCall, not_looked_into: str) -> None:
        results = observer.drain()
        graphs = observer.graphs()
        if not results:
            self._recorder.unobserved(not_looked_into)
        made: dict[tuple[int, Source], int] = {}
        for node, outputs in _in_order(results, graphs):
            self._record_node(graphs[node[0]], node[1], outputs, made, call)
        for number in {result.graph for result in results}:
            for reason, count in graphs[number].counts().items():
                if reason is not NotRead.HANDED_ON:
                    self._recorder.unobserved(f"result inside of a graph: {reason.value}", count)

    def _record_node(
        self,
        graph: ObservedGraph,
        number: int,
        outputs: list[ObservedResult],
        made: dict[tuple[int, Source], int],
        parent: OpenCall,
    ) -> None:
        node, recorder = graph.nodes[number], self._recorder
        scope = ModuleScope(parent.module, parent.module_class)
        is_gradient = any(word in node.name for word in BACKWARD_SCOPES)
        phase = Phase.BACKWARD if is_gradient else parent.phase
        call = recorder.open(Kind.API, PREFIX + node.op, scope, parent=parent.id, phase=phase, called=node.name)
        values = recorder.values
        for result in outputs:
            made[graph.number, Source(number, result.slot)] = values.add_observed(result, call.id)
        if not call.wanted:
            return
        call.stack = parent.stack
        placed: list[str] = []
        for place, source in enumerate(node.inputs):
            origins = graph.origins(source)
            known = [made[graph.number, origin] for origin in origins if (graph.number, origin) in made]
            if known:
                recorder.use_number(call, INPUT, f"args.{place}", max(known))
                placed.append(f"args.{place}")
        for result in outputs:
            value = made[graph.number, Source(number, result.slot)]
            recorder.use_number(call, OUTPUT, f"output.{result.slot}", value)
        recorder.close(call, self._text(graph, number, placed))

    def _text(self, graph: ObservedGraph, number: int, placed: list[str]) -> str:
        key = graph.number, number, tuple(placed)
        known = self._texts.get(key)
        if known is None:
            known = self._texts[key] = _text(graph.nodes[number], placed)
        return known


def _options(definition: Any) -> Iterator[tuple[str, Any]]:
    """Attributes of a node as those of an op that is executed eagerly are told; functions and constants are not."""
    for name, attribute in sorted(definition.attr.items()):
        kind = attribute.WhichOneof("value")
        if name.startswith("_") or kind in (None, "func", "tensor", "placeholder"):
            continue
        if kind == "list":
            fields = attribute.list.ListFields()
            found = [
                (field.name, one) for field, many in fields for one in many if field.name not in ("func", "tensor")
            ]
            yield name, [_option(word, one) for word, one in found]
        else:
            yield name, _option(kind, getattr(attribute, kind))


def _option(kind: str, value: Any) -> Any:
    if kind == "type":
        return {"$dtype": word_of(as_dtype(value))}
    if kind == "shape":
        return None if value.unknown_rank else [dim.size for dim in value.dim]
    if kind == "f" and not math.isfinite(value):
        return {"$float": repr(value)}
    return value.decode(errors="replace") if kind == "s" else value


def _in_order(
    results: list[ObservedResult], graphs: list[ObservedGraph]
) -> Iterator[tuple[tuple[int, int], list[ObservedResult]]]:
    """Results of one execution of one node together, in an order that is the same in every run.

    TensorFlow executes what does not depend on each other in any order. A graph with loops keeps the order it ran in.
    """
    groups: dict[tuple[int, int, int, int, int], list[ObservedResult]] = {}
    for result in results:
        key = (result.run, result.graph, result.node, result.frame, result.iteration)
        groups.setdefault(key, []).append(result)
    looping = {key[1] for key in groups if key[3]}
    ranks = {number: _ranks(graphs[number]) for number in {key[1] for key in groups} - looping}
    runs = {run: place for place, run in enumerate(dict.fromkeys(key[0] for key in groups))}
    ordered = sorted(
        enumerate(groups),
        key=lambda item: (
            runs[item[1][0]],
            item[1][1],
            ranks[item[1][1]][item[1][2]] if item[1][1] in ranks else item[0],
        ),
    )
    for _, key in ordered:
        yield (key[1], key[2]), groups[key]


def _ranks(graph: ObservedGraph) -> dict[int, int]:
    """Places of nodes in the order of names, each after all that it depends on."""
    needs = {
        number: {source.node for source in node.inputs} | set(node.controls) for number, node in enumerate(graph.nodes)
    }
    followers: dict[int, list[int]] = {}
    for number, before in needs.items():
        for one in before:
            followers.setdefault(one, []).append(number)
    waiting = {number: len(before) for number, before in needs.items()}
    ready = [(graph.nodes[number].name, number) for number, count in waiting.items() if not count]
    heapq.heapify(ready)
    ranks: dict[int, int] = {}
    while ready:
        _, number = heapq.heappop(ready)
        ranks[number] = len(ranks)
        for follower in followers.get(number, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (graph.nodes[follower].name, follower))
    for number in waiting:  # what goes round in circles
        ranks.setdefault(number, len(ranks))
    return ranks


def _text(node: GraphNode, placed: list[str]) -> str:
    told: dict[str, Any] = {"args": [{"$tensor": place} for place in placed]}
    options = dict(_options(node.definition))
    if options:
        told["kwargs"] = options
    told["node"] = node.name
    if node.fused_ops:
        told["fused_ops"] = list(node.fused_ops)
    if node.fused_from:
        told["fused_from"] = list(node.fused_from)
    return to_json(told)
