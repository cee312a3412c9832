// The digest of a block: the sum of each column, then all of them mixed.
#pragma once
#include "blocks.h"

namespace {

// Of each one's low half, signed: the only product of 64 bits that processors have for vectors.
Words product(Words one, Words other) {
#if defined(__AVX2__) && !defined(__clang__)  // which sees by itself what is meant
  typedef int32_t Halves __attribute__((vector_size(32)));
  return (Words)__builtin_ia32_pmuldq256((Halves)one, (Halves)other);
#else
  return ((one << 32) >> 32) * ((other << 32) >> 32);
#endif
}

Words high_half(Words words) { return (Words)((Unsigneds)words >> 32); }

Words all(int64_t word) { return Words{word, word, word, word}; }

// One word a pair.
template <class Word> void add_words(const Word* words, int64_t* sums, Ahead& ahead) {
  for (int c = 0; c < COLUMNS; c += FOUR) {
    ahead.fetch(1);
    Words sum = {};
    for (int r = 0; r < BLOCK_ROWS; ++r) sum += product(all(KEYS[r]), four<Words>(words + r * SKETCH_LENGTH + c));
    memcpy(sums + c, &sum, sizeof sum);
  }
}

// Two words a pair, read as one of 64 bits.
void add_words(const int64_t* words, int64_t* sums, Ahead& ahead) {
  for (int c = 0; c < COLUMNS; c += FOUR) {
    ahead.fetch(1);
    Words sum = {};
    for (int r = 0; r < BLOCK_ROWS; ++r) {
      const Words read = four<Words>(words + r * SKETCH_LENGTH + c);
      sum += product(all(KEYS[2 * r]), read) + product(all(KEYS[2 * r + 1]), high_half(read));
    }
    memcpy(sums + c, &sum, sizeof sum);
  }
}

// Four words a pair, read as two of 64 bits.
void add_doubles(const int64_t* words, int64_t* sums, Ahead& ahead) {
  int64_t lanes[LANES];
  for (int e = 0; e < LANES; e += FOUR) {
    if (e % (2 * FOUR) == 0) ahead.fetch(1);
    Words sum = {};
    for (int r = 0; r < BLOCK_ROWS; ++r) {
      const Words read = four<Words>(words + r * WIDTH + e);
      const int64_t *left = KEYS + 4 * r, *right = left + 2;
      const Words low = {left[0], right[0], left[0], right[0]}, high = {left[1], right[1], left[1], right[1]};
      sum += product(low, read) + product(high, high_half(read));
    }
    memcpy(lanes + e, &sum, sizeof sum);
  }
  for (int c = 0; c < COLUMNS; ++c) sums[c] = lanes[2 * c] + lanes[2 * c + 1];
}

// Of what is ahead it asks for half.
template <class Raw> uint64_t digest_part(const Raw* block, int64_t number, Ahead& ahead) {
  int64_t sums[COLUMNS];
  if (sizeof(Raw) == 8) add_doubles((const int64_t*)block, sums, ahead);
  if (sizeof(Raw) == 4) add_words((const int64_t*)block, sums, ahead);
  if (sizeof(Raw) == 2) add_words((const int32_t*)block, sums, ahead);
  if (sizeof(Raw) == 1) add_words((const int16_t*)block, sums, ahead);
  uint64_t digest = 0;
  for (int c = 0; c < SKETCH_LENGTH; ++c) {
    digest += mix((uint64_t)sums[c] + (uint64_t)(number * SKETCH_LENGTH + c + 1) * SPLITMIX_GAMMA);
  }
  return digest;
}

}  // namespace
