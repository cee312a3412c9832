"""Walks the entries of a step in the order in which they ended, and notes which call used which value as what.

Which argument a gradient of a backward entry belongs to, its shape tells: msprobe writes gradients without a name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ulpscope.dialects.msprobe.arguments import Found, encode, encode_arguments, places, returned_value
from ulpscope.dialects.msprobe.entry_names import Direction, backward_name, forward_name
from ulpscope.dialects.msprobe.identity import Values, without_checksum, wrong_field
from ulpscope.dialects.msprobe.json_files import bad_field, bad_file, shortened
from ulpscope.dialects.msprobe.structure import PlannedCall
from ulpscope.records.enums import Role
from ulpscope.records.errors import TraceError

UseRow: TypeAlias = tuple[int, str, str, int]
"""Call, role, place and value."""

LISTS = ("input_args", "input", "output")
OBJECTS = ("input_kwargs", "parameters")

INPUT, OUTPUT, PARAMETER = Role.INPUT.value, Role.OUTPUT.value, Role.PARAMETER.value
GRAD_OUTPUT, GRAD_INPUT, GRADIENT = Role.GRAD_OUTPUT.value, Role.GRAD_INPUT.value, Role.GRADIENT.value


class EntryReader:
    """Reads the entries of one step."""

    def __init__(self, calls: Mapping[str, PlannedCall], ids: Mapping[str, int], values: Values) -> None:
        self.uses: list[UseRow] = []
        self.arguments: dict[str, str] = {}
        self._calls = calls
        self._ids = ids
        self._values = values
        self._given: dict[str, Found] = {}

    def read(self, path: Path, data: Mapping[str, Any]) -> None:
        for entry, content in data.items():
            try:
                self._read_entry(entry, content)
            except (TypeError, AttributeError, KeyError, ValueError) as error:
                raise _diagnosed(path, entry, content, error) from error

    def _read_entry(self, entry: str, content: dict[str, Any]) -> None:
        call = self._calls.get(entry)
        if call is None:
            self._read_gradients(entry, content)
        elif call.parsed.direction is Direction.BACKWARD:
            self._read_backward(entry, call, content)
        elif call.parsed.direction is Direction.DEBUG:
            self._read_saved(entry, content)
        else:
            self._read_forward(entry, call, content)

    def _read_forward(self, entry: str, call: PlannedCall, content: dict[str, Any]) -> None:
        number, args, output = self._ids[entry], content.get("input_args", []), content.get("output", [])
        if type(args) is not list or type(output) is not list:
            raise TypeError("arguments or output")
        extra = {"is_nan": content["is_nan"]} if "is_nan" in content else {}
        if len(output) == 1 and (returned := returned_value(output[0])) is not None:
            extra["returned"] = returned
        self.arguments[entry], given = encode_arguments(args, content.get("input_kwargs"), extra)
        self._given[entry] = given
        read = self._values.read
        if writes := call.parsed.writes:
            given = [(place, without_checksum(tensor) if place in writes else tensor) for place, tensor in given]
        self.uses += [(number, INPUT, place, read(tensor, entry)) for place, tensor in given]
        if "parameters" in content:
            owned = _found(content["parameters"])
            self.uses += [(number, PARAMETER, place, read(tensor, entry)) for place, tensor in owned]
        self._add_made(call, OUTPUT, _listed(output, places("output", len(output))))

    def _read_backward(self, entry: str, call: PlannedCall, content: dict[str, Any]) -> None:
        number, gradients = self._ids[entry], content.get("output", [])
        received = content.get("input", [])
        for place, tensor in _listed(received, places("output", len(received))):
            self.uses.append((number, GRAD_OUTPUT, place, self._values.read(tensor, entry)))
        given = self._given.get(forward_name(entry), [])
        self._add_made(call, GRAD_INPUT, _listed(gradients, gradient_places(gradients, given)))

    def _read_gradients(self, entry: str, content: dict[str, Any]) -> None:
        call = self._calls[backward_name(entry)]
        for name, item in content.items():
            self._add_made(call, GRADIENT, _listed(item, [name] * len(item)))

    def _read_saved(self, entry: str, content: Any) -> None:
        if isinstance(content, dict) and not ("dtype" in content and "shape" in content):
            found = _found({f"output.{name}": item for name, item in content.items()})
        else:
            found = _listed([content], ["output.0"])
        number = self._ids[entry]
        self.uses += [(number, OUTPUT, place, self._values.read(tensor, entry)) for place, tensor in found]

    def _add_made(self, call: PlannedCall, role: str, found: Found) -> None:
        number, entry = self._ids[call.entry], call.entry
        made = self._values.handed_on if call.parsed.is_module else self._values.made
        self.uses += [(number, role, place, made(tensor, entry, number)) for place, tensor in found]


def _found(named: dict[str, Any]) -> Found:
    found: Found = []
    for name, item in named.items():
        encode(item, name, found)
    return found


def _listed(items: list[Any], places: Sequence[str]) -> Found:
    found: Found = []
    for item, place in zip(items, places, strict=True):
        if item is not None:
            encode(item, place, found)
    return found


def _diagnosed(path: Path, entry: str, content: Any, error: Exception) -> TraceError:
    """Reading does not check what it takes; when it fails, this finds the field that was wrong."""
    if not isinstance(content, dict):
        return bad_field(path, shortened(entry), content, "an object")
    for name, wanted in [*((name, list) for name in LISTS), *((name, dict) for name in OBJECTS)]:
        if not isinstance(content.get(name, wanted()), wanted):
            return bad_field(path, f"{name} of {shortened(entry)}", content[name], f"a {wanted.__name__}")
    for place, tensor in _found(content):
        wrong = wrong_field(tensor)
        if wrong is not None:
            return bad_field(path, f"{place}.{wrong[0]} of {shortened(entry)}", wrong[1], wrong[2])
    return bad_file(path, f"entry {shortened(entry)} cannot be read: {error}")


def gradient_places(gradients: Sequence[Any], given: Found) -> list[str]:
    """Places for the gradients that a backward returned, from the tensors that its forward was given.

    Gradients have the shape of their argument, and stand in the order of the tensor arguments or of those that require
    a gradient. Of a call that is several autograd nodes msprobe sees the last one only: what fits no argument is a
    gradient inside the call, and its place is `node.i`.
    """
    if not given:
        return [f"args.{index}" for index in range(len(gradients))]
    shapes = [item.get("shape") if isinstance(item, dict) else None for item in gradients]
    requiring = [(place, tensor) for place, tensor in given if tensor.get("requires_grad") is True]
    for candidates in (given, requiring):
        if len(candidates) == len(shapes) and _fit(shapes, candidates):
            return [place for place, _ in candidates]
    return _by_shape(shapes, given)


def _fit(shapes: Sequence[Any], candidates: Found) -> bool:
    return all(shape is None or shape == tensor["shape"] for shape, (_, tensor) in zip(shapes, candidates, strict=True))


def _by_shape(shapes: Sequence[Any], given: Found) -> list[str]:
    """The argument of the same shape, where there is one such gradient and one such argument."""
    places = []
    for index, shape in enumerate(shapes):
        alike = [place for place, tensor in given if tensor["shape"] == shape]
        alone = shape is not None and len(alike) == 1 and shapes.count(shape) == 1
        places.append(alike[0] if alone else f"node.{index}")
    return places
