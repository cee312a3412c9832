"""Loops over a run of pairs, written in LLVM's instructions on vectors of eight float32.

numpy adds up a run of up to 128 numbers in eight lanes: number i goes to lane i % 8, and at the end the lanes are added
up in pairs. numba leaves such a loop without vectors, and may not reorder float32 sums to make some. Here each pair is
read once, and all that is computed of it stays in registers.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg"

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from ulpscope.numerics.pairs.msaccucmp.plain import (
    EPSILON,
    FLOOR,
    GOLDEN_LOW,
    GOLDEN_SCALE,
    GOLDEN_WIDTH,
    MY_LOW,
    MY_SCALE,
    MY_WIDTH,
)

LANES = 8

_TRIPLE, _, _FEATURES = cpu_target.target_context.codegen().magic_tuple()
_IS_ARM = _TRIPLE.startswith(("aarch64", "arm64"))
_FUSED = _IS_ARM or "+fma" in _FEATURES
"""Whether the processor multiplies and adds with one rounding."""
if not _IS_ARM and "+f16c" not in _FEATURES:
    raise ImportError("a processor without float16: LLVM would call a function for it that numba does not have")

_NUMBER, _PLACE, _WORD = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR, _WORDS = ir.VectorType(_NUMBER, LANES), ir.VectorType(_WORD, LANES)

DIVISORS = (MY_WIDTH, GOLDEN_WIDTH, MY_SCALE, GOLDEN_SCALE)
INVERSES = 6
"""Where a plan goes on with the inverse of each divisor, as two numbers that add up to it."""
PLANNED = INVERSES + 2 * len(DIVISORS)
LEAST, MOST = 2.0**-60, 2.0**60
"""Divisors for which nothing that a quick division computes leaves the range of normal numbers."""

Vector = Any
"""A value of LLVM's: eight float32."""
Terms = Callable[["Lanes", Vector, Vector], Sequence[Vector]]
"""What is computed of eight pairs."""


class Lanes:
    """Writes instructions that work on eight float32 side by side."""

    def __init__(self, builder: Any, plan: Any = None) -> None:
        self.builder = builder
        # Here, before any loop: LLVM cannot know that what a loop stores does not change the plan.
        self._plan = [] if plan is None else [self._everywhere(plan, slot) for slot in range(PLANNED)]

    def load(self, address: Any, index: Any, kind: Any = _VECTOR, *, size: int = 4) -> Any:
        """`size`: bytes of an element. Elements may lie anywhere."""
        return self.builder.load(self._pointer(address, index, kind, size), align=1)

    def store(self, vector: Any, address: Any, index: Any) -> None:
        self.builder.store(vector, self._pointer(address, index, vector.type, 4), align=1)

    def _pointer(self, address: Any, index: Any, kind: Any, size: int) -> Any:
        place = self.builder.add(address, self.builder.mul(index, _PLACE(size)))
        return self.builder.inttoptr(place, kind.as_pointer())

    def constant(self, number: float) -> Vector:
        return ir.Constant(_VECTOR, [float(np.float32(number))] * LANES)

    def planned(self, slot: int) -> Vector:
        """A number of the plan, in all lanes."""
        return self._plan[slot]

    def _everywhere(self, plan: Any, slot: int) -> Vector:
        single = self.load(plan, _PLACE(slot), _NUMBER)
        nothing = ir.Constant(_VECTOR, ir.Undefined)
        first = self.builder.insert_element(nothing, single, _WORD(0))
        return self.builder.shuffle_vector(first, nothing, _places([0] * LANES))

    def size(self, numbers: Vector) -> Vector:
        return self.call("fabs", numbers)

    def call(self, name: str, *numbers: Vector) -> Vector:
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(numbers))
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}.v{LANES}f32")
        return self.builder.call(function, numbers)

    def share(self, numbers: Vector, low: int, width: int) -> Vector:
        """As msaccucmp_plain._share."""
        mapped = self.divided(self.builder.fsub(numbers, self.planned(low)), width)
        constant = self.builder.fcmp_ordered("==", self.planned(width), self.constant(0.0))
        return self.raised(self.builder.select(constant, numbers, mapped))

    def divided(self, numbers: Vector, slot: int) -> Vector:
        """By a number of the plan."""
        return self.builder.fdiv(numbers, self.planned(slot))

    def raised(self, shares: Vector) -> Vector:
        floor = self.constant(float(FLOOR))
        return self.builder.select(self.builder.fcmp_ordered("<", shares, floor), floor, shares)

    def larger(self, known: Any, numbers: Vector) -> Any:
        """Of numbers that are not negative by their bits, which are ordered as they are, nan above all."""
        words = self.builder.bitcast(numbers, _WORDS)
        return self.builder.select(self.builder.icmp_signed(">", words, known), words, known)

    def add_neighbours(self, one: Vector, other: Vector) -> Vector:
        sides = [self.builder.shuffle_vector(one, other, _places(range(first, 2 * LANES, 2))) for first in (0, 1)]
        return self.builder.fadd(*sides)


class QuickLanes(Lanes):
    """Divides by a number that is known beforehand without the processor's divider, which takes several times as long:
    with the inverse in two parts the quotient is right but for one unit in its last place, and Markstein's correction
    by the remainder, which is exact, rounds it as division does. Not so near the ends of float32's range."""

    def share(self, numbers: Vector, low: int, width: int) -> Vector:
        return self.raised(self.divided(self.builder.fsub(numbers, self.planned(low)), width))

    def divided(self, numbers: Vector, slot: int) -> Vector:
        place = INVERSES + 2 * DIVISORS.index(slot)
        inverse, more = self.planned(place), self.planned(place + 1)
        quotient = self.call("fma", numbers, inverse, self.builder.fmul(numbers, more))
        remainder = self.call("fma", self.builder.fneg(quotient), self.planned(slot), numbers)
        return self.call("fma", remainder, inverse, quotient)


