"""A graph as it is executed beside the ops that the script has made: which node is which op, and what that tells."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tensorflow.python.framework import dtypes, tensor_util

from ulpscope.capture.tensorflow.graphs.nodes import GraphNode, NotRead, ObservedGraph, Source
from ulpscope.capture.tensorflow.tensors import is_readable
from ulpscope.capture.tensorflow.watching.graph_order import ranks
from ulpscope.capture.tensorflow.watching.ops import INSIDE_OPTIMIZER, Op, Signature, sign
from ulpscope.capture.tensorflow.watching.tracing import Symbol, Tracer, Written
from ulpscope.operations.registry import Trait, operation

CONSTANTS = frozenset(("Const", "HostConst"))
LARGEST_CONSTANT = 2**20
"""Elements. What is larger is a weight that somebody froze, of which the graph's text would be copied. Chosen."""
ARGUMENTS = frozenset(("_Arg", "_DeviceArg"))
LOWERED = frozenset("While StatelessWhile If StatelessIf Case PartitionedCall StatefulPartitionedCall".split())
"""Ops that run functions, whose nodes TensorFlow puts in their place."""
REGROUPED = "ArithmeticOptimizer/AddOpsRewrite_"
"""In the name of a sum that stands for the last of several: before that one's own name. Its parts have other names."""
CONTROL_FLOW = frozenset(
    "Merge Switch Enter Exit NextIteration LoopCond RefMerge RefSwitch RefEnter RefExit RefNextIteration".split()
)
"""Ops that say which turn or branch numbers go to."""
HANDING_ON = CONTROL_FLOW | frozenset("Identity IdentityN VarHandleOp".split())
REDUCTIONS = frozenset("Sum Mean Prod Max Min".split())
"""Ops that give what they are given where there is but one element to reduce."""
RESULTS = frozenset(("_Retval", "_DeviceRetval"))


BATCHES = frozenset(("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional"))
"""Ops that ask a pipeline for its next batch."""

INSIDE_PIPELINE = "inside a tf.data pipeline"
"""Counted once a batch: what computes it runs in threads of its own, which nobody sees."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a node is, where the script has made it."""

    prefix: str
    """Of the names of all nodes that came from the same function with it."""
    op: str
    written: Written
    is_itself: bool = True
    """Else grappler has put it where this op is."""


