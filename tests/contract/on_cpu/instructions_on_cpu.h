// What instructions.h gives the kernels, for g++: included first, it takes its place.
#pragma once
#define ULPSCOPE_INSTRUCTIONS

#include "fibers.h"

#include <cmath>
#include <cstdint>
#include <deque>

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define IN_SHARED_MEMORY __attribute__((section("shared_memory")))

#include "types.h"

struct alignas(8) float2 {
  float x, y;
};

constexpr int WARP = 32, MOST_WARPS = 32;

DEVICE int lane_number() { return threadIdx.x & 31; }
DEVICE int warp_number() { return threadIdx.x >> 5; }
DEVICE int program_number() { return blockIdx.x; }
DEVICE int __popc(u32 bits) { return __builtin_popcount(bits); }
DEVICE u32 __umulhi(u32 one, u32 other) { return static_cast<u32>(static_cast<u64>(one) * other >> 32); }

template <typename To, typename From>
DEVICE To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

DEVICE float float_of(u32 bits) { return same_bits<float>(bits); }
DEVICE double double_of(u64 bits) { return same_bits<double>(bits); }
DEVICE u32 bits_of(float number) { return same_bits<u32>(number); }
DEVICE u64 bits_of(double number) { return same_bits<u64>(number); }
DEVICE u32 kept(u32 number) { return number; }

DEVICE float from_float16(u32 bits) {
  const u32 sign = bits >> 15 & 1, exponent = bits >> 10 & 31, mantissa = bits & 0x3FF;
  if (exponent == 31) return float_of(sign << 31 | 0x7F800000 | mantissa << 13);
  const float size = exponent ? std::ldexp(1024.0f + mantissa, exponent - 25) : std::ldexp(1.0f * mantissa, -24);
  return sign ? -size : size;
}

// Both numbers of a pair of bfloat16. What is exact needs no rounding on the way back.
template <typename Work>
DEVICE u32 of_both(u32 one, u32 other, Work work) {
  const float low = work(float_of(one << 16), float_of(other << 16));
  const float high = work(float_of(one & 0xFFFF0000), float_of(other & 0xFFFF0000));
  return bits_of(low) >> 16 | (bits_of(high) & 0xFFFF0000);
}

DEVICE float lower(float one, float other) {
  if (one == other) return std::signbit(one) ? one : other;
  return std::isnan(other) || one < other ? one : other;
}

DEVICE float higher(float one, float other) {
  if (one == other) return std::signbit(one) ? other : one;
  return std::isnan(other) || one > other ? one : other;
}

DEVICE u32 lower_bfloat16(u32 one, u32 other) { return of_both(one, other, lower); }
DEVICE u32 higher_bfloat16(u32 one, u32 other) { return of_both(one, other, higher); }

DEVICE u32 times_bfloat16(u32 pair, u32 other) {
  return of_both(pair, other, [](float one, float factor) { return one * factor; });
}

DEVICE u32 positive_bfloat16(u32 pair) {
  return of_both(pair, 0, [](float number, float) { return number < 0.0f ? 0.0f : number; });
}

// The same of float16, as bits.
template <typename Work>
DEVICE u32 of_both_float16(u32 one, u32 other, Work work) {
  return work(one & 0xFFFF, other & 0xFFFF) | work(one >> 16, other >> 16) << 16;
}

constexpr u32 FLOAT16_ONE = 0x3C00, FLOAT16_INFINITE = 0x7C00, FLOAT16_NAN = 0x7FFF;

DEVICE u32 are_below_float16(u32 pair, u32 other) {
  return of_both_float16(
      pair, other, [](u32 x, u32 y) { return from_float16(x) < from_float16(y) ? FLOAT16_ONE : 0; });
}

DEVICE u32 are_equal_float16(u32 pair, u32 other) {
  return of_both_float16(
      pair, other, [](u32 x, u32 y) { return from_float16(x) == from_float16(y) ? FLOAT16_ONE : 0; });
}

