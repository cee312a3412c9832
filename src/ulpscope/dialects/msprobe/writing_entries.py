"""Entries of dump.json: the arguments, outputs, parameters and gradients of a call in msprobe's own form.

Max, Min, Mean and Norm are what torch itself would answer, made of a summary that leaves nan and inf aside.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ulpscope.dialects.msprobe.writing_names import Entry, Part
from ulpscope.records.calls import Call
from ulpscope.records.enums import Kind, Role
from ulpscope.records.values import Stats, Use, Value

Json: TypeAlias = Any


class TensorForm(Protocol):
    """Gives a value's own form, and saves its data under a name if the trace has it."""

    def __call__(self, value_id: int, name: str, *, requires_grad: bool | None = None) -> Json: ...


class EntryForm:
    """Makes the JSON of one entry from a call and its uses."""

    def __init__(self, entry: Entry, uses: Iterable[Use], tensor: TensorForm) -> None:
        self._entry = entry
        self._uses = list(uses)
        self._tensor = tensor

    def json(self, forward: Call | None) -> dict[str, Json]:
        """The entry; a backward needs its forward call, whose arguments give its gradients an order."""
        if self._entry.part is Part.PARAMETERS_GRAD:
            return self._parameters_grad()
        if self._entry.part is Part.BACKWARD:
            return self._backward(forward)
        return self._forward()

    def _forward(self) -> dict[str, Json]:
        call = self._entry.call
        inputs = self._places(Role.INPUT)
        args = [self._encode(item, f"input.{i}", inputs) for i, item in enumerate(call.arguments.get("args", []))]
        kwargs = call.arguments.get("kwargs", {})
        form: dict[str, Json] = {
            "input_args": args,
            "input_kwargs": {key: self._encode(item, f"input.{key}", inputs) for key, item in kwargs.items()},
            "output": self._outputs(call),
        }
        if call.kind in (Kind.MODULE, Kind.COMPILED):
            parameters = self._places(Role.PARAMETER)
            form["parameters"] = {name: self._leaf(value, f"parameters.{name}") for name, value in parameters.items()}
        return form

    def _outputs(self, call: Call) -> list[Json]:
        outputs = self._places(Role.OUTPUT)
        if not outputs and "returned" in call.arguments:
            return [self._encode(call.arguments["returned"], "output.0", {})]
        tree: dict[str, Any] = {}
        # A dictionary is the first and only output.
        above = [] if all(_below(place)[0].isdigit() for place in outputs) else ["0"]
        for place, value in outputs.items():
            path = [*above, *_below(place)]
            _branch(tree, path[:-1])[path[-1]] = self._leaf(value, ".".join(["output", *path]))
        form: list[Json] = _lists(tree)
        return form

    def _backward(self, forward: Call | None) -> dict[str, Json]:
        inputs = self._places(Role.GRAD_INPUT)
        places = [] if forward is None else _tensor_places(forward.arguments)
        leaving = [inputs.get(place) for place in places]
        return {
            "input": [self._gradient(value, f"input.{i}") for i, value in enumerate(self._arriving())],
            "output": [self._gradient(value, f"output.{i}") for i, value in enumerate(leaving)],
        }

    def _arriving(self) -> list[int | None]:
        """Gradients by the number of the output they belong to; those of nested outputs just in their order."""
        gradients = self._places(Role.GRAD_OUTPUT)
        numbers = [place.removeprefix("output.") for place in gradients]
        if not all(number.isdigit() for number in numbers):
            return list(gradients.values())
        return [gradients.get(f"output.{i}") for i in range(max(map(int, numbers), default=-1) + 1)]

    def _parameters_grad(self) -> dict[str, Json]:
        gradients = self._places(Role.GRADIENT)
        return {name: [self._gradient(value, name)] for name, value in gradients.items()}

    def _gradient(self, value: int | None, name: str) -> Json:
        return None if value is None else self._tensor(value, f"{self._entry.name}.{name}", requires_grad=False)

    def _leaf(self, value: int, name: str) -> Json:
        return self._tensor(value, f"{self._entry.name}.{name}")

    def _places(self, role: Role) -> dict[str, int]:
        return {use.place: use.value for use in self._uses if use.role is role}

    def _encode(self, item: Json, name: str, inputs: Mapping[str, int]) -> Json:
        if item is None:
            return None
        if isinstance(item, list):
            return [self._encode(part, f"{name}.{i}", inputs) for i, part in enumerate(item)]
        if not isinstance(item, dict):
            return {"type": type(item).__name__, "value": item}
        if "$tensor" in item:
            value = inputs.get(item["$tensor"])
            return None if value is None else self._leaf(value, name)
        if "$tuple" in item:
            return self._encode(item["$tuple"], name, inputs)
        if "$dict" in item:
            return {str(key): self._encode(part, f"{name}.{key}", inputs) for key, part in item["$dict"]}
        return _word(item)


