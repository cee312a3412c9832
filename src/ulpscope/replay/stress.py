"""Longer sums: the same call with the axis over which it sums made longer, and all others shorter."""

from dataclasses import replace

from ulpscope.operations.registry import operation
from ulpscope.operations.traits import Family, Trait
from ulpscope.records.checks import Variant
from ulpscope.records.values import Value
from ulpscope.replay.recorded import Places, RecordedCall, find_repeated

LONG = 4096
"""How long sums become, if they are not longer already."""
# Rows and columns of a product, and rows of what is summed by itself: enough elements for a judgement, a few
# milliseconds even where a CPU has only slow kernels for float16.
SIDE = 24
ROWS = 16

Shape = tuple[int, ...]


def can_be_longer(recorded: RecordedCall) -> bool:
    """Whether the summed axis is known: the last one, and no shape stands in the arguments."""
    operands = ("args.0", "args.1") if _is_product(recorded) else ("args.0",)
    if Variant.LONG not in operation(recorded.call.op).stress or any(
        place not in recorded.inputs for place in operands
    ):
        return False
    if any(find_repeated(recorded.call.arguments)):
        return False
    shapes = [recorded.inputs[place].shape for place in operands]
    if any(len(shape) < 2 or 0 in shape for shape in shapes):
        return False
    return _is_product(recorded) or _sums_last(recorded)


def _is_product(recorded: RecordedCall) -> bool:
    return operation(recorded.call.op).family is Family.CONTRACTION


def longer(recorded: RecordedCall) -> tuple[Places, Places]:
    """Inputs and gradients of the call with longer sums."""
    if _is_product(recorded):
        return _longer_product(recorded)
    return _longer_sum(recorded)


def _longer_product(recorded: RecordedCall) -> tuple[Places, Places]:
    is_linear = operation(recorded.call.op).name == "linear"
    left, right = recorded.inputs["args.0"], recorded.inputs["args.1"]
    length = max(LONG, left.shape[-1])
    columns = min(right.shape[0 if is_linear else -1], SIDE)
    inputs = {
        **{place: _resized(value, (columns,)) for place, value in recorded.inputs.items() if len(value.shape) == 1},
        "args.0": _resized(left, (*_rows(left.shape[:-1], SIDE), length)),
        "args.1": _resized(right, (columns, length) if is_linear else (*_ones(right.shape[:-2]), length, columns)),
    }
    grads = {
        place: _resized(value, (*_rows(value.shape[:-1], SIDE), columns))
        for place, value in recorded.grad_outputs.items()
    }
    return {**recorded.inputs, **inputs}, grads


def _longer_sum(recorded: RecordedCall) -> tuple[Places, Places]:
    value = recorded.inputs["args.0"]
    rows, length = _rows(value.shape[:-1], ROWS), max(LONG, value.shape[-1])
    same_shape = operation(recorded.call.op).has(Trait.SHAPE_KEPT)

    def resized(grad: Value) -> Value:
        kept = len(grad.shape) == len(value.shape)
        return _resized(grad, (*rows, length if same_shape else 1) if kept else rows if grad.shape else ())

    grads = {place: resized(grad) for place, grad in recorded.grad_outputs.items()}
    return {**recorded.inputs, "args.0": _resized(value, (*rows, length))}, grads


def _rows(shape: Shape, most: int) -> Shape:
    """The last axis cut, those before it gone: size 1 goes with whatever they are combined with."""
    return (*_ones(shape[:-1]), min(shape[-1], most)) if shape else ()


def _ones(shape: Shape) -> Shape:
    return (1,) * len(shape)


def _sums_last(recorded: RecordedCall) -> bool:
    arguments = recorded.call.arguments
    args, kwargs = arguments.get("args", []), arguments.get("kwargs", {})
    given = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
    rank = len(recorded.inputs["args.0"].shape)
    if given is None:
        return operation(recorded.call.op).name in ("sum", "mean")
    last = [-1], [rank - 1]
    return given in (-1, rank - 1, *last, *({"$tuple": each} for each in last))


def _resized(value: Value, shape: Shape) -> Value:
    return replace(value, shape=shape, strides=())
