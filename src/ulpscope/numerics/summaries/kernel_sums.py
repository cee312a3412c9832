"""Sums and sketch of a block, compiled: over a column's 16 rows in the numbers' own type, beyond that in float64."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import numpy as np

from ulpscope.numerics.summaries import constants
from ulpscope.numerics.summaries.kernel_blocks import BLOCK, GAMMA, LANES, ROWS, SUMS, WIDTH, compiled, mix
from ulpscope.numerics.summaries.sketch import sum_signs

_BLOCK_SALT = np.uint64(constants.BLOCK_SALT)
_ROTATION_MUL = np.uint64(constants.ROTATION_MUL)
_SUM_BITS = np.uint64((1 << SUMS) - 1)
_HALF = np.uint64(32)
_ONE = np.uint64(1)

# Each row of signs twice, one behind the other, so that a rotation is an offset.
_STRIDE = WIDTH + LANES
_SIGNS = np.zeros((ROWS, _STRIDE), dtype=np.float32)
_SIGNS[:, : 2 * WIDTH] = np.tile(sum_signs().reshape(ROWS, WIDTH), 2)
SIGNS_32 = _SIGNS.reshape(-1)
SIGNS_64 = SIGNS_32.astype(np.float64)


@compiled
def _four_rows(numbers, signs, e, group):
    i = e + 4 * group * WIDTH
    k = e + 4 * group * _STRIDE
    a, b, c, d = numbers[i], numbers[i + WIDTH], numbers[i + 2 * WIDTH], numbers[i + 3 * WIDTH]
    return (
        (a + b) + (c + d),
        (a * a + b * b) + (c * c + d * d),
        (abs(a) + abs(b)) + (abs(c) + abs(d)),
        (signs[k] * a + signs[k + _STRIDE] * b) + (signs[k + 2 * _STRIDE] * c + signs[k + 3 * _STRIDE] * d),
    )


@compiled
def _sum_columns(numbers, signs, turns, columns):
    """Of each lane over the 16 rows: the sum of numbers, of squares, of sizes, of signed numbers."""
    one, two, three = turns
    for e in range(LANES):
        total_0, squares_0, sizes_0, signed_0 = _four_rows(numbers, signs, e, 0)
        total_1, squares_1, sizes_1, signed_1 = _four_rows(numbers, signs, e, 1)
        total_2, squares_2, sizes_2, signed_2 = _four_rows(numbers, signs, e, 2)
        total_3, squares_3, sizes_3, signed_3 = _four_rows(numbers, signs, e, 3)
        columns[e] = (total_0 + total_1) + (total_2 + total_3)
        columns[e + LANES] = (squares_0 + squares_1) + (squares_2 + squares_3)
        columns[e + 2 * LANES] = (sizes_0 + sizes_1) + (sizes_2 + sizes_3)
        columns[e + 3 * LANES] = (signed_0 + one * signed_1) + (two * signed_2 + three * signed_3)


@compiled
def _add_columns(columns, row):
    total, squares, sizes = 0.0, 0.0, 0.0
    for e in range(WIDTH):
        total += columns[e]
        squares += columns[e + LANES]
        sizes += columns[e + 2 * LANES]
    row[constants.SUM] += total
    row[constants.SUM_SQUARES] += squares
    row[constants.ABS_SUM] += sizes


@compiled
def correct_squares(numbers, columns, row):
    """Puts squares made in float64 in the place of those of add_sums."""
    squares = 0.0
    for i in range(BLOCK):
        squares += np.float64(numbers[i]) * np.float64(numbers[i])
    for e in range(WIDTH):
        squares -= columns[e + LANES]
    row[constants.SUM_SQUARES] += squares


@compiled
def _turn(word, bit):
    return np.float32(1.0 - 2.0 * np.float64(np.int64((word >> np.uint64(bit)) & _ONE)))


@compiled
def _add_pairs(pairs, bits, rotation, sketch):
    turned = (bits >> np.uint64(rotation)) | (bits << np.uint64(SUMS - rotation))
    sums = sketch[rotation:]
    for c in range(SUMS):
        sign = 1.0 - 2.0 * np.float64(np.int64((turned >> np.uint64(c)) & _ONE))
        sums[c] += sign * (np.float64(pairs[2 * c]) + np.float64(pairs[2 * c + 1]))


@compiled
def add_sums(numbers, block, signs, columns, sketch, row):
    """sketch: 61 sums and, behind them, 61 places that belong to the same sums again."""
    word = mix(_BLOCK_SALT + np.uint64(block + 1) * GAMMA)
    rotation = np.int64((((word * _ROTATION_MUL) >> _HALF) * np.uint64(SUMS)) >> _HALF)
    one, two = _turn(word, SUMS), _turn(word, SUMS + 1)
    _sum_columns(numbers, signs[2 * rotation :], (one, two, one * two), columns)
    _add_columns(columns, row)
    _add_pairs(columns[3 * LANES :], word & _SUM_BITS, rotation, sketch)