def _branch(tree: dict[str, Any], path: list[str]) -> dict[str, Any]:
    for part in path:
        tree = tree.setdefault(part, {})
    return tree


def _lists(tree: Json) -> Json:
    """Numbered branches as lists, with null for what is no tensor; `type` marks a leaf."""
    if not isinstance(tree, dict) or "type" in tree:
        return tree
    if tree and not all(key.isdigit() for key in tree):
        return {key: _lists(part) for key, part in tree.items()}
    numbers = {int(key): _lists(part) for key, part in tree.items()}
    return [numbers.get(i) for i in range(max(numbers, default=-1) + 1)]


def _tensor_places(arguments: Json) -> list[str]:
    """Places of all tensors among a call's arguments, in their order."""
    if isinstance(arguments, list):
        return [place for item in arguments for place in _tensor_places(item)]
    if not isinstance(arguments, dict):
        return []
    if "$tensor" in arguments:
        return [arguments["$tensor"]]
    return [place for item in arguments.values() for place in _tensor_places(item)]


def _word(item: dict[str, Json]) -> Json:
    kind, content = next(iter(item.items()))
    if kind == "$float":
        return {"type": "float", "value": float(content)}
    if kind == "$size":
        return {"type": "torch.Size", "value": content}
    if kind == "$slice":
        return {"type": "slice", "value": [part if isinstance(part, int) else None for part in content]}
    if kind == "$ellipsis":
        return {"type": "ellipsis", "value": "..."}
    if kind == "$dtype":
        return {"type": "torch.dtype", "value": f"torch.{content}"}
    if kind == "$device":
        return {"type": "torch.device", "value": content}
    if kind == "$memory_format":
        return {"type": "torch.memory_format", "format": content}
    return {"type": kind.removeprefix("$"), "value": str(content)}


def _below(place: str) -> list[str]:
    """`output.0.x` without its first word; a place of one word, which no capture writes, is itself."""
    return place.split(".")[1:] or [place]


Number: TypeAlias = float | int | bool | None
Elements: TypeAlias = Callable[[], NDArray[Any] | None]

NUMBER_NAMES = ("Max", "Min", "Mean", "Norm")


def four_numbers(value: Value, elements: Elements) -> dict[str, Number]:
    """The four statistics of a tensor; null where msprobe has none or the trace cannot tell."""
    return dict(zip(NUMBER_NAMES, _numbers(value, elements), strict=True))


def _numbers(value: Value, elements: Elements) -> tuple[Number, Number, Number, Number]:
    stats = value.stats
    if stats is None or not value.initialized or 0 in value.shape:
        return None, None, None, None
    if value.dtype.startswith("complex"):
        return _of_complex(value, elements)
    if not value.dtype.startswith(("float", "bfloat")):
        return _of_whole(value, stats)
    return _of_float(value, stats, elements)


def _of_whole(value: Value, stats: Stats) -> tuple[Number, Number, Number, Number]:
    kind = bool if value.dtype == "bool" else int
    high = None if stats.max is None else kind(stats.max)
    low = None if stats.min is None else kind(stats.min)
    return (high, high, high, high) if value.shape == () else (high, low, None, None)


def _of_float(value: Value, stats: Stats, elements: Elements) -> tuple[Number, Number, Number, Number]:
    if stats.nan:
        return math.nan, math.nan, math.nan, math.nan
    high = math.inf if stats.pos_inf else -math.inf if stats.max is None else stats.max
    low = -math.inf if stats.neg_inf else math.inf if stats.min is None else stats.min
    if value.shape == ():
        return high, high, high, high
    return high, low, *_mean_and_norm(stats, elements)


def _mean_and_norm(stats: Stats, elements: Elements) -> tuple[Number, Number]:
    if stats.pos_inf or stats.neg_inf:
        both = stats.pos_inf and stats.neg_inf
        return math.nan if both else math.inf if stats.pos_inf else -math.inf, math.inf
    if not stats.set_aside:
        return stats.mean, stats.norm
    # Huge finite elements are not in our sums, but they are in torch's.
    data = elements()
    if data is None:
        return None, None
    wide = data.astype(np.float64)
    return float(wide.mean()), float(np.linalg.norm(wide))


def _of_complex(value: Value, elements: Elements) -> tuple[Number, Number, Number, Number]:
    data = elements()
    if data is None or value.shape == () or data.dtype.kind != "c":
        return None, None, None, None
    size = np.abs(data)
    return float(size.max()), float(size.min()), None, None
