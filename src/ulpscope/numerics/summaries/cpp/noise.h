// Noise, in place: numbers moved as far as rounding to a coarser type, or one more rounding in their own, moves them.
#pragma once
#include <stdint.h>
#include <string.h>

namespace {

inline uint32_t scrambled(uint32_t word) {
  word = (word ^ (word >> 16)) * 0x7feb352du;
  word = (word ^ (word >> 15)) * 0x846ca68bu;
  return word ^ (word >> 16);
}

// Each number moves exactly as far as rounding to one with `kept` bits behind the hidden one moves it, there or the other
// way: which, is left to chance, and the same for all that round to the same number. So what rounding takes for equal
// has its error in common, also when it is summed up, and what such a type holds, or nearly, stays. Below the exponent
// `lowest` its numbers lie as far apart as there. What is larger than `largest` stays, as do inf and nan: it is a mask,
// or what overflows.
template <class Number, class Bits, int MANTISSA, int BIAS>
void move_like_rounding(Number* numbers, int64_t count, int kept, int lowest, double largest, uint32_t seed) {
  if (lowest < kept - BIAS + 1) lowest = kept - BIAS + 1;  // or the steps would be no normal numbers
  const uint32_t first = scrambled(seed);  // or neighbouring seeds would draw the same numbers in another order
  for (int64_t i = 0; i < count; ++i) {
    const Number x = numbers[i];
    Bits bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)((bits >> MANTISSA) & (2 * BIAS + 1)) - BIAS;
    exponent = exponent > lowest ? exponent : lowest;
    const Bits up = (Bits)(BIAS + exponent - kept) << MANTISSA, down = (Bits)(BIAS - exponent + kept) << MANTISSA;
    Number step, steps;
    memcpy(&step, &up, sizeof step);
    memcpy(&steps, &down, sizeof steps);
    const Number size = x < 0 ? -x : x, place = size <= (Number)largest ? size * steps : 0;
    const Number nearest = __builtin_rint(place), way = (nearest - place) * step;
    const uint32_t number = (uint32_t)(int32_t)nearest ^ ((uint32_t)exponent << 24);
    const bool along = (scrambled(number ^ first) >> 31) == (x < 0);
    numbers[i] = nearest == place ? x : along ? x + way : x - way;
  }
}

// One in four numbers becomes a neighbour of its own type. What ends in so many zeros is no result of rounding: a whole
// number that a program rounds up to an index, or a share that it gave itself.
template <class Bits> void jitter(Bits* numbers, int64_t count, Bits staying, uint32_t seed) {
  const Bits sign = (Bits)1 << (8 * sizeof(Bits) - 1);
  const Bits end = ((Bits)1 << (4 * sizeof(Bits) - 4)) - 1;
  const uint32_t first = scrambled(seed);
  for (int64_t i = 0; i < count; ++i) {
    const Bits bits = numbers[i], size = bits & ~sign;
    const uint32_t chance = scrambled((uint32_t)i ^ first) >> 29;
    const Bits step = chance == 0 ? 1 : chance == 1 ? (Bits)-1 : 0;
    numbers[i] = (bits & end) == 0 || size >= staying ? bits : (Bits)(bits + step);
  }
}

}  // namespace
