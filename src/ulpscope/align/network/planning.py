"""Plans which tensors of a device's network are compared with which of the original one, from the graph alone.

The compiler writes down which operators of the original network each of its own stands for, and which original tensor
an output is. An input is what its producer made. What the compiler inserted (Cast, TransData) has no original: what it
passes on is compared with what went into it. As text, a plan is:

graph ge_default_20260101000000_11: target <- reference
  14 MatMulV2 fc1/MatMul [several to one]
      input:0 <- flatten/Reshape:output:0
      output:0 <- fc1/BiasAdd:output:0

Between an operator that quantises and one that dequantises, all compute in integers: their numbers are scaled, and the
original network has nothing like them. The two ends are known by their types, or by the names that AMCT gives them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ulpscope.graph.names import sanitised
from ulpscope.graph.query import Borders, Place, borders, made_at
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.graphs import (
    GraphModel,
    NetworkPlan,
    Operator,
    OperatorGroup,
    Origin,
    Original,
    PlannedOperator,
    PlannedTensor,
    Relation,
    Source,
    TensorDesc,
    TensorSide,
)

Key: TypeAlias = tuple[str, int]
"""An operator and one of its outputs."""

_MOST_CANDIDATES = 8
"""Originals of one tensor; a chain of casts in the original network has one of each."""

_ONNX_INPUT = "input_"
"""Before the name of an input of the network in dumps of ONNX."""


def plan_network(model: GraphModel, *, quantised: GraphModel | None = None) -> NetworkPlan:
    """The plan of a model; `quantised` is the graph that leads from names of a quantised model to the original's."""
    planner = _Planner(model, _Renamer.of(quantised))
    groups: dict[object, list[PlannedOperator]] = {}
    for planned in planner.operators():
        groups.setdefault(_group_key(planned), []).append(planned)
    return NetworkPlan(
        graph=network_name(model),
        groups=tuple(
            OperatorGroup(index, _relation(members), tuple(members)) for index, members in enumerate(groups.values())
        ),
    )


def plan_same_network(model: GraphModel) -> NetworkPlan:
    """The plan of a model whose reference was dumped by another run of the same one: each operator is its own."""
    known = borders(model)
    groups = []
    for index, operator in enumerate(_executed(model)):
        outputs = tuple(
            PlannedTensor((Original(operator.name, position, desc.origin_layout, desc.origin_shape),))
            for position, desc in enumerate(operator.outputs)
        )
        inputs = tuple(_same_input(known, operator, own) for own in _read_originals(operator))
        planned = PlannedOperator(operator, (operator.name,), inputs, outputs)
        groups.append(OperatorGroup(index, Relation.ONE_TO_ONE, (planned,)))
    return NetworkPlan(network_name(model), tuple(groups))


def _same_input(known: Borders, operator: Operator, own: Original) -> PlannedTensor:
    place = made_at(known, operator.graph, _sources(operator)[own.position])
    maker = known.operators.get((place.graph, place.source.operator))
    if maker is not None:
        desc = _desc(maker, place.source.output)
        own = replace(own, layout=desc.origin_layout, shape=desc.origin_shape)
    return PlannedTensor((own,), (place.source.operator, place.source.output))


def _read_originals(operator: Operator) -> list[Original]:
    """Connected inputs as tensors of a dump of the same operator."""
    count = len(operator.inputs)
    places = [place for place, each in enumerate(operator.inputs) if each.source is not None]
    return [
        Original(operator.name, position, side=TensorSide.INPUT, described=(place, count))
        for position, place in enumerate(places)
    ]


def plan_other_compilation(model: GraphModel, other: GraphModel) -> NetworkPlan:
    """The plan of a model whose reference was dumped by another compilation of the same network: fusion on, fusion off.

    Both graphs say which original tensors theirs are; what stands for the same one belongs together.
    """
    known = _OtherCompilation.of(other)
    plan = plan_network(model)
    groups = (replace(group, members=tuple(map(known.operator, group.members))) for group in plan.groups)
    return NetworkPlan(plan.graph, tuple(groups))