@dataclass(eq=False)
class WrittenGraph:
    """A graph's nodes, with the ops of the script that they are."""

    graph: ObservedGraph
    tracer: Tracer
    made: dict[str, Written]
    """Ops of the function or session that runs."""
    signatures: dict[int, Signature] = field(default_factory=dict)
    _contents: dict[Source, tuple[Source, ...]] = field(default_factory=dict)
    _constants: dict[int, Any] = field(default_factory=dict)

    @cached_property
    def known(self) -> list[Known | None]:
        """By node; of what grappler has made, what it was made of where its name tells."""
        return [self._look_up(node.name) for node in self.graph.nodes]

    @cached_property
    def rewritten(self) -> frozenset[int]:
        """Nodes that are not what the script has written: put in by grappler, or given other operands by it."""
        return frozenset(place for place in range(len(self.graph.nodes)) if not self._is_as_written(place))

    def _is_as_written(self, place: int) -> bool:
        node, known = self.graph.nodes[place], self.known[place]
        if node.op in CONSTANTS | ARGUMENTS | RESULTS | HANDING_ON:
            return True
        if known is None or not known.is_itself:
            return not self.made  # of a graph that nobody saw being made, all is as good as written
        if node.fused_ops or REGROUPED in node.name or len(known.written.inputs) != len(node.inputs):
            return True
        return all(
            any(self._is_read(known.prefix, symbol, source) for source in node.inputs)
            for symbol in known.written.inputs
        )

    def _is_read(self, prefix: str, symbol: Symbol, source: Source) -> bool:
        """Whether an operand is what the script has given, casts and constants aside."""
        made = self.made.get(symbol.op) or self.tracer.latest(symbol.op)
        if made is not None and operation(made.op).has(Trait.METADATA):
            return True  # a shape, which is folded where it is known
        found = self._moved_from(source.node)
        while prefix + symbol.op not in self.places:
            written = self.made.get(symbol.op) or self.tracer.latest(symbol.op)
            if written is None or not written.inputs or written.op in LOWERED:
                return True  # a constant, what the function is given, or what runs functions of its own
            if not _gives_what_it_is_given(written):
                return any(self._may_stand_for(node, written) for node in found)
            symbol = written.inputs[0]
        expected = self._moved_from(self.places[prefix + symbol.op])
        folded = [any(self.graph.nodes[node].op in CONSTANTS for node in nodes) for nodes in (found, expected)]
        return not found.isdisjoint(expected) or all(folded)

    def _moved_from(self, here: int) -> set[int]:
        """A node, and those that it hands on the numbers of."""
        found = {here}
        while _hands_on(self.graph.nodes[here].op) and self.graph.nodes[here].inputs:
            here = self.graph.nodes[here].inputs[0].node
            if here in found:
                break
            found.add(here)
        return found

    def _may_stand_for(self, place: int, written: Written) -> bool:
        """Whether a node may be an op that is gone: folded to a constant, or merged with an equal one."""
        known = self.known[place]
        is_equal = known is not None and known.is_itself and known.written.op == written.op
        return self.graph.nodes[place].op in CONSTANTS or is_equal

    @cached_property
    def not_told(self) -> dict[str, int]:
        """How much of it is no call when it runs, by reason."""
        told = {
            INSIDE_OPTIMIZER if reason is NotRead.OPTIMIZER else f"result inside of a graph: {reason.value}": count
            for reason, count in self.graph.counts().items()
        }
        batches = sum(node.op in BATCHES for node in self.graph.nodes)
        return {**told, INSIDE_PIPELINE: batches} if batches else told

    @cached_property
    def places(self) -> dict[str, int]:
        """Nodes by their names, and by those that the script has given them."""
        found = {node.name: place for place, node in enumerate(self.graph.nodes)}
        for place, known in enumerate(self.known):
            if known is not None and known.is_itself:
                found.setdefault(known.prefix + known.op, place)
        return found

    @cached_property
    def ranks(self) -> list[int]:
        numbers = {
            place: known.written.number
            for place, known in enumerate(self.known)
            if known is not None and known.is_itself and self._has_its_place(place)
        }
        for place, node in enumerate(self.graph.nodes):
            if node.op in CONSTANTS or node.op in ARGUMENTS:
                numbers[place] = -1  # grappler keeps one of equal constants, whichever
        return ranks(self.graph, numbers)

    def _has_its_place(self, place: int) -> bool:
        """Not what only hands on, nor memory that nobody has written: a loop's gradient gives the loop more of both."""
        op = self.graph.nodes[place].op
        return op not in HANDING_ON and not operation(op).has(Trait.UNWRITTEN)

    @cached_property
    def fused(self) -> dict[int, tuple[str, ...]]:
        """Ops of the script that a node computes beside the one that it is named after."""
        return {place: tuple(self._chain(place, node)) for place, node in enumerate(self.graph.nodes) if node.fused_ops}

    @cached_property
    def writers(self) -> dict[int, list[int]]:
        """By node that gives a variable's handle, those that may write the variable, in order."""
        found: dict[int, list[int]] = {}
        for place in sorted(range(len(self.graph.nodes)), key=self.ranks.__getitem__):
            node = self.graph.nodes[place]
            if Op.of(node.op).writes or node.functions:
                for source in node.inputs:
                    found.setdefault(source.node, []).append(place)
        return found

    def writers_before(self, place: int) -> list[int]:
        """Nodes that may have written the variable that a node reads."""
        source = self.graph.origins(self.graph.nodes[place].inputs[0])[0].node
        return [writer for writer in self.writers.get(source, ()) if self.ranks[writer] < self.ranks[place]]

    @cached_property
    def results(self) -> dict[int, Source]:
        """What the graph gives, by its places among the results."""
        nodes = (node for node in self.graph.nodes if node.op in RESULTS and node.inputs)
        return {node.definition.attr["index"].i: node.inputs[0] for node in nodes}

    def sources(self, place: int) -> tuple[Source, ...]:
        """A node's operands in the order of the script: grappler sorts those of a sum or product by name."""
        node, known = self.graph.nodes[place], self.known[place]
        if known is None or not known.is_itself or not len(node.inputs) == len(known.written.inputs) == 2:
            return node.inputs
        found = [self._moved_from(source.node) for source in node.inputs]
        given = [self._read_of(known.prefix, symbol) for symbol in known.written.inputs]
        in_order, swapped = (
            any(one in nodes for one, nodes in zip(given, order, strict=True)) for order in (found, found[::-1])
        )
        return node.inputs[::-1] if swapped and not in_order else node.inputs

    def _read_of(self, prefix: str, symbol: Symbol) -> int | None:
        """The node that gives an op of the script the numbers of an operand, through those that hand them on."""
        while prefix + symbol.op not in self.places:
            written = self.made.get(symbol.op) or self.tracer.latest(symbol.op)
            if written is None or not written.inputs or not _gives_what_it_is_given(written):
                return None
            symbol = written.inputs[0]
        return self.places[prefix + symbol.op]

    def contents(self, source: Source) -> tuple[Source, ...]:
        """Results that went into something unread on its way to a node: a list of tensors, by whoever made it."""
        found = self._contents.get(source)
        if found is None:
            asked, waiting = {source.node}, [source.node]
            read: list[Source] = []
            while waiting:
                for before in self._given_numbers(waiting.pop()):
                    if self.is_unread(before):
                        if before.node not in asked:
                            asked.add(before.node)
                            waiting.append(before.node)
                    else:
                        read += self.graph.origins(before)
            found = self._contents[source] = tuple(dict.fromkeys(read))
        return found

    def _given_numbers(self, place: int) -> tuple[Source, ...]:
        """Operands that a node's numbers come from: of one that only hands them on, no constant, which is a shape."""
        node = self.graph.nodes[place]
        if not _hands_on(node.op):
            return node.inputs
        return tuple(source for source in node.inputs if self.graph.nodes[source.node].op not in CONSTANTS)

    def constant(self, place: int) -> Any:
        """The content of a constant, as numpy's array, which all plans of its graph share; none of what is no constant,
        too large or of no type of ours."""
        if place not in self._constants:
            self._constants[place] = self._content(place)
        return self._constants[place]

    def _content(self, place: int) -> Any:
        node = self.graph.nodes[place]
        if node.op not in CONSTANTS:
            return None
        tensor = node.definition.attr["value"].tensor
        size = math.prod(dim.size for dim in tensor.tensor_shape.dim)
        if not size or size > LARGEST_CONSTANT or not is_readable(dtypes.as_dtype(tensor.dtype)):
            return None
        return tensor_util.MakeNdarray(tensor)

    def is_unread(self, source: Source) -> bool:
        """Whether nobody reads it: a list of tensors, a handle, and what grappler has made of the script's ops."""
        origins = self.graph.origins(source)
        return any(tuple(origin) in self._unread or origin.node in self.rewritten for origin in origins)

    @cached_property
    def _unread(self) -> frozenset[tuple[int, int]]:
        return frozenset((left.node, left.slot) for left in self.graph.left_out if left.reason is not NotRead.HANDED_ON)

    def name_scope(self, place: int) -> str | None:
        """Where the script of a session has made an op, as a path; an op's own constants are made where it is."""
        known = self.known[place]
        if known is None:
            return None
        folder = known.op.rpartition("/")[0]
        while folder in self.made:
            folder = folder.rpartition("/")[0]
        return folder.replace("/", ".") or None

    def signature(self, place: int) -> Signature:
        """As of the same op executed eagerly."""
        found = self.signatures.get(place)
        if found is None:
            node = self.graph.nodes[place]
            found = self.signatures[place] = sign(Op.of(node.op), len(node.inputs), _attributes(node), ())
        return found

    @cached_property
    def assigned(self) -> dict[int, int]:
        """By node that gives a variable's handle: the node that assigns it last, if the last writer assigns."""
        last = {source: places[-1] for source, places in self.writers.items()}
        return {
            source: place
            for source, place in last.items()
            if self.graph.nodes[place].op == "AssignVariableOp" and self.graph.nodes[place].inputs[0].node == source
        }

    @cached_property
    def _with_bias(self) -> dict[str, Source]:
        """Gradients of biases that a convolution's gradient computes beside its own."""
        reading = self.tracer.bias_gradients()
        found = {}
        for place, node in enumerate(self.graph.nodes):
            known = self.known[place]
            if node.op.endswith("WithBias") and known is not None:
                name = reading.get(known.written.inputs[-1])
                if name is not None:
                    found[known.prefix + name] = Source(place, 1)
        return found

    def source_of(self, prefix: str, symbol: Symbol) -> Source | None:
        """The result of a node that is an op's of the script; none where it was fused or left out."""
        name = prefix + symbol.op
        place = self.places.get(name)
        return self._with_bias.get(name) if place is None else Source(place, symbol.slot)

    def _look_up(self, name: str) -> Known | None:
        for told in _names(name):
            parts = told.split("/")
            for start in range(len(parts)):
                op = "/".join(parts[start:])
                written = self.made.get(op) or self.tracer.latest(op)
                if written is not None:
                    return Known(told.removesuffix(op), op, written)
        return self._beside(name)

    def _beside(self, name: str) -> Known | None:
        """An op of the script in the innermost name scope that a node of grappler's is in."""
        parts = name.split("/")[:-1]
        for end in range(len(parts), 0, -1):
            for start in range(end):
                folder = "/".join(parts[start:end])
                found = self.tracer.in_folder(folder)
                if found is not None:
                    prefix = "/".join(parts[:start])
                    return Known(f"{prefix}/" if prefix else "", *found, is_itself=False)
        return None

    def _chain(self, place: int, node: GraphNode) -> Iterator[str]:
        """From the last op of a fusion, which gives it its name, back to the first."""
        here = self.known[place]
        if here is None:
            return
        waiting = list(here.written.inputs)
        for _ in node.fused_ops:
            found = next((symbol.op for symbol in waiting if self._is_gone(here.prefix, symbol)), None)
            if found is None:
                return
            yield found
            before = self.made.get(found) or self.tracer.latest(found)
            waiting = list(before.inputs) if before is not None else []

    def _is_gone(self, prefix: str, symbol: Symbol) -> bool:
        return prefix + symbol.op not in self.places


