"""What a definition is: the operands of an operator, its attributes, and what it computes of them; and dumped tensors
as it needs them: in the network's order, with names of their axes, in high precision.

Floats come as float64 and integers as int64, in the order of the network, without the device's tiles and padding.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ulpscope.dialects.ascend.dump_file.records import DumpTensor
from ulpscope.dialects.ascend.logical import VECTOR, Logical, Preferred, logical_array, logical_form, logical_type
from ulpscope.numerics.dtypes import DTYPES, DtypeKind, Shape
from ulpscope.numerics.layouts import IMAGES, TILED, VOLUMES, is_plain, plain_layouts
from ulpscope.records.checks import Rule
from ulpscope.records.graphs import Attributes, AttributeValue, TensorDesc
from ulpscope.replay.recorded import CannotReplayError

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that an operator reads."""

    array: Array
    dtype: str
    layout: str
    """What its axes are: NHWC, NCHW, HWCN, C; ND where they have no names."""


Operands: TypeAlias = Sequence[Operand]


@dataclass(frozen=True, slots=True)
class Form:
    """What a result looks like on the device."""

    shape: Shape
    dtype: str
    layout: str


@dataclass(frozen=True, slots=True)
class Setting:
    """What an operator's result depends on beside its operands."""

    attributes: Attributes
    results: tuple[Form, ...]

    def integer(self, name: str, default: int | None = None) -> int:
        found = self._value(name, default)
        if isinstance(found, int):
            return int(found)
        raise self._unfit(name, found)

    def number(self, name: str, default: float | None = None) -> float:
        """In float32, which the compiler has; a graph as text may have fewer digits of it."""
        found = self._value(name, default)
        if isinstance(found, int | float):
            return float(np.float32(found))
        raise self._unfit(name, found)

    def flag(self, *names: str) -> bool:
        """Flags are false where a graph does not name them; those of older versions have other names."""
        return any(bool(self.attributes.get(name, False)) for name in names)

    def need(self, name: str, value: AttributeValue) -> None:
        """Make sure of an attribute that a definition knows with one value only, which it has if it is not told."""
        found = self.attributes.get(name, value)
        if found != value:
            raise self._unfit(name, found)

    def text(self, name: str, default: str | None = None) -> str:
        return str(self._value(name, default))

    def integers(self, name: str, default: Shape | None = None) -> Shape:
        """A list; a single number is a list of one."""
        found = self._value(name, default)
        listed = found if isinstance(found, tuple) else (found,)
        numbers = tuple([each for each in listed if isinstance(each, int)])
        if len(numbers) != len(listed):
            raise self._unfit(name, found)
        return numbers

    def rows(self, name: str) -> tuple[Shape, ...]:
        """A list of lists."""
        found = self._value(name, None)
        listed = found if isinstance(found, tuple) else ()
        rows = tuple(
            [tuple([each for each in row if isinstance(each, int)]) for row in listed if isinstance(row, tuple)]
        )
        if not rows or len(rows) != len(listed):
            raise self._unfit(name, found)
        return rows

    def expect(self, shape: Shape) -> None:
        """Make sure, before it is computed, that a result is as large as the device's: dumps may be damaged."""
        made = self.results[0].shape
        if math.prod(shape) != math.prod(made):
            raise unlike(made, shape)

    def _value(self, name: str, default: AttributeValue) -> AttributeValue:
        found = self.attributes.get(name)
        found = default if found is None else found
        if found is None:
            raise CannotReplayError(f"the graph does not tell its attribute {name}")
        return found

    @staticmethod
    def _unfit(name: str, found: object) -> CannotReplayError:
        return CannotReplayError(f"its attribute {name} is {found!r:.40}")


@dataclass(frozen=True, slots=True)
class Defined:
    """What an operator gives by its definition."""

    results: tuple[Array | None, ...]
    """None where the definition says nothing about one."""
    length: float = 1.0
    """How many products or summands an element is made of."""


Function: TypeAlias = Callable[[Operands, Setting], Defined]
Choice: TypeAlias = Callable[[Operands, Setting, Array], Array]
Readings: TypeAlias = Callable[[Operands, Setting], Sequence[Setting]]