// Rounded to nearest, to even in the middle.
DEVICE u32 to_float16(double number) {
  const u32 sign = std::signbit(number) ? 0x8000 : 0;
  const double size = std::fabs(number);
  if (std::isnan(number)) return FLOAT16_NAN;
  if (size >= 65520.0) return sign | FLOAT16_INFINITE;
  const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
  return sign | (((exponent + 14) << 10) + static_cast<u32>(std::nearbyint(std::ldexp(size, 10 - exponent))));
}

DEVICE u32 plus_float16(u32 pair, u32 other) {
  return of_both_float16(
      pair, other, [](u32 x, u32 y) { return to_float16(static_cast<double>(from_float16(x)) + from_float16(y)); });
}

DEVICE u32 times_float16(u32 pair, u32 other) {
  return of_both_float16(
      pair, other, [](u32 x, u32 y) { return to_float16(static_cast<double>(from_float16(x)) * from_float16(y)); });
}

DEVICE void count_one(u32* counter) { ++*counter; }

// A lane's copies that are under way, in groups, and those that it has waited for. A device may make them at any time
// before they are waited for; other lanes must have waited for this one to see them.
struct Copy {
  void* to;
  const void* from;
  int bytes;
};

struct Copies {
  std::vector<Copy> begun, waited_for;
  std::deque<std::vector<Copy>> groups;
};
static Copies copies_of[WARP * MOST_WARPS];
static bool copies_are_late;
static i64 copied_bytes;  // of all programs of a launch
static bool may_read[WARP * MOST_WARPS];

DEVICE void wait_for_kernel_before() { may_read[threadIdx.x] = true; }

template <int BYTES>
DEVICE void copy_later(void* to, const void* from) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "what cp.async copies");
  if (reinterpret_cast<uintptr_t>(to) % BYTES || reinterpret_cast<uintptr_t>(from) % BYTES)
    fibers.fail("a copy of " + std::to_string(BYTES) + " bytes does not begin at a multiple of them");
  if (!may_read[threadIdx.x]) fibers.fail("a copy was begun before the kernel before has ended");
  copied_bytes += BYTES;
  if (copies_are_late)
    copies_of[threadIdx.x].begun.push_back({to, from, BYTES});
  else
    std::memcpy(to, from, BYTES);
}

DEVICE void end_of_copies() {
  Copies& own = copies_of[threadIdx.x];
  own.groups.push_back(std::move(own.begun));
  own.begun.clear();
}

template <int PENDING>
DEVICE void wait_for_copies() {
  Copies& own = copies_of[threadIdx.x];
  for (; own.groups.size() > PENDING; own.groups.pop_front())
    own.waited_for.insert(own.waited_for.end(), own.groups.front().begin(), own.groups.front().end());
}

DEVICE void show_copies() {
  auto& waited_for = copies_of[threadIdx.x].waited_for;
  for (const Copy& copy : waited_for) std::memcpy(copy.to, copy.from, copy.bytes);
  waited_for.clear();
}

// What the lanes of a warp bring to a meeting and take from it. Two of each, used in turn: whoever is quick may bring
// something to the next meeting before the slow ones have taken what this one gives.
struct Warp {
  Meeting meeting;
  alignas(16) char brought[2][64 * WARP], taken[2][64 * WARP];
};
static Warp warps[MOST_WARPS];
static Meeting whole_program;
static int program_threads;

// `work` makes what all lanes take of what they bring.
template <typename Taken, typename Brought, typename Work>
Taken meet_warp(const char* name, const Brought& own, Work work) {
  static_assert(sizeof(Brought) <= 64 && sizeof(Taken) <= 64, "room of a lane");
  Warp& warp = warps[warp_number()];
  const int lane = lane_number(), side = warp.meeting.held % 2;
  Brought* const brought = reinterpret_cast<Brought*>(warp.brought[side]);
  Taken* const taken = reinterpret_cast<Taken*>(warp.taken[side]);
  brought[lane] = own;
  fibers.meet(warp.meeting, WARP, name, [&] { work(brought, taken); });
  return taken[lane];
}