@dataclass(frozen=True, slots=True)
class _OtherCompilation:
    """Where another compilation has the original tensors."""

    made: dict[Key, Original] = field(default_factory=dict)
    read: dict[Key, Original] = field(default_factory=dict)
    """What no operator made that a device dumps, such as weights, is known from who read it."""
    passed: dict[Key, Original] = field(default_factory=dict)
    """And where inputs are not dumped, from what an inserted operator made of it."""
    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: GraphModel) -> "_OtherCompilation":
        planner, known = _Planner(model, _Renamer({}, {})), cls()
        for planned in planner.operators():
            known._note(planned, planner.own_originals(planned.operator))
        return known

    def _note(self, planned: PlannedOperator, own: Sequence[Original | None]) -> None:
        name = planned.operator.name
        made = [Original(name, position) for position in range(len(own))]
        for theirs, original in zip(made, own, strict=True):
            if original is not None:
                self.made.setdefault((original.operator, original.position), theirs)
                self.names[original.operator] = name
        for theirs, tensor in zip(_read_originals(planned.operator), planned.inputs, strict=True):
            for original in tensor.candidates[:1]:
                self.read.setdefault((original.operator, original.position), theirs)
        for theirs, tensor in zip(made, planned.outputs, strict=True) if planned.inserted else ():
            for original in tensor.candidates[:1]:
                self.passed.setdefault((original.operator, original.position), theirs)

    def operator(self, planned: PlannedOperator) -> PlannedOperator:
        return replace(
            planned,
            originals=tuple(dict.fromkeys(self.names.get(name, name) for name in planned.originals)),
            inputs=tuple(map(self._tensor, planned.inputs)),
            outputs=tuple(map(self._tensor, planned.outputs)),
        )

    def _tensor(self, tensor: PlannedTensor) -> PlannedTensor:
        found = []
        for known in (self.made, self.read, self.passed):
            for original in tensor.candidates:
                theirs = known.get((original.operator, original.position))
                if theirs is not None:
                    found.append(replace(theirs, layout=original.layout, shape=original.shape))
        return replace(tensor, candidates=tuple(found))


@dataclass(frozen=True, slots=True)
class _Renamer:
    """Names of a quantised model's tensors in the model that it was made of."""

    originals: Mapping[Key, Original]
    names_of: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, model: GraphModel | None) -> "_Renamer":
        if model is None:
            return cls({}, {})
        planner = _Planner(model, cls({}, {}))
        originals, names = {}, {}
        for planned in planner.operators():
            names[planned.operator.name] = planned.originals
            for position, own in enumerate(planner.own_originals(planned.operator)):
                if own is not None:
                    originals[planned.operator.name, position] = own
        return cls(originals, names)

    def tensor(self, original: Original) -> Original:
        found = self.originals.get((original.operator, original.position))
        if found is None:
            return original
        return replace(found, layout=original.layout or found.layout, shape=original.shape or found.shape)

    def names(self, originals: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(other for name in originals for other in self.names_of.get(name, (name,))))


