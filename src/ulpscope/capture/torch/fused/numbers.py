"""Numbers that the kernels are compiled with: of numerics.constants, and those of one kind of element."""

from typing import NamedTuple

from ulpscope.numerics.summaries import constants
from ulpscope.numerics.summaries.digest import digest_keys

WARPS, JOIN_WARPS = 4, 32
"""Of a program that reads values, and of one that joins rows."""
BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INTEGER = range(5)
PARTIAL_LENGTH = 112
"""Of a partial row, in numbers: a row, filled up so that it begins at a border of 128 bytes."""


class Shape(NamedTuple):
    """How a kernel is launched."""

    depth: int
    """Blocks that a warp has under way."""
    programs: int
    """That a multiprocessor shall hold at once."""
    nothing_bytes: int
    warp_bytes: int

    @property
    def shared_bytes(self) -> int:
        return self.nothing_bytes + WARPS * self.warp_bytes


COUNTER_BYTES = constants.EXPONENT_BINS * 4


def shape_of(kind: int, item: int) -> Shape:
    block = constants.BLOCK_ELEMENTS * item
    depth = 2 if item <= 4 else 1
    return Shape(depth, 4 if item <= 2 else 3, block if kind == BFLOAT16 else 0, depth * block + COUNTER_BYTES)


def numbers_header(kind: int, item: int, signed: bool, smallest_normal: int) -> str:
    shape = shape_of(kind, item)
    whole = {
        "COLUMNS": constants.SKETCH_LENGTH,
        "BLOCK": constants.BLOCK_ELEMENTS,
        "BLOCK_ROWS": constants.BLOCK_ROWS,
        "BINS": constants.EXPONENT_BINS,
        "SET_ASIDE": constants.SET_ASIDE_EXPONENT,
        "ROW_LENGTH": constants.ROW_LENGTH,
        "PARTIAL_LENGTH": PARTIAL_LENGTH,
        "SLOT_MIN": constants.MIN,
        "SLOT_MAX": constants.MAX,
        "SLOT_SUM": constants.SUM,
        "SLOT_SQUARES": constants.SUM_SQUARES,
        "SLOT_ABS": constants.ABS_SUM,
        "SLOT_NAN": constants.NAN,
        "SLOT_SUBNORMAL": constants.SUBNORMAL,
        "SLOT_EXPONENTS": constants.EXPONENTS,
        "SLOT_SKETCH": constants.SKETCH,
        "SLOT_DIGEST": constants.DIGEST,
        "BFLOAT16": BFLOAT16,
        "FLOAT16": FLOAT16,
        "FLOAT32": FLOAT32,
        "FLOAT64": FLOAT64,
        "INTEGER": INTEGER,
        "KIND": kind,
        "ITEM": item,
        "SIGNED": int(signed),
        "WARPS": WARPS,
        "JOIN_WARPS": JOIN_WARPS,
        "DEPTH": shape.depth,
        "PROGRAMS": shape.programs,
        "NOTHING_BYTES": shape.nothing_bytes,
        "STAGE_BYTES": constants.BLOCK_ELEMENTS * item,
        "WARP_BYTES": shape.warp_bytes,
    }
    words = {
        "GAMMA": constants.SPLITMIX_GAMMA,
        "MUL_1": constants.SPLITMIX_MUL_1,
        "MUL_2": constants.SPLITMIX_MUL_2,
        "ROTATION_MUL": constants.ROTATION_MUL,
        "SUM_SALT": constants.SUM_SALT,
        "BLOCK_SALT": constants.BLOCK_SALT,
        "SMALLEST_NORMAL": smallest_normal,
        "INFINITY_32": 0x7F800000,
        "INFINITY_64": 0x7FF0000000000000,
    }
    keys = ", ".join(str(int(key)) for key in digest_keys(constants.BLOCK_ROWS * max(1, item // 2)))
    lines = [f"constexpr int {name} = {number};" for name, number in whole.items()]
    lines += [f"constexpr unsigned long long {name} = {number}ull;" for name, number in words.items()]
    lines += [
        # An ordinary lane's sum of squares: no number from 2**29 up, and none that matters whose square is subnormal.
        f"constexpr float SET_ASIDE_FROM = {2.0**constants.SET_ASIDE_EXPONENT!r}f;",
        f"constexpr float SQUARES_BELOW = {2.0 ** (2 * constants.SET_ASIDE_EXPONENT)!r}f;",
        f"constexpr float SQUARES_ABOVE = {2.0**-90!r}f;",
        f"static __device__ constexpr int KEYS[] = {{{keys}}};",
    ]
    return "\n".join(["#ifndef ULPSCOPE_NUMBERS", "#define ULPSCOPE_NUMBERS", *lines, "#endif", ""])