def _places(numbers: Any) -> Any:
    return ir.Constant(ir.VectorType(_WORD, LANES), [_WORD(number) for number in numbers])


def pair_terms(lanes: Lanes, x: Vector, y: Vector) -> Sequence[Vector]:
    """As msaccucmp_plain.sums."""
    builder = lanes.builder
    apart = lanes.size(builder.fsub(x, y))
    ratio = lanes.size(builder.fsub(builder.fdiv(x, y), lanes.constant(1.0)))
    counted = builder.fcmp_ordered(">", lanes.size(y), lanes.constant(EPSILON))
    scaled = builder.fdiv(x, lanes.planned(MY_SCALE)), builder.fdiv(y, lanes.planned(GOLDEN_SCALE))
    return (
        apart,
        builder.fmul(apart, apart),
        builder.fmul(y, y),
        builder.select(counted, ratio, lanes.constant(0.0)),
        builder.fmul(*scaled),
        lanes.share(x, MY_LOW, MY_WIDTH),
        lanes.share(y, GOLDEN_LOW, GOLDEN_WIDTH),
    )


def ratio_terms(lanes: Lanes, x: Vector, y: Vector) -> Sequence[Vector]:
    """Shares of my side, and their ratio to golden's."""
    p = lanes.divided(lanes.share(x, MY_LOW, MY_WIDTH), MY_SCALE)
    q = lanes.divided(lanes.share(y, GOLDEN_LOW, GOLDEN_WIDTH), GOLDEN_SCALE)
    return p, lanes.builder.fdiv(p, q)


def product_terms(lanes: Lanes, x: Vector, y: Vector) -> Sequence[Vector]:
    return (lanes.builder.fmul(x, y),)


def sum_of(terms: Terms, kind: type[Lanes], tops: Sequence[int]) -> Callable[..., Any]:
    """Adds up the terms of a run of whole vectors in lanes, and the lanes; keeps the largest of those terms that are in
    `tops`, by lane."""

    @intrinsic
    def add_up(context, my, golden, count, plan, largest, sums):
        def generate(context, builder, signature, arguments):
            my, golden, count, plan, largest, sums = arguments
            lanes = kind(builder, plan)
            first = terms(lanes, lanes.load(my, _PLACE(0)), lanes.load(golden, _PLACE(0)))
            totals = [cgutils.alloca_once_value(builder, term) for term in first]
            known = [lanes.load(largest, _PLACE(LANES * place), _WORDS) for place in range(len(tops))]
            keys = [
                cgutils.alloca_once_value(builder, lanes.larger(key, first[top]))
                for key, top in zip(known, tops, strict=True)
            ]
            with cgutils.for_range_slice(builder, _PLACE(LANES), count, _PLACE(LANES), intp=_PLACE) as (place, _):
                found = terms(lanes, lanes.load(my, place), lanes.load(golden, place))
                for total, term in zip(totals, found, strict=True):
                    builder.store(builder.fadd(builder.load(total), term), total)
                for key, top in zip(keys, tops, strict=True):
                    builder.store(lanes.larger(builder.load(key), found[top]), key)
            for number, key in enumerate(keys):
                lanes.store(builder.load(key), largest, _PLACE(LANES * number))
            lanes.store(_across(lanes, [builder.load(total) for total in totals]), sums, _PLACE(0))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), generate

    return add_up


def _across(lanes: Lanes, totals: list[Vector]) -> Vector:
    """The sum of the lanes of each: as numpy adds them, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))."""
    totals += [lanes.constant(0.0)] * (LANES - len(totals))
    while len(totals) > 1:
        totals = [lanes.add_neighbours(*totals[place : place + 2]) for place in range(0, len(totals), 2)]
    return totals[0]


def rows_of(terms: Terms, kind: type[Lanes]) -> Callable[..., Any]:
    """Stores the terms of a run of whole vectors, each in a row of its own."""

    @intrinsic
    def store(context, my, golden, count, plan, rows, stride):
        def generate(context, builder, signature, arguments):
            my, golden, count, plan, rows, stride = arguments
            lanes = kind(builder, plan)
            with cgutils.for_range_slice(builder, _PLACE(0), count, _PLACE(LANES), intp=_PLACE) as (place, _):
                found = terms(lanes, lanes.load(my, place), lanes.load(golden, place))
                for number, term in enumerate(found):
                    lanes.store(term, rows, builder.add(place, builder.mul(stride, _PLACE(number))))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), generate

    return store


def _widening(widen: Callable[[Any, Any], Vector], element: Any) -> Callable[..., Any]:
    """Stores a run of whole vectors of 16-bit elements as float32."""

    @intrinsic
    def store(context, source, count, target):
        def generate(context, builder, signature, arguments):
            source, count, target = arguments
            lanes, kind = Lanes(builder), ir.VectorType(element, LANES)
            with cgutils.for_range_slice(builder, _PLACE(0), count, _PLACE(LANES), intp=_PLACE) as (place, _):
                lanes.store(widen(builder, lanes.load(source, place, kind, size=2)), target, place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return store


def _bfloat16(builder: Any, elements: Any) -> Vector:
    words = builder.shl(builder.zext(elements, _WORDS), ir.Constant(_WORDS, [_WORD(16)] * LANES))
    return builder.bitcast(words, _VECTOR)


widen_float16 = _widening(lambda builder, elements: builder.fpext(elements, _VECTOR), ir.HalfType())
widen_bfloat16 = _widening(_bfloat16, ir.IntType(16))


BestLanes = QuickLanes if _FUSED else Lanes
"""What serves for divisors from LEAST to MOST."""
