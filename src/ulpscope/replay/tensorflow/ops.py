"""An op as it was recorded, for TensorFlow to execute it again: its name, its operands in order, its attributes.

Nothing is evaluated: a name leads to TensorFlow's own list of ops and nowhere else, attributes are plain values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorflow.core.framework import types_pb2
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.dtypes import as_dtype

from ulpscope.operations.registry import Trait, operation
from ulpscope.replay.recorded import CannotReplayError, RecordedCall
from ulpscope.replay.tensorflow.tensors import raised, tf_dtype

PREFIX = "tf.raw_ops."

_WITHOUT_NUMBERS = {
    types_pb2.DT_RESOURCE: "it reads or writes a variable or another resource",
    types_pb2.DT_VARIANT: "it handles objects of TensorFlow's own",
    types_pb2.DT_STRING: "it handles texts",
}
Cast = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Op:
    """One op with its attributes."""

    word: str
    places: tuple[str, ...]
    """Of its operands, in their order."""
    attributes: Mapping[str, Any]
    dtypes: frozenset[str]
    """Attributes that are element types, or lists of them."""
    outputs: int

    def retyped(self, cast: Cast) -> "Op":
        """The same op on other element types."""
        changed = {name: _each(cast, value) for name, value in self.attributes.items() if name in self.dtypes}
        return replace(self, attributes={**self.attributes, **changed})

    def execute(self, inputs: list[Any]) -> list[Any]:
        """Run it; a tape that is open records it."""
        options = {name: _encoded(value, name in self.dtypes) for name, value in self.attributes.items()}
        attributes = tuple(item for pair in options.items() for item in pair)
        made = execute.execute(self.word, self.outputs, inputs=inputs, attrs=attributes, ctx=context.context())
        if execute.must_record_gradient():
            execute.record_gradient(self.word, inputs, attributes, made)
        return list(made)


def op_of(recorded: RecordedCall) -> Op:
    """The op behind a recorded call; a CannotReplayError says why there is none to execute."""
    name = recorded.call.op
    word = name.removeprefix(PREFIX)
    definition = op_def_registry.get(word) if name.startswith(PREFIX) else None
    if definition is None:
        raise CannotReplayError(f"this TensorFlow has no op {word}")
    reason = _why_not(name, definition)
    if reason is not None:
        raise CannotReplayError(reason)
    arguments = recorded.call.arguments
    attributes = _attributes(definition, arguments.get("kwargs", {}))
    places = tuple(_places(arguments.get("args", [])))
    wanted = tensor_count(definition.input_arg, attributes)
    if len(places) != wanted or any(place not in recorded.inputs for place in places):
        raise CannotReplayError("not all of its operands were recorded")
    kinds = frozenset(one.name for one in definition.attr if one.type in ("type", "list(type)"))
    op = Op(word, places, attributes, kinds, tensor_count(definition.output_arg, attributes))
    if operation(name).has(Trait.OF_OWN_DTYPE) and op.retyped(raised) != op:
        raise CannotReplayError("what it gives depends on which numbers its type has")
    return op


def _why_not(name: str, definition: Any) -> str | None:
    """What it is about an op that it cannot be executed again by itself."""
    if operation(name).has(Trait.RANDOM, Trait.DROPPING):
        return "random: what it draws has no exact result"
    used = (*definition.input_arg, *definition.output_arg)
    found = (_WITHOUT_NUMBERS[one.type] for one in used if one.type in _WITHOUT_NUMBERS)
    reason = next(found, None)
    if reason is not None:
        return reason
    if any(one.is_ref for one in used):
        return _WITHOUT_NUMBERS[types_pb2.DT_RESOURCE]
    if operation(name).has(Trait.REACHING_OUT) or definition.is_stateful:
        return "it keeps a state of its own, or reaches out"
    return None


def _places(encoded: list[Any]) -> list[str]:
    found: list[str] = []
    for item in encoded:
        if isinstance(item, list):
            found += _places(item)
        elif isinstance(item, dict) and "$tensor" in item:
            found.append(item["$tensor"])
        else:
            raise CannotReplayError("an operand is no tensor")
    return found


def _attributes(definition: Any, encoded: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for one in definition.attr:
        given = encoded.get(one.name)
        if given is not None:
            found[one.name] = _attribute(one, given)
        elif one.type == "tensor":
            raise CannotReplayError("it hands on a constant of the program")
        elif not one.HasField("default_value"):
            raise CannotReplayError(f"the trace does not tell its attribute {one.name}")
        elif (default := _default(one.default_value)) is not None:
            found[one.name] = default  # gradients ask for it, whoever left it out
    return found


def _default(given: Any) -> Any:
    """The value of an attribute that is left out; None where there is no plain one."""
    kind = given.WhichOneof("value")
    if kind == "list":
        return [_scalar(field.name, item) for field, items in given.list.ListFields() for item in items]
    return _scalar(kind, getattr(given, kind)) if kind in ("s", "i", "f", "b", "type") else None


def _scalar(kind: str, given: Any) -> Any:
    if kind == "type":
        return as_dtype(given)
    return given.decode(errors="replace") if kind == "s" else given


def _attribute(one: Any, given: Any) -> Any:
    kind = one.type.removeprefix("list(").removesuffix(")")
    if kind in ("func", "tensor"):
        raise CannotReplayError(f"its attribute {one.name} is a {'function' if kind == 'func' else 'constant'}")
    if one.type.startswith("list("):
        items = given["$tuple"] if isinstance(given, dict) and "$tuple" in given else given
        return [_plain(kind, item) for item in items]
    return _plain(kind, given)


def _plain(kind: str, given: Any) -> Any:
    if kind == "type" and isinstance(given, dict) and "$dtype" in given:
        return tf_dtype(given["$dtype"])
    if isinstance(given, dict) and "$float" in given:
        return float(given["$float"])
    if isinstance(given, dict):
        ((word, _), *_) = given.items()
        raise CannotReplayError(f"an attribute is a {word.removeprefix('$')}")
    return given


def tensor_count(arguments: Any, attributes: Mapping[str, Any]) -> int:
    """How many tensors an op takes or gives."""
    total = 0
    for one in arguments:
        if one.number_attr:
            total += int(attributes.get(one.number_attr, 1))
        elif one.type_list_attr:
            total += len(attributes.get(one.type_list_attr, ()))
        else:
            total += 1
    return total


def _each(cast: Cast, value: Any) -> Any:
    return [cast(one) for one in value] if isinstance(value, list) else cast(value)


def _encoded(value: Any, is_dtype: bool) -> Any:
    return _each(lambda one: one.as_datatype_enum, value) if is_dtype else value