class _Planner:
    """What the tensors of one model stand for."""

    def __init__(self, model: GraphModel, rename: _Renamer) -> None:
        self._model = model
        self._known = borders(model)
        self._rename = rename
        self._quantised = quantised_operators(sorted(_executed(model), key=lambda each: each.id))
        self._alone = _alone(model)
        self._names = {sanitised(name) for operator in _executed(model) for name in _originals(operator)}
        self._found: dict[Place, tuple[Original, ...]] = {}

    def operators(self) -> Iterable[PlannedOperator]:
        for operator in _executed(self._model):
            read = (made_at(self._known, operator.graph, source) for source in _sources(operator))
            outputs = (
                PlannedTensor(self._candidates(Place(operator.graph, Source(operator.name, position))))
                for position in range(len(operator.outputs))
            )
            yield PlannedOperator(
                operator=operator,
                originals=self._rename.names(_originals(operator)),
                inputs=tuple(
                    PlannedTensor(self._candidates(place), (place.source.operator, place.source.output))
                    for place in read
                ),
                outputs=tuple(outputs),
                quantised=(operator.graph, operator.name) in self._quantised,
            )

    def own_originals(self, operator: Operator) -> list[Original | None]:
        """The original tensor that each output is, as far as its own operator says."""
        return [self._own_original(operator, position) for position in range(len(operator.outputs))]

    def _own_original(self, operator: Operator, position: int) -> Original | None:
        desc, originals = _desc(operator, position), _originals(operator)
        origin = desc.origin or Origin("")
        # An output of which nothing is said is that of an operator that is an original itself, or was only renamed.
        is_renamed = len(originals) == 1 and (operator.graph, operator.name) in self._alone
        name = origin.name or (originals[0] if operator.originals is None or is_renamed else "")
        if not name:
            return None
        output = position if origin.output is None else origin.output
        return self._rename.tensor(Original(name, output, desc.origin_layout, desc.origin_shape))

    def _candidates(self, place: Place) -> tuple[Original, ...]:
        """The original of an output, and behind operators that only pass on, that of what went into them."""
        path: dict[Place, None] = {}
        following: Place | None = place
        while following is not None and following not in self._found and following not in path:
            path[following] = None
            following = self._passed_from(following)
        found = self._found.get(following, ()) if following is not None else ()
        for each in reversed(path):
            found = tuple(dict.fromkeys((*self._own_at(each), *found)))[:_MOST_CANDIDATES]
            self._found[each] = found
        return found

    def _own_at(self, place: Place) -> list[Original]:
        operator, output = self._operator_at(place), place.source.output
        own = None if operator is None else self._own_original(operator, output)
        if operator is None or own is None:
            return []
        as_onnx_has_it = _ONNX_INPUT + own.operator
        if not operation(operator.type).has(Trait.NETWORK_INPUT) or sanitised(as_onnx_has_it) in self._names:
            return [own]
        return [own, replace(own, operator=as_onnx_has_it)]

    def _passed_from(self, place: Place) -> Place | None:
        """What an operator that only passes on has read; none of any other."""
        operator, output = self._operator_at(place), place.source.output
        if operator is None or not operation(operator.type).has(Trait.CASTING):
            return None
        sources = _sources(operator)
        return made_at(self._known, operator.graph, sources[output]) if output < len(sources) else None

    def _operator_at(self, place: Place) -> Operator | None:
        return self._known.operators.get((place.graph, place.source.operator))


def network_name(model: GraphModel) -> str:
    """By which the directories of its dumps are called."""
    return model.graphs[0].name if model.graphs else model.name


def _executed(model: GraphModel) -> list[Operator]:
    return [operator for graph in model.graphs for operator in graph.operators]


def _sources(operator: Operator) -> list[Source]:
    """What its connected inputs are."""
    return [each.source for each in operator.inputs if each.source is not None]


def _desc(operator: Operator, output: int) -> TensorDesc:
    """What is said of an output: nothing, where a graph describes the first ones only."""
    return operator.outputs[output] if output < len(operator.outputs) else TensorDesc()


def _originals(operator: Operator) -> tuple[str, ...]:
    return (operator.name,) if operator.originals is None else operator.originals


def _group_key(planned: PlannedOperator) -> object:
    if planned.operator.l1_fusion:
        return "L1", planned.operator.l1_fusion
    if not planned.originals:
        return planned.operator.name
    return planned.originals[0] if len(planned.originals) == 1 else planned.originals


def _alone(model: GraphModel) -> frozenset[tuple[str, str]]:
    """Operators that are the only one of their original."""
    by_original: dict[str, list[tuple[str, str]]] = {}
    for operator in _executed(model):
        originals = _originals(operator)
        if len(originals) == 1 and not operator.l1_fusion:
            by_original.setdefault(originals[0], []).append((operator.graph, operator.name))
    return frozenset(places[0] for places in by_original.values() if len(places) == 1)


def _relation(members: Sequence[PlannedOperator]) -> Relation:
    first = members[0]
    if len(members) == 1:
        return Relation.FUSED if len(first.originals) > 1 else Relation.ONE_TO_ONE
    if first.operator.l1_fusion:
        return Relation.L1_FUSION
    return Relation.SPLIT if len(first.originals) == 1 else Relation.REBUILT


