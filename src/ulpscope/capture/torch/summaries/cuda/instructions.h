// Instructions that C++ has no word for.
#ifndef ULPSCOPE_INSTRUCTIONS
#define ULPSCOPE_INSTRUCTIONS

#include "types.h"

constexpr u32 EVERY_LANE = 0xFFFFFFFF;

DEVICE int lane_number() { return threadIdx.x & 31; }
DEVICE int warp_number() { return threadIdx.x >> 5; }
DEVICE int program_number() { return blockIdx.x; }
DEVICE void wait_for_warp() { __syncwarp(); }
DEVICE void wait_for_program() { __syncthreads(); }

// Until the kernel before this one has ended, and what it wrote can be read; nothing is read or written before.
DEVICE void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }
DEVICE double double_of(u64 bits) { return __longlong_as_double(static_cast<i64>(bits)); }
DEVICE u32 bits_of(float number) { return __float_as_uint(number); }
DEVICE u64 bits_of(double number) { return static_cast<u64>(__double_as_longlong(number)); }

DEVICE float from_float16(u32 bits) {
  float number;
  asm("{ .reg .b16 half; cvt.u16.u32 half, %1; cvt.f32.f16 %0, half; }" : "=f"(number) : "r"(bits));
  return number;
}

// Two pairs of numbers of two bytes, each number with its counterpart.
#define ON_PAIRS(name, instruction)                                                      \
  DEVICE u32 name(u32 one, u32 other) {                                                  \
    u32 result;                                                                          \
    asm(instruction " %0, %1, %2;" : "=r"(result) : "r"(one), "r"(other));               \
    return result;                                                                       \
  }

ON_PAIRS(lower_bfloat16, "min.bf16x2")
ON_PAIRS(higher_bfloat16, "max.bf16x2")
ON_PAIRS(plus_float16, "add.f16x2")
ON_PAIRS(times_float16, "mul.f16x2")
// float16's 1.0 where it is so, else 0.
ON_PAIRS(are_below_float16, "set.lt.f16x2.f16x2")
ON_PAIRS(are_equal_float16, "set.eq.f16x2.f16x2")

DEVICE u32 times_bfloat16(u32 one, u32 other) {
  u32 result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(one), "r"(other), "r"(0x80008000));
  return result;
}

// 0 instead of what is negative.
DEVICE u32 positive_bfloat16(u32 pair) {
  u32 result;
  asm("fma.rn.relu.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(0x3F803F80), "r"(0x80008000));
  return result;
}

template <typename Number>
DEVICE Number from_lane(Number number, int lane) {
  return __shfl_sync(EVERY_LANE, number, lane);
}

template <typename Number>
DEVICE Number from_partner(Number number, int distance) {
  return __shfl_xor_sync(EVERY_LANE, number, distance);
}

DEVICE void count_one(u32* counter) { atomicAdd(counter, 1u); }
DEVICE int lanes_with(bool condition) { return __popc(__ballot_sync(EVERY_LANE, condition)); }
DEVICE u32 sum_of_lanes(u32 number) { return __reduce_add_sync(EVERY_LANE, number); }
DEVICE u32 largest_of_lanes(u32 number) { return __reduce_max_sync(EVERY_LANE, number); }

// A number that is kept in a register: what it was made of is cheaper to the compiler than it is to us.
DEVICE u32 kept(u32 number) {
  asm volatile("" : "+r"(number));
  return number;
}

// What a lane holds of the product of two matrices.
struct Product {
  float c0, c1, c2, c3;
};

// Adds the product of a (16 x 16 bfloat16: rows 0 to 7 in a0 and a2, the others in a1 and a3) and b (16 x 8).
DEVICE void multiply(Product& sums, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums.c0), "+f"(sums.c1), "+f"(sums.c2), "+f"(sums.c3)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same of half as many columns of a.
DEVICE void multiply_half(Product& sums, u32 a0, u32 a1, u32 b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(sums.c0), "+f"(sums.c1), "+f"(sums.c2), "+f"(sums.c3)
      : "r"(a0), "r"(a1), "r"(b0));
}

// Copies from the device's memory without waiting; wait_for_copies ends when all but the last PENDING groups are there.
template <int BYTES>
DEVICE void copy_later(void* to, const void* from) {
  const u32 place = static_cast<u32>(__cvta_generic_to_shared(to));
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from), "n"(BYTES) : "memory");
}

DEVICE void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif
