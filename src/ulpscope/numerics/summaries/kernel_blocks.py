"""What the compiled kernels share: how they are compiled, and how a value's blocks are read.

A value is given by address and count. Its blocks are read where they lie; the last one, and all of them if their words
are not aligned, are copied to scratch memory first.

Loops run over a block while it lies in the first-level cache, and are written so that LLVM vectorises them: hence the
casts (numba widens sums of small integers to 64 bits, and half the speed is gone) and the slices (an index that might
be negative costs a gather).

Of a block there are the digest (the sum of each column, then all of them mixed), and the sums and the sketch: over a
column's 16 rows in the numbers' own type, beyond that in float64.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from ulpscope.numerics.machine_code import by_numba
from ulpscope.numerics.summaries import constants
from ulpscope.numerics.summaries.digest import count_up, digest_keys, weyl
from ulpscope.numerics.summaries.sketch import sum_signs

BLOCK = constants.BLOCK_ELEMENTS
ROWS = constants.BLOCK_ROWS
SUMS = constants.SKETCH_LENGTH
WIDTH = constants.ROW_ELEMENTS
# Loops over a row run on into the next one, to a whole number of vectors; what they find there is dropped.
LANES = 128
PADDED = BLOCK + LANES - WIDTH

GAMMA = np.uint64(constants.SPLITMIX_GAMMA)
_MUL_1 = np.uint64(constants.SPLITMIX_MUL_1)
_MUL_2 = np.uint64(constants.SPLITMIX_MUL_2)

compiled, kernel = by_numba(kept=False), by_numba(kept=True)


@compiled
def mix(word):
    word = (word ^ (word >> np.uint64(30))) * _MUL_1
    word = (word ^ (word >> np.uint64(27))) * _MUL_2
    return word ^ (word >> np.uint64(31))


@intrinsic
def _pointer(context, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@intrinsic
def copy(context, target, source, size):
    def generate(context, builder, signature, arguments):
        byte = context.get_value_type(types.voidptr)
        ends = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memcpy(builder, *ends, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@compiled
def elements_at(address, count, dtype):
    return numba.carray(_pointer(address), (count,), dtype)


@compiled
def read_block(address, flat, block, scratch):
    """A block and some elements behind it: the value's own memory if all of that may be read, else a copy and zeros."""
    start = block * BLOCK
    size = scratch.itemsize
    if start + PADDED <= flat.size and address % (2 * size) == 0:
        return flat[start : start + PADDED]
    n = min(flat.size - start, BLOCK)
    copy(scratch.ctypes.data, address + start * size, n * size)
    scratch[n:] = 0
    return scratch


COLUMNS = LANES // 2
_KEYS = digest_keys(4 * ROWS).copy()
_WEYL = weyl(count_up(0, SUMS))


@compiled
def _sum_words(words, sums):
    """One word a pair."""
    for c in range(COLUMNS):
        total = np.int64(0)
        for r in range(ROWS):
            total += _KEYS[r] * np.int64(words[r * SUMS + c])
        sums[c] = total


@compiled
def sum_bytes(block, sums):
    _sum_words(block.view(np.int16), sums)


@compiled
def sum_halves(block, sums):
    _sum_words(block.view(np.int32), sums)


@compiled
def sum_singles(block, sums):
    """Two words a pair, read as one of 64 bits."""
    words = block.view(np.int64)
    for c in range(COLUMNS):
        total = np.int64(0)
        for r in range(ROWS):
            word = words[r * SUMS + c]
            total += _KEYS[2 * r] * np.int64(np.int32(word)) + _KEYS[2 * r + 1] * (word >> np.int64(32))
        sums[c] = total


@compiled
def _add_elements(words, half, sums):
    for c in range(COLUMNS):
        total = np.int64(0)
        for r in range(ROWS):
            word = words[r * WIDTH + 2 * c + half]
            low, high = _KEYS[4 * r + 2 * half], _KEYS[4 * r + 2 * half + 1]
            total += low * np.int64(np.int32(word)) + high * (word >> np.int64(32))
        sums[c] += total


@compiled
def sum_doubles(block, sums):
    """Four words a pair, read as two of 64 bits."""
    sums[:] = 0
    _add_elements(block.view(np.int64), 0, sums)
    _add_elements(block.view(np.int64), 1, sums)


@compiled
def digest_part(sums, block):
    first = np.uint64(block * SUMS) * GAMMA
    total = np.uint64(0)
    for c in range(SUMS):
        total += mix(np.uint64(sums[c]) + first + _WEYL[c])
    return total


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
