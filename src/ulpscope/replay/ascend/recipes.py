"""What an operator of a graph computes: the definition of its type, or those of the operators that were fused into it.

A pass that works on operators in one buffer keeps the type of the first and adds what follows: a Conv2D that stands for
Conv2D, BiasAdd and Relu. A pass that replaces a part of the graph names the type of the whole, LayerNorm for one; that
type has a definition of its own.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ulpscope.records.checks import Rule
from ulpscope.records.graphs import Operator
from ulpscope.replay.ascend import elementwise, moving, reductions, windows
from ulpscope.replay.ascend.defining import Array, Defined, Definition, Definitions, Operand, Setting
from ulpscope.replay.recorded import CannotReplayError

ACTIVATIONS = frozenset("Relu Relu6 Sigmoid Tanh".split())
FOLLOWERS = ACTIVATIONS | {"BiasAdd", "Add"}
"""What is known to be fused behind others, without attributes that the fused operator would not tell."""

WHOLES = frozenset(
    "LayerNorm BatchNorm BNInfer BNTrainingReduce BNTrainingUpdate Softmax SoftmaxV2 LogSoftmax LogSoftmaxV2 "
    "SoftmaxCrossEntropyWithLogits Gelu FastGelu Swish LeakyRelu ClipByValue L2Loss".split()
)
"""Types that a pass gives to a part of the graph which it replaces as a whole."""

_SAME_TYPE = {
    "MatMulV2": "MatMul",
    "BatchMatMulV2": "BatchMatMul",
    "AddV2": "Add",
    "SoftmaxV2": "Softmax",
    "Conv": "Conv2D",
    "convolution": "Conv2D",
    "add": "Add",
    "mul": "Mul",
    "sub": "Sub",
    "truediv": "RealDiv",
}
"""GE's newer names, ONNX's, and what TensorFlow calls operators that Python's own make, of what is the same here."""

_NUMBERED = re.compile(r"_\d+\Z", re.ASCII)

Disturbed = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Step:
    """One definition, and how many operands it takes beside the result of the step before it."""

    type: str
    definition: Definition
    takes: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """Definitions that work on each other's results."""

    steps: tuple[Step, ...]

    @property
    def last(self) -> Definition:
        return self.steps[-1].definition

    def readings(self, operands: Sequence[Operand], setting: Setting) -> Sequence[Setting]:
        """What the graph may mean that does not tell all."""
        head = self.steps[0]
        told = head.definition.readings
        return [setting] if told is None else told(operands[: head.takes], setting)

    @property
    def rule(self) -> Rule:
        exact = all(step.definition.rule is Rule.EXACT for step in self.steps)
        return Rule.EXACT if exact else Rule.ROUNDED

    @property
    def multiplies(self) -> bool:
        return any(step.definition.multiplies for step in self.steps)

    def __str__(self) -> str:
        return "+".join(step.type for step in self.steps)


def recipe_of(operator: Operator, operands: int) -> Recipe:
    """How an operator is computed of so many operands; CannotReplayError if that is not known."""
    chain, kind = _chain(operator), operator.type
    if chain:
        return _fused(chain, operands)
    definition = DEFINITIONS.get(kind)
    if definition is None:
        raise CannotReplayError(f"no definition of {kind}")
    if operands < definition.least:
        raise CannotReplayError(f"{_operands(definition.least)} of {kind} are needed, the dump has {operands}")
    if definition.most is not None and operands > definition.most:
        raise CannotReplayError(f"no definition of {kind} with {_operands(operands)}")
    return Recipe((Step(kind, definition, operands),))


def run_recipe(
    recipe: Recipe, operands: Sequence[Operand], setting: Setting, *, between: Disturbed = lambda array: array
) -> Defined:
    """The results; `between` is done to what a step hands on to the next."""
    head, *followers = recipe.steps
    defined = head.definition.function(operands[: head.takes], setting)
    left = operands[head.takes :]
    for step in followers:
        result, length = defined.results[0], defined.length
        assert result is not None, "what is fused behind others has a result to work on"
        form = setting.results[0]
        handed = Operand(between(result), form.dtype, form.layout if len(form.layout) == result.ndim else "ND")
        following = step.definition.function([handed, *left[: step.takes]], setting)
        defined = Defined(following.results, max(length, following.length))
        left = left[step.takes :]
    return defined


def _fused(kinds: Sequence[str], operands: int) -> Recipe:
    head, *followers = kinds
    unknown = [kind for kind in kinds if kind not in DEFINITIONS]
    unknown += [kind for kind in followers if kind not in FOLLOWERS and kind not in unknown]
    if unknown:
        raise CannotReplayError(f"no definition of {'+'.join(kinds)}")
    steps = [Step(head, DEFINITIONS[head], DEFINITIONS[head].least)]
    steps += [Step(kind, DEFINITIONS[kind], DEFINITIONS[kind].least - 1) for kind in followers]
    needed = sum(step.takes for step in steps)
    if needed != operands:
        raise CannotReplayError(f"{_operands(needed)} of {'+'.join(kinds)} are needed, the dump has {operands}")
    return Recipe(tuple(steps))


def _chain(operator: Operator) -> list[str]:
    """The types of the operators that it stands for, if it is the first of them with others behind it."""
    originals = list(dict.fromkeys(operator.originals or ()))
    kinds = [_type_of(name) for name in originals]
    own = _SAME_TYPE.get(operator.type, operator.type)
    if len(kinds) < 2:
        return []
    told = next((desc.origin.name for desc in operator.outputs if desc.origin is not None), "")
    if operator.type in WHOLES and kinds[0] != own and _type_of(told or originals[-1]) not in ACTIVATIONS:
        return []
    if own not in kinds:
        # Without scopes, so that all layers of a network have one reason.
        names = ", ".join(name.rpartition("/")[2] for name in originals)
        raise CannotReplayError(f"which operators it stands for is not known: {names}")
    if kinds[0] != own or told not in ("", originals[-1]):
        raise CannotReplayError("the order of its original operators is not known")
    return kinds


def _type_of(original: str) -> str:
    """TensorFlow and ONNX call operators by their types: conv1/BiasAdd_1."""
    kind = _NUMBERED.sub("", original.rpartition("/")[2])
    return _SAME_TYPE.get(kind, kind)


def _operands(number: int) -> str:
    return "1 operand" if number == 1 else f"{number} operands"


DEFINITIONS: Definitions = elementwise.DEFINITIONS | windows.DEFINITIONS | reductions.DEFINITIONS | moving.DEFINITIONS
