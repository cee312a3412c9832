"""One run of a graph: a call for each node, inside of the layers, gradients and updates that the script made it in."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ulpscope.capture.recording.calls import INPUT, OUTPUT, PARAMETER, ModuleScope, OpenCall
from ulpscope.capture.tensorflow.graphs.nodes import GraphNode, Source
from ulpscope.capture.tensorflow.graphs.results import ObservedResult
from ulpscope.capture.tensorflow.recorder import TensorFlowRecorder
from ulpscope.capture.tensorflow.tensors import EAGER, RESOURCE
from ulpscope.capture.tensorflow.watching.graph_nodes import ARGUMENTS, CONSTANTS, CONTROL_FLOW, Known, WrittenGraph
from ulpscope.capture.tensorflow.watching.graph_order import Execution
from ulpscope.capture.tensorflow.watching.ops import INSIDE_OPTIMIZER, PREFIX, Op
from ulpscope.capture.tensorflow.watching.optimizers import settings_of
from ulpscope.capture.tensorflow.watching.tracing import Scope, Symbol, SymbolicUse
from ulpscope.records.enums import MAKING_ROLES, Kind, Level, Phase, Role

SESSION_RUN = "tf.compat.v1.Session.run"

NOT_COMPUTED = "constant or variable of a graph"
"""It is told where it is used."""

ROUTED = "control flow of a graph"
"""It computes nothing: what it hands on is told as of who made it."""

REWRITTEN = "op of a graph that grappler has rewritten"

UNTOLD = frozenset((Role.GRADIENT.value, Role.GRAD_OUTPUT.value))
"""Roles of tensors that are there, though nobody may have read them: without them a call would seem given nothing."""

MANY = 64
"""Contents of a list that is no tensor, at most, that are told of who reads it."""

_Instance = tuple[int, str, int, int, Scope]
"""A scope in a run of a graph: the run, the prefix of its nodes' names, the loop and its turn."""


@dataclass(slots=True)
class Kept:
    """What a run of a graph leaves to the next one of the same step."""

    calls: dict[str, list[OpenCall]] = field(default_factory=lambda: defaultdict(list))
    """Calls of ops by their names, of which gradients may still be asked."""
    updated: set[int] = field(default_factory=set)
    """Handles of variables whose content after the run is told."""


