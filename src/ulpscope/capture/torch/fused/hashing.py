"""Signs, rotations and the mixing of digests: numerics.sketch and numerics.digest for a lane."""
# mypy: ignore-errors

import triton
import triton.language as tl

from ulpscope.capture.torch.fused.numbers import COLUMNS, GAMMA, MUL_1, MUL_2, ROTATION_MUL


@triton.jit
def mix(word):
    word = (word ^ (word >> 30)) * MUL_1
    word = (word ^ (word >> 27)) * MUL_2
    return word ^ (word >> 31)


@triton.jit
def hash_of(salt, index):
    return mix((index.to(tl.uint64) + 1) * GAMMA + salt)


@triton.jit
def odd_bits(bits):
    """Four bits of three, with an odd number of ones."""
    bits = bits & 7
    return (bits << 1) | (1 ^ ((bits ^ (bits >> 1) ^ (bits >> 2)) & 1))


@triton.jit
def turns_of(word):
    """The four signs of a block's groups of rows, bit by bit."""
    x = (word >> 61).to(tl.int32) & 1
    y = (word >> 62).to(tl.int32) & 1
    return (x << 1) | (y << 2) | ((x ^ y) << 3)


@triton.jit
def column_of(word, k):
    """The column that counts into sum k of a block; some column for k from 61 on."""
    rotation = ((((word * ROTATION_MUL) >> 32) * COLUMNS) >> 32).to(tl.int32)
    c = k - rotation
    c = tl.where(c < 0, c + COLUMNS, c)
    return tl.where(c >= COLUMNS, c - COLUMNS, c)


@triton.jit
def sign_of(bits, place):
    return (0x3F800000 | ((bits >> place) << 31)).to(tl.float32, bitcast=True)
