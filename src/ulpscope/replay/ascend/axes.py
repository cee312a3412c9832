"""The axes of pictures: bringing operands into one order, and a vector of channels to its axis."""

from dataclasses import replace

from ulpscope.numerics.layouts.orders import IMAGES, VOLUMES
from ulpscope.replay.ascend.defining import Array, Operand, Setting
from ulpscope.replay.recorded import CannotReplayError

VECTOR = "C"


def in_order(operand: Operand, layout: str) -> Array:
    """A picture or weight in another order of its axes."""
    return permuted(operand.array, operand.layout, layout)


def permuted(array: Array, source: str, target: str) -> Array:
    if source == target or {source, target} & {"ND", ""}:
        return array
    same = any(source in family and target in family for family in (IMAGES, VOLUMES))
    if not same or array.ndim != len(source):
        raise CannotReplayError(f"a tensor with {array.ndim} axes is {source}, which is not {target}")
    return array.transpose([source.index(axis) for axis in target])


def picture_layout(operand: Operand, setting: Setting) -> str:
    """The order of a picture's axes."""
    if operand.array.ndim == len(operand.layout) and "C" in operand.layout:
        return operand.layout
    told = setting.attributes.get("data_format")
    if isinstance(told, str) and operand.array.ndim == len(told):
        return told
    raise CannotReplayError("the order of its axes is not known")


def as_picture(operand: Operand, setting: Setting) -> Operand:
    """The operand with names of its axes."""
    return replace(operand, layout=picture_layout(operand, setting))


def as_result(picture: Array, like: Operand, setting: Setting) -> Array:
    """An NHWC picture in the order of the device's result, which is its operand's if nothing else is told."""
    layout = setting.results[0].layout
    return permuted(picture, "NHWC", layout if len(layout) == 4 else like.layout)


def channel_axis(operand: Operand, setting: Setting) -> int:
    """Where the channels of an operand are; its axes have names if it is a picture or a volume."""
    rank = operand.array.ndim
    if rank in (4, 5):
        return picture_layout(operand, setting).index("C")
    first = rank > 2 and setting.text("data_format", "NHWC").startswith("NC")
    return 1 if first else rank - 1


def along(vector: Array, axis: int, rank: int) -> Array:
    """A vector, shaped so that it is spread over all other axes."""
    return vector.reshape([-1 if place == axis else 1 for place in range(rank)])
