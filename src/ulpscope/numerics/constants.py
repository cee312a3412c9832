"""The frozen numbers of stats, sketch and digest; docs/trace-format.md states them for other readers.

A summary is made over blocks of consecutive elements in logical row-major order. A block is 16 rows of 61 columns: 61
is prime, so that one wrong channel of a tensor whose width is a power of two is spread over all sums.
"""

SKETCH_LENGTH = 61
BLOCK_ROWS = 16
BLOCK_ELEMENTS = SKETCH_LENGTH * BLOCK_ROWS

EXPONENT_BINS = 32
EXPONENT_BIN_SHIFT = 3
EXPONENT_BIAS = 127
SET_ASIDE_EXPONENT = 29

SPLITMIX_GAMMA = 0x9E3779B97F4A7C15
SPLITMIX_MUL_1 = 0xBF58476D1CE4E5B9
SPLITMIX_MUL_2 = 0x94D049BB133111EB

# Found by search. ROW_SALT: the squared column sums of the sign table add up to exactly 976, and no two rows agree in
# more than 40 of 61 places (adjacent rows: 35). BLOCK_ROTATION_SALT: a constant offset over the first 2 to 16 rows of
# block 0 is estimated within 4 %, so that values of a single block (a bias) are seen at their true size.
ROW_SALT = 0xF7A0
BLOCK_SIGN_SALT = 0x02 << 40
BLOCK_ROTATION_SALT = (0x03 << 40) + 6784
DIGEST_KEY_SALT = 0x04 << 40
DIGEST_SEED_SALT = 0x05 << 40

# The hash that rotates a block also holds the signs of its 16 rows, in its top bits.
ROTATION_BITS = 32
ROW_SIGN_SHIFT = 48

# A summary travels as one row of float64; the digest's bits lie in its last slot.
MIN, MAX, SUM, SUM_SQUARES, ABS_SUM, NAN, POS_INF, NEG_INF, SET_ASIDE, ZERO, SUBNORMAL = range(11)
EXPONENTS = 11
SKETCH = EXPONENTS + EXPONENT_BINS
DIGEST = SKETCH + SKETCH_LENGTH
ROW_LENGTH = DIGEST + 1

SUMMARY_ID = "s61r16-1"