def network_plan_lines(plan: NetworkPlan) -> list[str]:
    """A line a tensor."""
    lines = [f"graph {plan.graph}: target <- reference"]
    members = [(group, member) for group in plan.groups for member in group.members]
    for group, member in members:
        operator = member.operator
        note = " (quantised: not compared)" if member.quantised else ""
        lines.append(f"  {group.index} {operator.type} {operator.name} [{group.relation.value}]{note}")
        sides = {} if member.quantised else {"input": member.inputs, "output": member.outputs}
        for side, tensors in sides.items():
            for position, tensor in enumerate(tensors):
                told = ", else ".join(map(str, tensor.candidates)) or "(no original)"
                lines.append(f"      {side}:{position} <- {told}")
    return lines


def network_plan_json(plan: NetworkPlan) -> dict[str, Any]:
    """The plan as JSON: a group an entry."""
    groups = [
        {
            "index": group.index,
            "relation": group.relation.value,
            "originals": group.originals,
            "operators": [_operator_json(member) for member in group.members],
        }
        for group in plan.groups
    ]
    return {"schema": 1, "graph": plan.graph, "groups": groups}


def _operator_json(member: PlannedOperator) -> dict[str, Any]:
    operator = member.operator
    return {
        "id": operator.id,
        "name": operator.name,
        "type": operator.type,
        "inserted": member.inserted,
        "quantised": member.quantised,
        "inputs": [[str(original) for original in tensor.candidates] for tensor in member.inputs],
        "outputs": [[str(original) for original in tensor.candidates] for tensor in member.outputs],
    }


# As AMCT names them in networks of Caffe, TensorFlow and ONNX.
_QUANTISES = re.compile(r"_quant_layer|/AscendQuant|/AscendWeightQuant|\.quant|\.weight_quant")
_DEQUANTISES = re.compile(r"_dequant_layer|_anti_quant_layer|/AscendDequant|/AntiQuant|\.dequant|\.anti_quant")
_DEQUANT_ENDS = ("_dequant_layer", "AscendDequant", "_dequant")
# As GE calls them; products of integers that scale their results at once are an end, too.
_QUANTISING = re.compile(r"(?:Ascend|AscendWeight|Dynamic)Quant(?:V\d)?")
_DEQUANTISING = re.compile(r"(?:Ascend)?(?:Dequant|AntiQuant)\w*|Quant(?:Batch)?Mat[Mm]ul\w*")
_INTEGERS = "int8"


def quantised_operators(operators: Iterable[Operator]) -> frozenset[tuple[str, str]]:
    """Graph and name of each operator that has no counterpart; `operators` in the order in which they run."""
    inside: dict[tuple[str, str, int], bool] = {}
    found = set()
    for operator in operators:
        reads = any(
            each.source is not None and inside.get((operator.graph, each.source.operator, each.source.output), False)
            for each in operator.inputs
        )
        quantises = makes_integers(operator) or _is_called(operator, _QUANTISES)
        dequantises = reads_integers(operator) or _is_called(operator, _DEQUANTISES)
        ends = [dequantises and "float" in output.dtype for output in operator.outputs]
        for position, (output, over) in enumerate(zip(operator.outputs, ends, strict=True)):
            begins = quantises and output.dtype == _INTEGERS
            inside[operator.graph, operator.name, position] = begins or (reads and not over)
        if reads and not (ends and all(ends)):
            found.add((operator.graph, operator.name))
    return frozenset(found)


def makes_integers(operator: Operator) -> bool:
    """Whether its outputs are quantised, and compared with nothing."""
    return _QUANTISING.fullmatch(operator.type) is not None


def reads_integers(operator: Operator) -> bool:
    """Whether its inputs are quantised, and compared with nothing."""
    return _DEQUANTISING.fullmatch(operator.type) is not None or operator.name.endswith(_DEQUANT_ENDS)


def _is_called(operator: Operator, pattern: re.Pattern[str]) -> bool:
    return bool(pattern.search(operator.name) or pattern.search("".join(operator.originals or ())))