// All lanes take the same.
template <typename Work>
DEVICE u32 of_all_lanes(const char* name, u32 own, Work work) {
  return meet_warp<u32>(name, own, [&](const u32* brought, u32* taken) {
    u32 result = 0;
    for (int lane = 0; lane < WARP; lane++) result = work(result, brought[lane]);
    for (int lane = 0; lane < WARP; lane++) taken[lane] = result;
  });
}

DEVICE u32 sum_of_lanes(u32 number) {
  return of_all_lanes("sum_of_lanes", number, [](u32 sum, u32 one) { return sum + one; });
}

DEVICE u32 largest_of_lanes(u32 number) {
  return of_all_lanes("largest_of_lanes", number, [](u32 most, u32 one) { return most > one ? most : one; });
}

DEVICE int lanes_with(bool condition) {
  return of_all_lanes("lanes_with", condition, [](u32 sum, u32 one) { return sum + one; });
}

DEVICE void wait_for_warp() {
  show_copies();
  of_all_lanes("wait_for_warp", 0, [](u32, u32) { return 0; });
}

DEVICE void wait_for_program() {
  show_copies();
  fibers.meet(whole_program, program_threads, "wait_for_program", [] {});
}

template <typename Number>
struct Asked {
  Number number;
  int lane;
};

template <typename Number>
Number number_of(const char* name, Number number, int from) {
  return meet_warp<Number>(name, Asked<Number>{number, from}, [](const Asked<Number>* brought, Number* taken) {
    for (int lane = 0; lane < WARP; lane++) taken[lane] = brought[brought[lane].lane & 31].number;
  });
}

template <typename Number>
DEVICE Number from_lane(Number number, int lane) {
  return number_of("from_lane", number, lane);
}

template <typename Number>
DEVICE Number from_partner(Number number, int distance) {
  return number_of("from_partner", number, lane_number() ^ distance);
}

struct Product {
  float c0, c1, c2, c3;
};

struct Factors {
  Product sums;
  u32 a[4], b[2];
};

DEVICE float number_of_pair(u32 pair, int which) { return float_of(which ? pair & 0xFFFF0000 : pair << 16); }

// Which lane holds what is told by PTX, "matrix fragments for mma.m16n8k16": a of 16 x COUNT, b of COUNT x 8.
template <int COUNT>
void multiply_factors(const Factors* brought, Product* taken) {
  float a[16][COUNT], b[8][COUNT];
  for (int lane = 0; lane < WARP; lane++) {
    const int outer = lane / 4, inner = 2 * (lane % 4);
    for (int k = 0; k < COUNT; k++) {
      if (k % 8 / 2 != lane % 4) continue;
      const u32* const from = brought[lane].a + k / 8 * 2;
      a[outer][k] = number_of_pair(from[0], (k - inner) % 2);
      a[outer + 8][k] = number_of_pair(from[1], (k - inner) % 2);
      b[outer][k] = number_of_pair(brought[lane].b[k / 8], (k - inner) % 2);
    }
  }
  const auto sum = [&](float before, int i, int n) {
    double result = before;
    for (int k = 0; k < COUNT; k++) result += static_cast<double>(a[i][k]) * b[n][k];
    return static_cast<float>(result);
  };
  for (int lane = 0; lane < WARP; lane++) {
    const int i = lane / 4, n = 2 * (lane % 4);
    const Product& before = brought[lane].sums;
    taken[lane] = {
        sum(before.c0, i, n), sum(before.c1, i, n + 1), sum(before.c2, i + 8, n), sum(before.c3, i + 8, n + 1)};
  }
}

DEVICE void multiply(Product& sums, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  sums = meet_warp<Product>("multiply", Factors{sums, {a0, a1, a2, a3}, {b0, b1}}, multiply_factors<16>);
}

DEVICE void multiply_half(Product& sums, u32 a0, u32 a1, u32 b0) {
  sums = meet_warp<Product>("multiply_half", Factors{sums, {a0, a1}, {b0}}, multiply_factors<8>);
}