def _hands_on(op: str) -> bool:
    """Whether it gives the numbers that it is given."""
    return op in HANDING_ON or operation(op).has(Trait.MOVING, Trait.CASTING)


def _gives_what_it_is_given(written: Written) -> bool:
    """The same of an op of the script that grappler has taken out: of a sum over nothing, too."""
    return _hands_on(written.op) or (written.is_alike and written.op in REDUCTIONS)


def _names(name: str) -> Iterator[str]:
    """A node's name, and what it may have been before grappler put something behind it."""
    yield name
    yield name.replace(REGROUPED, "")
    yield name.partition("-")[0]
    yield name.rpartition("/")[0]


def _attributes(node: GraphNode) -> tuple[Any, ...]:
    """As TensorFlow hands them to its callbacks, names and values by turns."""
    told: list[Any] = []
    for name in sorted(name for name in node.definition.attr if not name.startswith("_")):
        told += [name, _value(node.definition.attr[name])]
    return tuple(told)


def _value(attribute: Any) -> Any:
    kind = attribute.WhichOneof("value")
    if kind == "list":
        lists = attribute.list
        return [*lists.s, *lists.i, *lists.f, *lists.b, *map(dtypes.as_dtype, lists.type), *map(_shape, lists.shape)]
    if kind == "type":
        return dtypes.as_dtype(attribute.type)
    if kind == "shape":
        return _shape(attribute.shape)
    if kind == "func":
        return attribute.func.name
    if kind == "tensor":
        return None  # a constant's content, which is its result
    return getattr(attribute, kind) if kind is not None else None


def _shape(shape: Any) -> Any:
    return None if shape.unknown_rank else [dim.size for dim in shape.dim]
