"""Instructions that a warp's lanes execute together."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def multiply(sums, a0, a1, a2, a3, b0, b1):
    """Adds the product of a (rows 0 to 7 in a0 and a2, the others in a1 and a3) and b to sums."""
    c0, c1, c2, c3 = sums
    return tl.inline_asm_elementwise(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
        "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
        [a0, a1, a2, a3, b0, b1, c0, c1, c2, c3],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def multiply_half(sums, a0, a1, b0):
    """The same of half as many columns of a."""
    c0, c1, c2, c3 = sums
    return tl.inline_asm_elementwise(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {$0, $1, $2, $3}, {$4, $5}, {$6}, {$7, $8, $9, $10};",
        "=f,=f,=f,=f,r,r,r,f,f,f,f",
        [a0, a1, b0, c0, c1, c2, c3],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def are_zero(pair):
    """ZERO for each number of a pair that is 0: the bits of float16's 1.0, since all types of two bytes have one 0."""
    return tl.inline_asm_elementwise(
        "set.eq.f16x2.f16x2 $0, $1, $2;", "=r,r,r", [pair, pair * 0], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _over_lanes(code: tl.constexpr, number):
    return tl.inline_asm_elementwise(code, "=r,r", [number], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def largest_of_lanes(number):
    return _over_lanes("redux.sync.max.u32 $0, $1, -1;", number)


@triton.jit
def sum_of_lanes(number):
    return _over_lanes("redux.sync.add.u32 $0, $1, -1;", number)


@triton.jit
def sum_of_bytes(number):
    return _over_lanes("dp4a.u32.u32 $0, $1, 0x01010101, 0;", number)


@triton.jit
def from_lane(number, lane):
    return tl.inline_asm_elementwise(
        "shfl.sync.idx.b32 $0, $1, $2, 31, -1;", "=r,r,r", [number, lane], dtype=tl.int32, is_pure=True, pack=1
    )
