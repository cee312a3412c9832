// Counts and range of a block. They work on codes: integers of a number's bits, whose sizes (the bits without sign) are
// ordered like the numbers'. Integer comparison does not depend on the thread's flush-to-zero mode.
#pragma once
#include "blocks.h"

namespace {

// Where things begin among the sizes of one float type.
struct Rules {
  int64_t mask, first_bin;
  int bin_shift;
  int64_t normal, set_aside, infinity;
  int64_t tiny;  // below it float32 might lose squares
};

constexpr Rules rules_of(int bits, int exponent_bits) {
  const int64_t bias = (1LL << (exponent_bits - 1)) - 1;
  const int shift = bits - 1 - exponent_bits;
  const int64_t one = 1LL << shift;  // in the exponent
  return {(int64_t)((1ULL << (bits - 1)) - 1),
          (bias - EXPONENT_BIAS) * one,
          shift + EXPONENT_BIN_SHIFT,
          one,
          (SET_ASIDE_EXPONENT + bias) * one,
          ((1LL << exponent_bits) - 1) * one,
          (bias - 40) * one};
}

// Orders codes of either sign like the numbers they stand for; its own inverse.
int64_t key(int64_t code, int64_t mask) { return code ^ ((code >> 63) & mask); }

struct Ends {
  int64_t low, high;           // keys of the lowest and the highest number
  int64_t smallest, largest;  // sizes
};

template <class Number> Number lesser(Number one, Number other) { return one < other ? one : other; }
template <class Number> Number greater(Number one, Number other) { return one > other ? one : other; }

// Negative numbers lie below the others as signed integers, above them as unsigned ones; larger sizes upwards in both.
template <class Code> Ends scan(const Code* codes, int n, int64_t mask) {
  typedef typename Bits<sizeof(Code)>::Unsigned Unsigned;
  Code low = codes[0], high = codes[0];
  Unsigned unsigned_low = (Unsigned)codes[0], unsigned_high = (Unsigned)codes[0];
  for (int i = 0; i < n; ++i) {
    low = lesser(low, codes[i]);
    high = greater(high, codes[i]);
    unsigned_low = lesser(unsigned_low, (Unsigned)codes[i]);
    unsigned_high = greater(unsigned_high, (Unsigned)codes[i]);
  }
  const int64_t first = (Code)unsigned_low, last = (Code)unsigned_high;
  if (low >= 0) return {low, high, low, high};
  if (high < 0) return {key(last, mask), key(low, mask), low & mask, last & mask};
  return {key(last, mask), high, lesser(first, low & mask), greater((int64_t)high, last & mask)};
}

template <class Code> void scan_finite(const Code* codes, int n, const Rules& rules, Ends& ends) {
  ends.low = rules.mask, ends.high = ~rules.mask;
  for (int i = 0; i < n; ++i) {
    const int64_t code = codes[i];
    if ((code & rules.mask) >= rules.infinity) continue;
    ends.low = lesser(ends.low, key(code, rules.mask));
    ends.high = greater(ends.high, key(code, rules.mask));
  }
}

template <class Code> int64_t count_from(const Code* codes, int n, int64_t mask, int64_t size) {
  const Code bits = mask, border = size;
  Code count = 0;
  for (int i = 0; i < n; ++i) count += (Code)(codes[i] & bits) >= border;
  return count;
}

template <class Code> int64_t smallest_nonzero(const Code* codes, int n, int64_t mask) {
  const Code bits = mask;
  Code smallest = bits;
  for (int i = 0; i < n; ++i) {
    const Code size = codes[i] & bits;
    smallest = lesser(smallest, size > 0 ? size : bits);
  }
  return smallest;
}

int bin_of(int64_t size, const Rules& rules) {
  return lesser(greater((size - rules.first_bin) >> rules.bin_shift, (int64_t)0), (int64_t)EXPONENT_BINS - 1);
}

// Counts only at the few bin borders that lie between this block's smallest and largest size.
template <class Code>
void add_bins(const Code* codes, int n, int64_t above, const Ends& ends, const Rules& rules, double* row) {
  const int last = bin_of(ends.largest, rules);
  for (int k = bin_of(ends.smallest, rules); k < last; ++k) {
    const int64_t beyond = count_from(codes, n, rules.mask, rules.first_bin + ((int64_t)(k + 1) << rules.bin_shift));
    row[SLOT_EXPONENTS + k] += above - beyond;
    above = beyond;
  }
  row[SLOT_EXPONENTS + last] += above;
}

template <class Code> void add_counts(const Code* codes, int n, Ends ends, const Rules& rules, double* row) {
  int64_t nonzero = n;
  if (ends.smallest == 0) {
    nonzero = count_from(codes, n, rules.mask, 1);
    ends.smallest = smallest_nonzero(codes, n, rules.mask);
    row[SLOT_ZERO] += n - nonzero;
  }
  if (nonzero == 0) return;
  if (ends.smallest < rules.normal) row[SLOT_SUBNORMAL] += nonzero - count_from(codes, n, rules.mask, rules.normal);
  add_bins(codes, n, nonzero, ends, rules, row);
}

template <class Code> void add_set_aside(const Code* codes, int n, const Rules& rules, double* row) {
  row[SLOT_SET_ASIDE] += count_from(codes, n, rules.mask, rules.set_aside);
  const int64_t infinite = count_from(codes, n, rules.mask, rules.infinity);
  if (infinite == 0) return;
  const int64_t nans = count_from(codes, n, rules.mask, rules.infinity + 1);
  int64_t positive = 0;
  for (int i = 0; i < n; ++i) positive += codes[i] == rules.infinity;
  row[SLOT_NAN] += nans;
  row[SLOT_POS_INF] += positive;
  row[SLOT_NEG_INF] += infinite - nans - positive;
  row[SLOT_EXPONENTS + EXPONENT_BINS - 1] -= infinite;
}

}  // namespace
