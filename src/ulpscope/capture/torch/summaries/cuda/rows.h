// A row of summary numbers: what lanes have of it, added up over lanes, warps and programs.
#ifndef ULPSCOPE_ROWS
#define ULPSCOPE_ROWS

#include "instructions.h"
#include "numbers.h"

// What a lane has of its program's row: bin `lane`, sums `lane` and `lane` + 32, and a part of all others.
struct LaneRow {
  double low, high, total, squares, sizes;
  u64 digest;
  u32 nans, positive, negative, aside, zeros, subnormal, bin;
  double sketch0, sketch1;
};

DEVICE LaneRow no_row() {
  LaneRow row = {};
  row.low = double_of(INFINITY_64);
  row.high = -row.low;
  return row;
}

// One slot of several rows, always added in the same order.
struct SlotSum {
  int slot;
  double number;
  u64 word;

  DEVICE_MEMBER explicit SlotSum(int slot) : slot(slot), number(0.0), word(0) {
    if (slot == SLOT_MIN) number = double_of(INFINITY_64);
    if (slot == SLOT_MAX) number = -double_of(INFINITY_64);
  }

  DEVICE_MEMBER void add(double other) {
    if (slot == SLOT_DIGEST)
      word += bits_of(other);
    else if (slot == SLOT_MIN)
      number = fmin(number, other);
    else if (slot == SLOT_MAX)
      number = fmax(number, other);
    else
      number += other;
  }

  DEVICE_MEMBER double result() const { return slot == SLOT_DIGEST ? double_of(word) : number; }
};

constexpr int PARTS = 6;
static_assert(SLOT_MIN == 0 && SLOT_MAX == 1 && SLOT_SUM == 2 && SLOT_SQUARES == 3 && SLOT_ABS == 4, "parts in order");
static_assert(SLOT_SUBNORMAL == SLOT_NAN + 5, "counts in order");

DEVICE constexpr int slot_of_part(int part) { return part == PARTS - 1 ? SLOT_DIGEST : part; }

// The lanes' parts of a row in a warp's memory. Counts are added up over lanes before.
struct WarpRow {
  double parts[PARTS][32];
  double sketch[64];
  u32 bins[32];
  u32 counts[6];
};

DEVICE void store_lane(WarpRow& to, const LaneRow& row, bool counts_anything) {
  const int lane = lane_number();
  to.parts[0][lane] = row.low + 0.0;  // turns -0.0 into 0.0
  to.parts[1][lane] = row.high + 0.0;
  to.parts[2][lane] = row.total;
  to.parts[3][lane] = row.squares;
  to.parts[4][lane] = row.sizes;
  to.parts[5][lane] = double_of(row.digest);
  to.sketch[lane] = row.sketch0;
  to.sketch[lane + 32] = row.sketch1;
  to.bins[lane] = row.bin;
  const u32 counts[6] = {row.nans, row.positive, row.negative, row.aside, row.zeros, row.subnormal};
#pragma unroll
  for (int which = 0; which < 6; which++) {
    const u32 sum = counts_anything ? sum_of_lanes(counts[which]) : counts[which];
    if (lane == 0) to.counts[which] = sum;
  }
}

// Two of the parts, over all lanes of the program's warps.
template <int ONE, int OTHER>
DEVICE void store_parts(double* to, const u8* memory) {
  SlotSum one(slot_of_part(ONE)), other(slot_of_part(OTHER));
#pragma unroll
  for (int warp = 0; warp < WARPS; warp++) {
    const WarpRow& row = *reinterpret_cast<const WarpRow*>(memory + warp * WARP_BYTES);
    one.add(row.parts[ONE][lane_number()]);
    other.add(row.parts[OTHER][lane_number()]);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    one.add(from_partner(one.result(), distance));
    other.add(from_partner(other.result(), distance));
  }
  if (lane_number() == 0) to[one.slot] = one.result();
  if (lane_number() == 0) to[other.slot] = other.result();
}

// Makes the program's row of what its warps have stored.
DEVICE void store_row(double* to, const u8* memory) {
  static_assert(WARPS >= 3, "three warps store parts");
  if (warp_number() == 0) store_parts<0, 1>(to, memory);
  if (warp_number() == 1) store_parts<2, 3>(to, memory);
  if (warp_number() == 2) store_parts<4, 5>(to, memory);
  const int own = threadIdx.x;
  double sketch = 0.0;
  u32 bin = 0, count = 0;
#pragma unroll
  for (int warp = 0; warp < WARPS; warp++) {
    const WarpRow& row = *reinterpret_cast<const WarpRow*>(memory + warp * WARP_BYTES);
    if (own < COLUMNS) sketch += row.sketch[own];
    if (own < BINS) bin += row.bins[own];
    if (own < 6) count += row.counts[own];
  }
  if (own < COLUMNS) to[SLOT_SKETCH + own] = sketch;
  if (own < BINS) to[SLOT_EXPONENTS + own] = bin;
  if (own < 6) to[SLOT_NAN + own] = count;
}

#endif
