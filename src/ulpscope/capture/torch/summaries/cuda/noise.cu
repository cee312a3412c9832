// Moves numbers as far as rounding moves them; numerics/summaries/cpp/noise.h is the same for a CPU.
#include "moved.h"
#include "numbers.h"

typedef long long i64;

__device__ unsigned scrambled(unsigned word) {
  word = (word ^ (word >> 16)) * 0x7feb352du;
  word = (word ^ (word >> 15)) * 0x846ca68bu;
  return word ^ (word >> 16);
}

__device__ Bits jittered(Bits bits, Bits staying, unsigned chance) {
  const Bits sign = static_cast<Bits>(1) << (8 * sizeof(Bits) - 1), size = bits & static_cast<Bits>(~sign);
  const Bits end = (static_cast<Bits>(1) << (4 * sizeof(Bits) - 4)) - 1;
  if ((bits & end) == 0 || size >= staying) return bits;
  return static_cast<Bits>(bits + (chance >> 29 == 0 ? 1 : chance >> 29 == 1 ? -1 : 0));
}

#if ROUNDS
__device__ Bits moved(Bits bits, const Moved& how, int lowest) {
  union { Bits bits; Number number; } own, step, steps;
  own.bits = bits;
  int exponent = static_cast<int>((bits >> MANTISSA) & (2 * BIAS + 1)) - BIAS;
  exponent = exponent > lowest ? exponent : lowest;
  step.bits = static_cast<Bits>(BIAS + exponent - how.kept) << MANTISSA;
  steps.bits = static_cast<Bits>(BIAS - exponent + how.kept) << MANTISSA;
  const Number x = own.number, size = x < 0 ? -x : x;
  const Number place = size <= static_cast<Number>(how.largest) ? size * steps.number : Number(0);
  const Number nearest = rint(place), way = (nearest - place) * step.number;
  if (nearest == place) return bits;
  const unsigned number = static_cast<unsigned>(static_cast<int>(nearest)) ^ (static_cast<unsigned>(exponent) << 24);
  const bool along = (scrambled(number ^ static_cast<unsigned>(how.seed)) >> 31) == (x < 0);
  own.number = along ? x + way : x - way;
  return own.bits;
}
#endif

// The number at this place, moved.
__device__ Bits noisy(Bits bits, i64 place, const Moved& how, int lowest) {
#if ROUNDS
  if (!how.jitters) return moved(bits, how, lowest);
#endif
  const unsigned chance = scrambled(static_cast<unsigned>(place) ^ static_cast<unsigned>(how.seed));
  return jittered(bits, static_cast<Bits>(how.staying), chance);
}

// Numbers that are read and written at once.
constexpr int TOGETHER = 16 / sizeof(Bits);
struct alignas(16) Pack {
  Bits numbers[TOGETHER];
};

extern "C" __global__ void __launch_bounds__(256) noise(Moved how) {
  int lowest = how.lowest;
  how.seed = scrambled(static_cast<unsigned>(how.seed));
#if ROUNDS
  lowest = lowest < how.kept - BIAS + 1 ? how.kept - BIAS + 1 : lowest;
#endif
  Pack* const packs = reinterpret_cast<Pack*>(how.address);
  Bits* const numbers = reinterpret_cast<Bits*>(how.address);
  const i64 count = how.address % sizeof(Pack) == 0 ? how.count / TOGETHER : 0;
  const i64 first = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  const i64 stride = static_cast<i64>(gridDim.x) * blockDim.x;
  for (i64 i = first; i < count; i += stride) {
    Pack pack = packs[i];
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) pack.numbers[k] = noisy(pack.numbers[k], i * TOGETHER + k, how, lowest);
    packs[i] = pack;
  }
  for (i64 i = count * TOGETHER + first; i < how.count; i += stride) numbers[i] = noisy(numbers[i], i, how, lowest);
}
