// Sums of blocks of any type that may hold anything: each element is looked at for itself.
#ifndef ULPSCOPE_ANYTHING
#define ULPSCOPE_ANYTHING

#include "exponents.h"
#include "hashing.h"
#include "rows.h"

// A float: its value, its size as an integer, its exponent as float32 would hold it.
struct Float {
  double value;
  u64 size;
  int exponent;
  bool negative;
};

DEVICE Float float_at(const u8* staged, int place) {
  if constexpr (KIND == FLOAT64) {
    const u64 bits = reinterpret_cast<const u64*>(staged)[place];
    const u64 size = bits & ~(1ull << 63);
    return {double_of(bits), size, static_cast<int>(size >> 52) - (1023 - 127), bits != size};
  } else {
    u32 bits;
    if constexpr (KIND == FLOAT32)
      bits = reinterpret_cast<const u32*>(staged)[place];
    else if constexpr (KIND == FLOAT16)
      bits = bits_of(from_float16(reinterpret_cast<const u16*>(staged)[place]));
    else
      bits = static_cast<u32>(reinterpret_cast<const u16*>(staged)[place]) << 16;
    const u32 size = bits & 0x7FFFFFFF;
    return {float_of(bits), size, static_cast<int>(size >> 23), bits != size};
  }
}

DEVICE double integer_at(const u8* staged, int place) {
  if constexpr (ITEM == 1)
    return SIGNED ? static_cast<double>(static_cast<signed char>(staged[place])) : staged[place];
  else if constexpr (ITEM == 2)
    return SIGNED ? reinterpret_cast<const i16*>(staged)[place] : reinterpret_cast<const u16*>(staged)[place];
  else if constexpr (ITEM == 4)
    return SIGNED ? static_cast<double>(reinterpret_cast<const int*>(staged)[place])
                  : reinterpret_cast<const u32*>(staged)[place];
  else
    return SIGNED ? static_cast<double>(reinterpret_cast<const i64*>(staged)[place])
                  : static_cast<double>(reinterpret_cast<const u64*>(staged)[place]);
}

// The digest's sum of one pair.
DEVICE i64 words_sum(const u8* staged, int pair, int row) {
  if constexpr (ITEM == 1) return static_cast<i64>(reinterpret_cast<const i16*>(staged)[pair]) * KEYS[row];
  constexpr int WORDS = ITEM < 4 ? 1 : ITEM / 2;
  i64 sum = 0;
#pragma unroll
  for (int word = 0; word < WORDS; word++)
    sum += static_cast<i64>(reinterpret_cast<const int*>(staged)[WORDS * pair + word]) * KEYS[WORDS * row + word];
  return sum;
}

class AnySums {
 public:
  DEVICE_MEMBER explicit AnySums(u8* counters) : exponents_(counters), row_(no_row()) {}

  // Adds a block of which `left` elements are there, zeros behind them.
  DEVICE_MEMBER void add(const u8* staged, const BlockWord& word, int block, int left) {
    for (int half = 0; half < 2; half++) {
      const int k = lane_number() + 32 * half;
      if (k >= COLUMNS) continue;
      const int c = word.column(k);
      const SumSigns signs = signs_of_sum(k);
      const u32 flips = word.flips(signs.groups, k >= 32, lane_number());
      double sketch = 0.0;
      i64 digest = 0;
#pragma unroll 2
      for (int r = 0; r < BLOCK_ROWS; r++) {
        const int pair = r * COLUMNS + c;
        digest += words_sum(staged, pair, r);
        const u32 minus = flips >> (r / 4);
        if (2 * pair < left) look_at(staged, 2 * pair, (signs.rows0 >> (r % 4)) ^ minus, sketch);
        if (2 * pair + 1 < left) look_at(staged, 2 * pair + 1, (signs.rows1 >> (r % 4)) ^ minus, sketch);
      }
      row_.digest += digest_of(digest, block, c);
      (half ? row_.sketch1 : row_.sketch0) += sketch;
    }
  }

  DEVICE_MEMBER bool finish(LaneRow& row, u32) const {
    row = row_;
    row.bin = exponents_.counted();
    return true;
  }

 private:
  DEVICE_MEMBER void look_at(const u8* staged, int place, u32 minus, double& sketch) {
    if constexpr (KIND == INTEGER) {
      const double value = integer_at(staged, place);
      row_.total += value;
      row_.low = fmin(row_.low, value);
      row_.high = fmax(row_.high, value);
      row_.zeros += value == 0.0;
    } else {
      constexpr u64 INFINITE = KIND == FLOAT64 ? INFINITY_64 : INFINITY_32;
      const Float number = float_at(staged, place);
      if (number.size > INFINITE) row_.nans++;
      if (number.size == INFINITE) (number.negative ? row_.negative : row_.positive)++;
      if (number.exponent >= SET_ASIDE + 127) row_.aside++;
      if (number.size == 0) row_.zeros++;
      if (number.size != 0 && number.size < SMALLEST_NORMAL) row_.subnormal++;
      if (number.size < INFINITE) {
        row_.low = fmin(row_.low, number.value);
        row_.high = fmax(row_.high, number.value);
        const int exponent = number.exponent < 0 ? 0 : number.exponent > 255 ? 255 : number.exponent;
        if (number.size != 0) exponents_.add(exponent >> 3);
      }
      if (number.exponent < SET_ASIDE + 127) {
        row_.total += number.value;
        row_.squares += number.value * number.value;
        row_.sizes += fabs(number.value);
        sketch += minus & 1 ? -number.value : number.value;
      }
    }
  }

  Exponents exponents_;
  LaneRow row_;
};

#endif
