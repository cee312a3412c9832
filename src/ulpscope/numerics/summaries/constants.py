"""The frozen numbers of stats, sketch and digest; docs/trace-format.md states them for other readers.

A summary is made over blocks of consecutive elements in logical row-major order. A block is 16 rows of 61 pairs: 61 is
prime, so that one wrong channel of a tensor whose width is a power of two is spread over all sums.
"""

SKETCH_LENGTH = 61
ROW_ELEMENTS = 2 * SKETCH_LENGTH
BLOCK_ROWS = 16
BLOCK_ELEMENTS = ROW_ELEMENTS * BLOCK_ROWS
GROUP_ROWS = 4

EXPONENT_BINS = 32
EXPONENT_BIN_SHIFT = 3
EXPONENT_BIAS = 127
SET_ASIDE_EXPONENT = 29

SPLITMIX_GAMMA = 0x9E3779B97F4A7C15
SPLITMIX_MUL_1 = 0xBF58476D1CE4E5B9
SPLITMIX_MUL_2 = 0x94D049BB133111EB

# Found by search. SUM_SALT: the eight sign vectors of a group of rows are nearly orthogonal (no two agree in more than
# 35 of 61 places, the halves of a row in 30 or 31), and a constant offset over any rows of a block is seen within 10 %.
# BLOCK_SALT: a constant offset of a value of one block (a bias) is seen within 11 % from 61 elements on, within 4 % at
# 61, 96, 128, 256, 768, 1024 and 1952 elements; and benchmarks/summaries.py holds all its bars.
SUM_SALT = 0x1000060402E
BLOCK_SALT = 0x20000001BE4
ROTATION_MUL = 0x9E3779B97F4A7C15
DIGEST_KEY_SALT = 0x04 << 40
DIGEST_SEED_SALT = 0x05 << 40

# A summary travels as one row of float64; the digest's bits lie in its last slot.
MIN, MAX, SUM, SUM_SQUARES, ABS_SUM, NAN, POS_INF, NEG_INF, SET_ASIDE, ZERO, SUBNORMAL = range(11)
EXPONENTS = 11
SKETCH = EXPONENTS + EXPONENT_BINS
DIGEST = SKETCH + SKETCH_LENGTH
ROW_LENGTH = DIGEST + 1

SUMMARY_ID = "s61p16-2"