@dataclass(frozen=True, slots=True)
class Definition:
    """What a type of operators computes."""

    function: Function
    least: int
    """Operands that it needs."""
    most: int | None = None
    """Operands that it takes; none: as many as there are."""
    rule: Rule = Rule.ROUNDED
    multiplies: bool = False
    """Whether it runs on the matrix unit, which may round float32 operands before it multiplies them."""
    chosen: Choice | None = None
    """Of results that are indices: the elements they point to, for equal ones may be chosen in any order."""
    readings: Readings | None = None
    """All settings that a graph leaves open which does not tell what the definition needs."""


Definitions: TypeAlias = dict[str, Definition]


def one(result: Array, *, length: float = 1.0) -> Defined:
    """A definition's only result."""
    return Defined((result,), length)


def unlike(made: Shape, defined: Shape) -> CannotReplayError:
    """Of a result that the device has in another shape."""
    return CannotReplayError(f"its output is {list(made)}, by its definition {list(defined)}")


def axis_of(number: int, rank: int) -> int:
    """An axis counted from the front."""
    axis = number + rank if number < 0 else number
    if not 0 <= axis < max(rank, 1):
        raise CannotReplayError(f"it has an axis {number} of a tensor with {rank}")
    return axis


def whole_numbers(operand: Operand) -> Shape:
    """An operand that holds axes, shapes or paddings."""
    if operand.array.dtype.kind not in "iu" or operand.array.size > np.iinfo(np.int16).max:
        raise CannotReplayError(f"an operand that should be a list of whole numbers is {operand.dtype}")
    return tuple([int(each) for each in operand.array.ravel()])


def numbers_of(operands: Operands, place: int, setting: Setting, name: str) -> Shape:
    """Whole numbers that one version of an operator reads as an operand, and another has as an attribute."""
    return whole_numbers(operands[place]) if len(operands) > place else setting.integers(name)


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


def without_ones(shape: Shape) -> list[int]:
    return [size for size in shape if size != 1]


NO_NAMES = "ND"


@dataclass(frozen=True, slots=True)
class KnownTensor:
    """A dumped tensor whose order in the network is known."""

    tensor: DumpTensor
    logical: Logical
    form: Form

    def operand(self) -> Operand:
        """What a definition reads: floats as float64, integers as int64."""
        array = self.result()
        narrow = array.dtype.kind in "iu" and array.dtype.itemsize < 8
        return Operand(array.astype(np.int64) if narrow else array, self.form.dtype, self.form.layout)

    def result(self) -> Array:
        """What a definition's result is set against: floats as float64, all else in its own type."""
        array = logical_array(self.tensor, self.logical)
        return array.astype(np.float64) if DTYPES[self.form.dtype].kind is DtypeKind.FLOAT else array


def known_tensor(tensor: DumpTensor, desc: TensorDesc | None, preferred: Preferred) -> KnownTensor:
    """The graph's word on its order counts where it fits the dump; CannotReplayError if nothing is known."""
    logical = _told(tensor, desc) or logical_form(tensor, preferred)
    if logical.layout == tensor.format_name and not is_plain(logical.layout):
        raise CannotReplayError(f"its {tensor.side.value} is {tensor.format_name}, whose order is not known")
    if logical.guessed:
        told = f"{tensor.format_name} of {list(logical.shape)}, which may be {logical.layout} or another order"
        raise CannotReplayError(f"its {tensor.side.value} is {told}: neither graph nor dump tells")
    dtype = logical_type(tensor)
    if dtype not in DTYPES or DTYPES[dtype].kind is DtypeKind.COMPLEX:
        raise CannotReplayError(f"its {tensor.side.value} is {dtype}")
    return KnownTensor(tensor, logical, Form(logical.shape, dtype, _named_axes(logical, desc)))


def _told(tensor: DumpTensor, desc: TensorDesc | None) -> Logical | None:
    """What the graph says about a tensor in tiles."""
    if desc is None or desc.origin_layout is None or tensor.format_name not in TILED or tensor.shape is None:
        return None
    shape = tensor.original_shape or desc.origin_shape
    if not shape:
        return None
    fitting = plain_layouts(tensor.format_name, tensor.shape, shape, groups=tensor.groups)
    return Logical(shape, desc.origin_layout) if desc.origin_layout in fitting else None


def _named_axes(logical: Logical, desc: TensorDesc | None) -> str:
    """The dump's own word; a dump that says ND may be of a tensor whose axes the graph names."""
    if logical.layout == VECTOR:
        return VECTOR
    for layout in (logical.layout, "" if desc is None else desc.layout):
        if layout != NO_NAMES and is_plain(layout) and len(layout) == len(logical.shape):
            return layout
    return NO_NAMES
