"""Numbers of the kernels, as Triton wants them: of numerics.constants, and those that launching.py goes by."""
# mypy: ignore-errors

import triton.language as tl

from ulpscope.capture.torch.fused import launching
from ulpscope.numerics import constants
from ulpscope.numerics.digest import digest_keys

BFLOAT16: tl.constexpr = tl.constexpr(launching.BFLOAT16)
FLOAT16: tl.constexpr = tl.constexpr(launching.FLOAT16)
FLOAT32: tl.constexpr = tl.constexpr(launching.FLOAT32)
FLOAT64: tl.constexpr = tl.constexpr(launching.FLOAT64)
INTEGER: tl.constexpr = tl.constexpr(launching.INTEGER)
DENSE: tl.constexpr = tl.constexpr(launching.DENSE)
PAIRED: tl.constexpr = tl.constexpr(launching.PAIRED)
STRIDED: tl.constexpr = tl.constexpr(launching.STRIDED)
RUNS: tl.constexpr = tl.constexpr(launching.RUNS)
MANY_WARPS: tl.constexpr = tl.constexpr(launching.MANY_WARPS)
PARTIAL: tl.constexpr = tl.constexpr(launching.PARTIAL_LENGTH)
LINE: tl.constexpr = tl.constexpr(launching.LINE_LENGTH)

COLUMNS: tl.constexpr = tl.constexpr(constants.SKETCH_LENGTH)
BLOCK: tl.constexpr = tl.constexpr(constants.BLOCK_ELEMENTS)
BLOCK_ROWS: tl.constexpr = tl.constexpr(constants.BLOCK_ROWS)
PAIRS: tl.constexpr = tl.constexpr(constants.BLOCK_ELEMENTS // 2)
GAMMA: tl.constexpr = tl.constexpr(constants.SPLITMIX_GAMMA)
MUL_1: tl.constexpr = tl.constexpr(constants.SPLITMIX_MUL_1)
MUL_2: tl.constexpr = tl.constexpr(constants.SPLITMIX_MUL_2)
SUM_SALT: tl.constexpr = tl.constexpr(constants.SUM_SALT)
BLOCK_SALT: tl.constexpr = tl.constexpr(constants.BLOCK_SALT)
ROTATION_MUL: tl.constexpr = tl.constexpr(constants.ROTATION_MUL)
SET_ASIDE: tl.constexpr = tl.constexpr(constants.SET_ASIDE_EXPONENT)
KEYS: tl.constexpr = tl.constexpr(tuple(int(key) for key in digest_keys(constants.BLOCK_ROWS)))
BINS: tl.constexpr = tl.constexpr(constants.EXPONENT_BINS)

# Rows are int64 that hold the bits of float64; these are the slots of numerics.constants.
MIN: tl.constexpr = tl.constexpr(constants.MIN)
MAX: tl.constexpr = tl.constexpr(constants.MAX)
SUM: tl.constexpr = tl.constexpr(constants.SUM)
SQUARES: tl.constexpr = tl.constexpr(constants.SUM_SQUARES)
ABS: tl.constexpr = tl.constexpr(constants.ABS_SUM)
NAN: tl.constexpr = tl.constexpr(constants.NAN)
POS_INF: tl.constexpr = tl.constexpr(constants.POS_INF)
NEG_INF: tl.constexpr = tl.constexpr(constants.NEG_INF)
ASIDE: tl.constexpr = tl.constexpr(constants.SET_ASIDE)
ZERO: tl.constexpr = tl.constexpr(constants.ZERO)
SUBNORMAL: tl.constexpr = tl.constexpr(constants.SUBNORMAL)
EXPONENTS: tl.constexpr = tl.constexpr(constants.EXPONENTS)
SKETCH: tl.constexpr = tl.constexpr(constants.SKETCH)
DIGEST: tl.constexpr = tl.constexpr(constants.DIGEST)

# An ordinary lane's sum of squares: no number from 2**29 up, and none that matters whose square is subnormal.
SQUARES_BELOW: tl.constexpr = tl.constexpr(2.0 ** (2 * constants.SET_ASIDE_EXPONENT))
SQUARES_ABOVE: tl.constexpr = tl.constexpr(2.0**-90)
FLOAT16_NORMAL: tl.constexpr = tl.constexpr(2.0**-14)
EVEN_BYTES: tl.constexpr = tl.constexpr(0x00FF00FF00FF00FF)
INFINITY_32: tl.constexpr = tl.constexpr(0x7F800000)
INFINITY_64: tl.constexpr = tl.constexpr(0x7FF0000000000000)