class GraphRun:
    """Makes calls of what one run of a graph, and of those that it calls, has computed."""

    def __init__(
        self,
        recorder: TensorFlowRecorder,
        graphs: Mapping[int, WrittenGraph],
        call: OpenCall,
        args: Sequence[Any],
        kept: Kept,
    ) -> None:
        self._recorder = recorder
        self._graphs = graphs
        self._call = call
        self._args = args
        self._kept = kept
        self._looks_into_updates = recorder.settings.level is Level.KERNEL
        self._made: dict[tuple[int, Source], int] = {}
        self._history: dict[tuple[int, Source], list[int]] = defaultdict(list)
        """All that a node has made, in the turns of a loop."""
        self._opened: dict[_Instance, OpenCall] = {}
        self._given: dict[_Instance, dict[SymbolicUse, int]] = {}
        """Of scopes inside of loops: what each turn was given, which the next one is not."""
        self._ended: set[_Instance] = set()
        self._latest: dict[Scope, tuple[_Instance, int]] = {}
        """The last instance of each scope, and the number of the graph that it was met in."""
        self._calls: dict[tuple[str, str], list[OpenCall]] = defaultdict(list)
        """Calls of ops by prefix and name."""
        self._ran: set[int] = set()
        """Numbers of graphs of which something was executed in this run."""
        self._before = self._held_before()
        self._is_session = not args and call.op == SESSION_RUN
        self._names: dict[int, str] = {}
        """Own names of a session's variables, by their contents."""
        self._variables: dict[str, int] = {}
        """Contents of a session's variables, by name, as the run has read them."""

    def record(self, execution: Execution, outputs: list[ObservedResult]) -> None:
        """A node was executed."""
        run, number, place, frame, turn = execution
        graph = self._graphs[number]
        self._ran.add(number)
        node, known = graph.graph.nodes[place], graph.known[place]
        if node.op in CONSTANTS or node.op in ARGUMENTS:
            self._keep(number, place, outputs, node)
            self._recorder.unobserved(NOT_COMPUTED)
            return
        if node.op in CONTROL_FLOW:
            self._route(graph, place, outputs)
            self._recorder.unobserved(ROUTED)
            return
        if place in graph.rewritten:
            self._recorder.unobserved(REWRITTEN)
            return
        held = self._held_by(graph, place, outputs)
        if held is not None:
            self._note(number, place, outputs[0].slot, held)
            self._recorder.unobserved(NOT_COMPUTED)
            return
        parent = self._call
        for scope in _outermost_first(known.written.scope if known is not None else None):
            assert known is not None
            parent = self._inside(scope, parent, (run, known.prefix, frame, turn), known, number)
            if scope.kind is Kind.OPTIMIZER and not self._looks_into_updates:
                for result in outputs:  # what the script reads of an update, a norm it was clipped by
                    self._note(number, place, result.slot, self._recorder.values.add_observed(result, None))
                self._recorder.unobserved(INSIDE_OPTIMIZER)
                return
        self._record_node(graph, place, outputs, parent)

    def close(self) -> None:
        """All nodes have been told: what scopes read and make is known, and what variables hold."""
        for graph in self._graphs.values():
            self._note_assigned(graph)
        for instance, call in self._opened.items():
            scope = instance[-1]
            if call.wanted:
                if instance not in self._ended:
                    self._use_symbols(instance)
                self._use_held(scope, call)
            optimizer = None if scope.optimizer is None else scope.optimizer()
            self._recorder.close(call, scope.arguments if optimizer is None else settings_of(optimizer))
        for (_, name), calls in self._calls.items():
            self._kept.calls[name] += calls

    def _note_assigned(self, graph: WrittenGraph) -> None:
        """A variable that was assigned holds what it was given, which some node has made."""
        for source, place in graph.assigned.items():
            handle = self._argument(graph.graph.nodes[source])
            value = self._value(graph, graph.graph.nodes[place].inputs[1])
            if handle is not None and value is not None and id(handle) not in self._kept.updated:
                self._recorder.values.holds(handle, value)
                self._kept.updated.add(id(handle))

    def _held_before(self) -> dict[int, int]:
        """Contents of variables when the graph began, by their handles."""
        values = self._recorder.values
        held = ((id(one), values.known_content(one)) for one in self._args if _is_handle(one))
        return {handle: content for handle, content in held if content is not None}

    def _keep(self, number: int, place: int, outputs: list[ObservedResult], node: GraphNode) -> None:
        """A value that nobody computes: a constant, or what the graph was given, which is known already."""
        values = self._recorder.values
        given = self._argument(node)
        for result in outputs:
            is_known = isinstance(given, EAGER) and given.dtype is not RESOURCE
            value = values.observe(given) if is_known else values.add_observed(result, None)
            self._note(number, place, result.slot, value)

    def _route(self, graph: WrittenGraph, place: int, outputs: list[ObservedResult]) -> None:
        """What control flow hands on is what it was handed last."""
        known = [self._value(graph, source) for source in graph.graph.nodes[place].inputs]
        latest = max((value for value in known if value is not None), default=None)
        for result in outputs:
            handed_on = latest if result.slot == 0 else None
            value = self._recorder.values.add_observed(result, None) if handed_on is None else handed_on
            self._note(graph.graph.number, place, result.slot, value)

    def _note(self, number: int, place: int, slot: int, value: int) -> None:
        self._made[number, Source(place, slot)] = value
        history = self._history[number, Source(place, slot)]
        if len(history) < MANY:
            history.append(value)

    def _argument(self, node: GraphNode) -> Any:
        if node.op not in ARGUMENTS:
            return None
        index = node.definition.attr["index"].i
        return self._args[index] if index < len(self._args) else None

    def _inside(
        self, scope: Scope, parent: OpenCall, where: tuple[int, str, int, int], known: Known, number: int
    ) -> OpenCall:
        """The call that a scope is, in which a node was executed; one that is no call leaves its parent."""
        if scope.graph != known.written.graph and scope in self._latest:
            outer = self._opened[self._latest[scope][0]]  # of a loop's body, inside of it
            return outer if scope.holds else parent
        instance = (*where, scope)
        found = self._opened.get(instance)
        if found is None:
            opened = self._open(scope, parent, where)
            if opened is None:
                return parent
            self._end_turn(scope)
            found = self._opened[instance] = opened
            self._latest[scope] = instance, number
            if where[2]:
                self._begin_turn(scope, instance)
        return found if scope.holds else parent

    def _open(self, scope: Scope, parent: OpenCall, where: tuple[int, str, int, int]) -> OpenCall | None:
        recorder = self._recorder
        if scope.kind is Kind.BACKWARD:
            forward = self._forward(scope, where)
            return None if forward is None else recorder.open_backward(Kind.BACKWARD, forward)
        place = ModuleScope(scope.module, scope.module_class)
        stack = self._call.stack if scope.stack is None else scope.stack
        phase = scope.phase or self._call.phase
        return recorder.open(scope.kind, scope.op, place, parent=parent.id, phase=phase, stack=stack)

    def _forward(self, scope: Scope, where: tuple[int, str, int, int]) -> OpenCall | None:
        """The call whose gradient a scope is. Gradients of a loop's turns come in the opposite order."""
        assert scope.forward is not None
        _, prefix, frame, turn = where
        calls = self._calls.get((prefix, scope.forward))
        if calls is None:
            named = [found for (_, name), found in self._calls.items() if name == scope.forward]
            calls = named[0] if len(named) == 1 else self._kept.calls.get(scope.forward) if not named else None
        if not calls:
            return None
        return calls[max(len(calls) - 1 - turn, 0)] if frame else calls[-1]

    def _record_node(self, graph: WrittenGraph, place: int, outputs: list[ObservedResult], parent: OpenCall) -> None:
        node, known, recorder = graph.graph.nodes[place], graph.known[place], self._recorder
        written = None if known is None else known.written
        scope = ModuleScope(parent.module, parent.module_class)
        if written is not None and written.scope is not None and written.scope.module is not None:
            scope = ModuleScope(written.scope.module, written.scope.module_class)
        elif self._is_session and parent is self._call and (written is None or written.phase is None):
            scope = ModuleScope(graph.name_scope(place), None)
        phase = (written.phase if written is not None else None) or _phase_by_name(node) or self._call.phase
        stack = self._call.stack if written is None or written.stack is None else written.stack
        call = recorder.open(
            Kind.API, PREFIX + node.op, scope, parent=parent.id, phase=phase, called=node.name, stack=stack
        )
        call.random = Op.of(node.op).is_random
        if known is not None and known.is_itself:
            for op in (known.op, *graph.fused.get(place, ())):
                self._calls[known.prefix, op].append(call)
        number = graph.graph.number
        for result in outputs:
            self._note(number, place, result.slot, recorder.values.add_observed(result, call.id))
        if not call.wanted:
            return
        self._use_operands(graph, place, call)
        for result in outputs:
            recorder.use_number(call, OUTPUT, f"output.{result.slot}", self._made[number, Source(place, result.slot)])
        recorder.close(call, graph.signature(place).text)

    def _held_by(self, graph: WrittenGraph, place: int, outputs: list[ObservedResult]) -> int | None:
        """What is read of a variable before anything in the graph has written it: nobody computes that."""
        node = graph.graph.nodes[place]
        if node.op != "ReadVariableOp" or not node.inputs:
            return None
        if graph.writers_before(place):
            return None
        owner = graph.graph.nodes[graph.graph.origins(node.inputs[0])[0].node]
        if owner.op == "VarHandleOp":
            return self._variable(owner.definition.attr["shared_name"].s.decode() or owner.name, outputs[0])
        handle = self._argument(owner)
        return None if handle is None else self._before.get(id(handle))

    def _variable(self, name: str, read: ObservedResult) -> int:
        """The content of a session's variable, which the run as a whole is given."""
        value = self._variables.get(name)
        if value is None:
            value = self._variables[name] = self._recorder.values.add_held(read, name)
            self._names[value] = name.rpartition("/")[2]
        return value

    def _use_operands(self, graph: WrittenGraph, place: int, call: OpenCall) -> None:
        places = graph.signature(place).places
        if graph.graph.nodes[place].op == "ReadVariableOp":
            self._use_written(graph, place, call)
        for name, source in zip(places, graph.sources(place), strict=True):
            value = self._value(graph, source)
            if value is not None:
                self._recorder.use_number(call, INPUT, name, value)
                if value in self._names:
                    self._recorder.use_number(call, PARAMETER, self._names[value], value)
                continue
            if graph.is_unread(source):
                self._use_unread(graph, source, call, name)

    def _use_unread(self, graph: WrittenGraph, source: Source, call: OpenCall, place: str) -> None:
        """An operand that nobody reads: what went into it stands for it."""
        for number, inside in enumerate(self._kept_inside(graph, source) or [self._recorder.values.unseen()]):
            self._recorder.use_number(call, INPUT, f"{place}.{number}", inside)

    def _use_written(self, graph: WrittenGraph, place: int, call: OpenCall) -> None:
        """What is read of a variable is made of what the graph has written into it before."""
        given = [source for writer in graph.writers_before(place) for source in graph.graph.nodes[writer].inputs[1:]]
        for number, source in enumerate(given[-MANY:]):
            value = self._value(graph, source)
            if value is not None:
                self._recorder.use_number(call, INPUT, f"written.{number}", value)
            elif graph.is_unread(source):
                self._use_unread(graph, source, call, f"written.{number}")

    def _kept_inside(self, graph: WrittenGraph, source: Source) -> list[int]:
        """What was put into a list that is no tensor, and is none of its results."""
        number = graph.graph.number
        found = [value for origin in graph.contents(source) for value in self._history.get((number, origin), ())]
        return sorted(set(found))[-MANY:]

    def result(self, number: int, source: Source) -> int | None:
        """The number of a result of a graph's."""
        return self._value(self._graphs[number], source)

    def _value(self, graph: WrittenGraph, source: Source) -> int | None:
        origins = graph.graph.origins(source)
        known = [self._made.get((graph.graph.number, origin)) for origin in origins]
        latest = max((value for value in known if value is not None), default=None)
        return self._constant(graph, origins[0]) if latest is None and len(origins) == 1 else latest

    def _constant(self, graph: WrittenGraph, source: Source) -> int | None:
        """What a constant holds that TensorFlow did not have to execute."""
        content = graph.constant(source.node) if graph.graph.number in self._ran else None
        if content is None:
            return None
        value = self._made[graph.graph.number, source] = self._recorder.values.observe(content)
        return value

    def _begin_turn(self, scope: Scope, instance: _Instance) -> None:
        """What a scope in a loop is given is made before it begins, and is another tensor in the next turn."""
        graph = self._graphs[self._latest[scope][1]]
        given = (use for use in scope.symbols if use.role not in MAKING_ROLES)
        known = ((use, self._symbol(graph, instance[1], use.symbol)) for use in given)
        self._given[instance] = {use: value for use, value in known if value is not None}

    def _end_turn(self, scope: Scope) -> None:
        """Another turn of a loop begins: what this one has made is known, and will be overwritten."""
        instance = self._latest[scope][0] if scope in self._latest else None
        if instance is not None and instance in self._given and instance not in self._ended:
            self._ended.add(instance)
            if self._opened[instance].wanted:
                self._use_symbols(instance)

    def _use_symbols(self, instance: _Instance) -> None:
        prefix, scope, call = instance[1], instance[-1], self._opened[instance]
        graph, given = self._graphs[self._latest[scope][1]], self._given.get(instance, {})
        for use in scope.symbols:
            value = given[use] if use in given else self._symbol(graph, prefix, use.symbol)
            if value is None and use.role in UNTOLD:
                value = self._recorder.values.unseen()
            if value is not None:
                self._recorder.use_number(call, use.role, use.place, value)

    def _symbol(self, graph: WrittenGraph, prefix: str, symbol: Symbol) -> int | None:
        source = graph.source_of(prefix, symbol)
        return None if source is None else self._value(graph, source)

    def _use_held(self, scope: Scope, call: OpenCall) -> None:
        recorder = self._recorder
        makes = [use for use in scope.held if use.role in MAKING_ROLES]
        for use in scope.held:
            content = (
                self._variables.get(use.handle) if isinstance(use.handle, str) else self._before.get(id(use.handle))
            )
            if use.role not in MAKING_ROLES and content is not None:
                recorder.use_number(call, use.role, use.place, content)
        for use in makes:
            recorder.values.wrote(use.handle, call.id)
        for use in makes:
            recorder.use(call, use.role, use.place, use.handle)
            self._kept.updated.add(id(use.handle))


def _outermost_first(scope: Scope | None) -> list[Scope]:
    found = []
    while scope is not None:
        found.append(scope)
        scope = scope.outer
    return found[::-1]


def _is_handle(one: Any) -> bool:
    return isinstance(one, EAGER) and one.dtype is RESOURCE


BACKWARD_SCOPES = ("gradient_tape/", "gradients/")
"""How TensorFlow names ops that compute gradients."""


def _phase_by_name(node: GraphNode) -> Phase | None:
    """Of what nobody saw being made."""
    return Phase.BACKWARD if any(word in node.name for word in BACKWARD_SCOPES) else None
