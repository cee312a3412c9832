"""How the runs of a graph become calls, one for each node, inside of the layers, gradients and updates that the script
made them in: a plan, made of a run's results, for all runs that execute the same nodes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulpscope.capture.recording.calls import INPUT, OUTPUT, PARAMETER, ModuleScope
from ulpscope.capture.tensorflow.graphs.nodes import GraphNode, Source
from ulpscope.capture.tensorflow.graphs.results import ObservedResult
from ulpscope.capture.tensorflow.values import Read
from ulpscope.capture.tensorflow.watching.graph_nodes import ARGUMENTS, CONSTANTS, CONTROL_FLOW, Known, WrittenGraph
from ulpscope.capture.tensorflow.watching.graph_order import Execution
from ulpscope.capture.tensorflow.watching.graph_plans import (
    ROOT,
    Closing,
    Earlier,
    Performance,
    Plan,
    PlannedCall,
    is_tensor,
)
from ulpscope.capture.tensorflow.watching.ops import INSIDE_OPTIMIZER, PREFIX, Op
from ulpscope.capture.tensorflow.watching.tracing import Scope, Symbol, SymbolicUse, outermost_first
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

_Uses = list[tuple[str, str, int | None]]
"""Roles, places and contents."""


def make_plan(
    performance: Performance,
    graphs: Mapping[int, WrittenGraph],
    executions: Iterable[tuple[Execution, list[ObservedResult]]],
    order: NDArray[np.int64],
) -> Plan:
    """Of a run that has executed these, the outermost graph last. Results are told by their places in an order."""
    places = np.argsort(order).tolist()
    planner = _Planner(performance, graphs)
    for execution, outputs in executions:
        planner.add(execution, [(places[result.row], result) for result in outputs])
    return planner.plan()


class _Planner:
    """Makes a plan of what one run of a graph, and of those that it calls, has computed."""

    def __init__(self, performance: Performance, graphs: Mapping[int, WrittenGraph]) -> None:
        self._recorder = performance.recorder
        self._call = call = performance.call
        self._args = args = performance.args
        self._kept = performance.kept
        self._graphs = graphs
        self._root = list(graphs)[-1]
        """The number of the outermost graph, which is given the arguments."""
        self._looks_into_updates = self._recorder.settings.level is Level.KERNEL
        self._made: dict[tuple[int, Source], int] = {}
        self._history: dict[tuple[int, Source], list[int]] = defaultdict(list)
        """All that a node has made, in the turns of a loop."""
        self._opened: dict[_Instance, PlannedCall] = {}
        self._begun: dict[_Instance, dict[SymbolicUse, int]] = {}
        """Of scopes inside of loops: what each turn was given, which the next one is not."""
        self._ended: dict[_Instance, _Uses] = {}
        """Of those of which another turn has begun: what they were given and have made."""
        self._latest: dict[Scope, tuple[_Instance, int]] = {}
        """The last instance of each scope, and the number of the graph that it was met in."""
        self._calls: dict[tuple[str, str], list[int]] = defaultdict(list)
        """Calls of ops by prefix and name."""
        self._is_session = not args and call.op == SESSION_RUN
        self._names: dict[int, str] = {}
        """Own names of a session's variables, by their contents."""
        self._variables: dict[str, int] = {}
        """Contents of a session's variables, by name, as the run has read them."""
        self._places = {id(one): place for place, one in enumerate(args)}
        self._given: set[int] = set()
        """Arguments whose contents are used."""
        self._all: list[PlannedCall] = []
        self._nodes: list[int] = []
        self._backwards: list[tuple[int, Earlier]] = []
        self._earlier: dict[tuple[str, int | None], Earlier] = {}
        self._stems: Counter[tuple[str, str]] = Counter()
        self._bases: dict[tuple[str, str], int] = {}
        self._reads: list[Read] = []
        self._uses: list[tuple[int, str, str, int]] = []
        self._unobserved: Counter[str] = Counter()

    def add(self, execution: Execution, outputs: list[tuple[int, ObservedResult]]) -> None:
        """A node was executed; what it gave has places in the order of all results."""
        run, number, place, frame, turn = execution
        graph = self._graphs[number]
        node, known = graph.graph.nodes[place], graph.known[place]
        if node.op in CONSTANTS or node.op in ARGUMENTS:
            self._keep(number, place, outputs, node)
            self._unobserved[NOT_COMPUTED] += 1
            return
        if node.op in CONTROL_FLOW:
            self._route(graph, place, outputs)
            self._unobserved[ROUTED] += 1
            return
        if place in graph.rewritten:
            self._unobserved[REWRITTEN] += 1
            return
        held = self._held_by(graph, place, outputs)
        if held is not None:
            self._note(number, place, outputs[0][1].slot, held)
            self._unobserved[NOT_COMPUTED] += 1
            return
        parent: PlannedCall | None = None
        for scope in outermost_first(known.written.scope if known is not None else None):
            assert known is not None
            parent = self._inside(scope, parent, (run, known.prefix, frame, turn), known, number)
            if scope.kind is Kind.OPTIMIZER and not self._looks_into_updates:
                for record, result in outputs:  # what the script reads of an update, a norm it was clipped by
                    self._note(number, place, result.slot, self._read(Read(record)))
                self._unobserved[INSIDE_OPTIMIZER] += 1
                return
        self._add_node(graph, place, outputs, parent)

    def plan(self) -> Plan:
        """All nodes have been told: what scopes read and make is known, and what variables hold."""
        assigned = self._assigned()
        closings = [self._closing(instance) for instance, call in self._opened.items() if call.wanted]
        root = self._graphs[self._root]
        for source in root.results.values():
            self._value(root, source)  # a constant is known only if it is asked for
        named: dict[str, list[int]] = defaultdict(list)
        for (_, name), calls in self._calls.items():
            named[name] += calls
        for graph in self._graphs.values():
            self._unobserved.update(graph.not_told)
        return Plan(
            calls=self._all,
            nodes=self._nodes,
            backwards=self._backwards,
            stems=self._stems,
            bases=self._bases,
            earlier=list(self._earlier.values()),
            reads=self._reads,
            given=sorted(self._given),
            uses=self._uses,
            assigned=assigned,
            closings=closings,
            unobserved=self._unobserved,
            named=named,
            made=self._made,
        )

    def _assigned(self) -> dict[int, int]:
        """A variable that was assigned holds what it was given, which some node has made."""
        graph, found = self._graphs[self._root], dict[int, int]()
        for source, place in graph.assigned.items():
            index = self._argument(self._root, graph.graph.nodes[source])
            value = self._value(graph, graph.graph.nodes[place].inputs[1])
            if index is not None and value is not None:
                found.setdefault(index, value)
        return found

    def _content(self, argument: int) -> int:
        """Of what the graph is given: a number below zero."""
        self._given.add(argument)
        return argument - len(self._args)

    def _held(self, handle: Any) -> int | None:
        """What a variable held when the graph began."""
        argument = self._places.get(id(handle))
        known = argument is not None and self._recorder.values.known_content(handle) is not None
        return self._content(argument) if argument is not None and known else None

    def _read(self, read: Read) -> int:
        self._reads.append(read)
        return len(self._reads) - 1

    def _keep(self, number: int, place: int, outputs: list[tuple[int, ObservedResult]], node: GraphNode) -> None:
        """A value that nobody computes: a constant, or what the graph was given, which is known already."""
        index = self._argument(number, node)
        given = None if index is None or not is_tensor(self._args[index]) else self._content(index)
        for record, result in outputs:
            self._note(number, place, result.slot, self._read(Read(record)) if given is None else given)

    def _route(self, graph: WrittenGraph, place: int, outputs: list[tuple[int, ObservedResult]]) -> None:
        """What control flow hands on is what it was handed last."""
        known = [self._value(graph, source) for source in graph.graph.nodes[place].inputs]
        latest = max((value for value in known if value is not None), default=None)
        for record, result in outputs:
            handed_on = latest if result.slot == 0 else None
            value = self._read(Read(record)) if handed_on is None else handed_on
            self._note(graph.graph.number, place, result.slot, value)

    def _note(self, number: int, place: int, slot: int, value: int) -> None:
        self._made[number, Source(place, slot)] = value
        history = self._history[number, Source(place, slot)]
        if len(history) < MANY:
            history.append(value)

    def _argument(self, number: int, node: GraphNode) -> int | None:
        """Which of the arguments a node gives; those of a function that the graph calls are others."""
        if node.op not in ARGUMENTS or number != self._root:
            return None
        index = int(node.definition.attr["index"].i)
        return index if index < len(self._args) else None

    def _inside(
        self, scope: Scope, parent: PlannedCall | None, where: tuple[int, str, int, int], known: Known, number: int
    ) -> PlannedCall | None:
        """The call that a scope is, in which a node was executed; one that is no call leaves its parent."""
        if scope.graph != known.written.graph and scope in self._latest:
            outer = self._opened[self._latest[scope][0]]  # of a loop's body, inside of it
            return outer if scope.holds else parent
        instance = (*where, scope)
        found = self._opened.get(instance)
        if found is None:
            opened = self._open_scope(scope, parent, where)
            if opened is None:
                return parent
            self._end_turn(scope)
            found = self._opened[instance] = opened
            self._latest[scope] = instance, number
            if where[2]:
                self._begin_turn(scope, instance)
        return found if scope.holds else parent

    def _open_scope(
        self, scope: Scope, parent: PlannedCall | None, where: tuple[int, str, int, int]
    ) -> PlannedCall | None:
        if scope.kind is Kind.BACKWARD:
            return self._open_backward(scope, where)
        place = ModuleScope(scope.module, scope.module_class, scope.stack)
        return self._open(scope.kind, scope.op, place, scope.phase or self._call.phase, parent=parent)

    def _open_backward(self, scope: Scope, where: tuple[int, str, int, int]) -> PlannedCall | None:
        """Gradients of a loop's turns come in the opposite order."""
        assert scope.forward is not None
        _, prefix, frame, turn = where
        calls = self._calls.get((prefix, scope.forward))
        if calls is None:
            named = [found for (_, name), found in self._calls.items() if name == scope.forward]
            if not named:
                return self._open_backward_of_earlier(scope.forward, turn if frame else None)
            calls = named[0] if len(named) == 1 else None
        if not calls:
            return None
        forward = self._all[calls[max(len(calls) - 1 - turn, 0)] if frame else calls[-1]]
        place = ModuleScope(forward.module, forward.module_class, forward.stack)
        call = self._open(Kind.BACKWARD, forward.op, place, Phase.BACKWARD, wanted=forward.wanted)
        call.forward = forward.place
        return call

    def _open_backward_of_earlier(self, name: str, turn: int | None) -> PlannedCall | None:
        earlier = self._earlier.setdefault((name, turn), self._kept.about(name, turn))
        if earlier.about is None:
            return None
        op, module, module_class, wanted = earlier.about
        call = self._open(Kind.BACKWARD, op, ModuleScope(module, module_class), Phase.BACKWARD, wanted=wanted)
        self._backwards.append((call.place, earlier))
        return call

    def _open(
        self,
        kind: Kind,
        op: str,
        scope: ModuleScope,
        phase: Phase,
        *,
        parent: PlannedCall | None = None,
        called: str | None = None,
        wanted: bool | None = None,
    ) -> PlannedCall:
        stem = called or op
        key = phase.value, stem
        if key not in self._bases:
            self._bases[key] = self._recorder.count_of(*key)
        number = self._stems[key]
        self._stems[key] += 1
        if wanted is None:
            wanted = self._recorder.wants(kind, op, scope.path, f"{stem}.{self._bases[key] + number}")
        module, module_class = scope.path, scope.class_name
        call = PlannedCall(len(self._all), kind, op, stem, number, module, module_class, phase, wanted=wanted)
        call.stack = scope.stack
        if kind is not Kind.BACKWARD:
            call.parent = ROOT if parent is None else parent.place
        self._all.append(call)
        return call

    def _add_node(
        self, graph: WrittenGraph, place: int, outputs: list[tuple[int, ObservedResult]], parent: PlannedCall | None
    ) -> None:
        node, known = graph.graph.nodes[place], graph.known[place]
        written = None if known is None else known.written
        around = self._call if parent is None else parent
        scope = ModuleScope(around.module, around.module_class)
        if written is not None and written.scope is not None and written.scope.module is not None:
            scope = ModuleScope(written.scope.module, written.scope.module_class)
        elif self._is_session and parent is None and (written is None or written.phase is None):
            scope = ModuleScope(graph.name_scope(place), None)
        scope.stack = None if written is None else written.stack
        phase = (written.phase if written is not None else None) or _phase_by_name(node) or self._call.phase
        call = self._open(Kind.API, PREFIX + node.op, scope, phase, parent=parent, called=node.name)
        call.random = Op.of(node.op).is_random
        if known is not None and known.is_itself:
            for op in (known.op, *graph.fused.get(place, ())):
                self._calls[known.prefix, op].append(call.place)
        number = graph.graph.number
        for record, result in outputs:
            self._note(number, place, result.slot, self._read(Read(record, call.place)))
        if not call.wanted:
            return
        self._use_operands(graph, place, call)
        for _, result in outputs:
            self._use(call, OUTPUT, f"output.{result.slot}", self._made[number, Source(place, result.slot)])
        call.arguments = graph.signature(place).text
        self._nodes.append(call.place)

    def _use(self, call: PlannedCall, role: str, place: str, value: int) -> None:
        self._uses.append((call.place, role, place, value))

    def _held_by(self, graph: WrittenGraph, place: int, outputs: list[tuple[int, ObservedResult]]) -> int | None:
        """What is read of a variable before anything in the graph has written it: nobody computes that."""
        node = graph.graph.nodes[place]
        if node.op != "ReadVariableOp" or not node.inputs:
            return None
        if graph.writers_before(place):
            return None
        owner = graph.graph.nodes[graph.graph.origins(node.inputs[0])[0].node]
        if owner.op == "VarHandleOp":
            return self._variable(owner.definition.attr["shared_name"].s.decode() or owner.name, outputs[0][0])
        index = self._argument(graph.graph.number, owner)
        return None if index is None else self._held(self._args[index])

    def _variable(self, name: str, record: int) -> int:
        """The content of a session's variable, which the run as a whole is given."""
        value = self._variables.get(name)
        if value is None:
            value = self._variables[name] = self._read(Read(record, variable=name))
            self._names[value] = name.rpartition("/")[2]
        return value

    def _use_operands(self, graph: WrittenGraph, place: int, call: PlannedCall) -> None:
        places = graph.signature(place).places
        if graph.graph.nodes[place].op == "ReadVariableOp":
            self._use_written(graph, place, call)
        for name, source in zip(places, graph.sources(place), strict=True):
            value = self._value(graph, source)
            if value is not None:
                self._use(call, INPUT, name, value)
                if value in self._names:
                    self._use(call, PARAMETER, self._names[value], value)
                continue
            if graph.is_unread(source):
                self._use_unread(graph, source, call, name)

    def _use_unread(self, graph: WrittenGraph, source: Source, call: PlannedCall, place: str) -> None:
        """An operand that nobody reads: what went into it stands for it."""
        for number, inside in enumerate(self._kept_inside(graph, source) or [self._read(Read(-1))]):
            self._use(call, INPUT, f"{place}.{number}", inside)

    def _use_written(self, graph: WrittenGraph, place: int, call: PlannedCall) -> None:
        """What is read of a variable is made of what the graph has written into it before."""
        given = [source for writer in graph.writers_before(place) for source in graph.graph.nodes[writer].inputs[1:]]
        for number, source in enumerate(given[-MANY:]):
            value = self._value(graph, source)
            if value is not None:
                self._use(call, INPUT, f"written.{number}", value)
            elif graph.is_unread(source):
                self._use_unread(graph, source, call, f"written.{number}")

    def _kept_inside(self, graph: WrittenGraph, source: Source) -> list[int]:
        """What was put into a list that is no tensor, and is none of its results."""
        number = graph.graph.number
        found = [value for origin in graph.contents(source) for value in self._history.get((number, origin), ())]
        return sorted(set(found))[-MANY:]

    def _value(self, graph: WrittenGraph, source: Source) -> int | None:
        origins = graph.graph.origins(source)
        known = content_of(self._made, graph, source)
        return self._constant(graph, origins[0]) if known is None and len(origins) == 1 else known

    def _constant(self, graph: WrittenGraph, source: Source) -> int | None:
        """What a constant holds that TensorFlow did not have to execute."""
        content = graph.constant(source.node)
        if content is None:
            return None
        value = self._made[graph.graph.number, source] = self._read(Read(-1, constant=content))
        return value

    def _begin_turn(self, scope: Scope, instance: _Instance) -> None:
        """What a scope in a loop is given is made before it begins, and is another tensor in the next turn."""
        graph = self._graphs[self._latest[scope][1]]
        given = (use for use in scope.symbols if use.role not in MAKING_ROLES)
        known = ((use, self._symbol(graph, instance[1], use.symbol)) for use in given)
        self._begun[instance] = {use: value for use, value in known if value is not None}

    def _end_turn(self, scope: Scope) -> None:
        """Another turn of a loop begins: what this one has made is known, and will be overwritten."""
        instance = self._latest[scope][0] if scope in self._latest else None
        if instance is not None and instance in self._begun and instance not in self._ended:
            self._ended[instance] = self._symbols(instance)

    def _closing(self, instance: _Instance) -> Closing:
        scope, call = instance[-1], self._opened[instance]
        uses = self._ended[instance] if instance in self._ended else self._symbols(instance)
        for held in scope.held:
            if held.role in MAKING_ROLES:
                continue
            handle = held.handle
            content = self._variables.get(handle) if isinstance(handle, str) else self._held(handle)
            if content is not None:
                uses.append((held.role, held.place, content))
        writes = [held for held in scope.held if held.role in MAKING_ROLES]
        return Closing(call.place, uses, writes, scope.arguments, scope.optimizer)

    def _symbols(self, instance: _Instance) -> _Uses:
        prefix, scope = instance[1], instance[-1]
        graph, begun = self._graphs[self._latest[scope][1]], self._begun.get(instance, {})
        uses: _Uses = []
        for use in scope.symbols:
            value = begun[use] if use in begun else self._symbol(graph, prefix, use.symbol)
            if value is not None or use.role in UNTOLD:
                uses.append((use.role, use.place, value))
        return uses

    def _symbol(self, graph: WrittenGraph, prefix: str, symbol: Symbol) -> int | None:
        source = graph.source_of(prefix, symbol)
        return None if source is None else self._value(graph, source)


def content_of(made: Mapping[tuple[int, Source], int], graph: WrittenGraph, source: Source) -> int | None:
    """The number of a result of a graph's; of a merge's the one that was read last."""
    known = [made.get((graph.graph.number, origin)) for origin in graph.graph.origins(source)]
    return max((value for value in known if value is not None), default=None)


BACKWARD_SCOPES = ("gradient_tape/", "gradients/")
"""How TensorFlow names ops that compute gradients."""


def _phase_by_name(node: GraphNode) -> Phase | None:
    """Of what nobody saw being made."""
    return Phase.BACKWARD if any(word in node.name for word in BACKWARD_SCOPES) else None
