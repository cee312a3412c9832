// What the kernels share: how a value's blocks are read, and vectors of four.
//
// A value is given by address and count. Its blocks are read where they lie; the last one, and all of them if their
// words are not aligned, are copied to scratch memory first. Loops run over a block while it lies in the first-level
// cache. Sums are added up in a fixed order, four at a time, so that they are the same bits whatever the compiler and
// the processor.
#pragma once
#include <stdint.h>
#include <string.h>

namespace {

constexpr int WIDTH = 2 * SKETCH_LENGTH;
// Loops over a row run on into the next one, to a whole number of vectors; what they find there is dropped.
constexpr int COLUMNS = LANES / 2, PADDED = BLOCK_ELEMENTS + LANES - WIDTH;
constexpr int FOUR = 4, STRIDE = WIDTH + LANES;

typedef double Doubles __attribute__((vector_size(32)));
typedef int64_t Words __attribute__((vector_size(32)));
typedef uint64_t Unsigneds __attribute__((vector_size(32)));

template <int SIZE> struct Bits;
template <> struct Bits<1> { typedef int8_t Signed; typedef uint8_t Unsigned; };
template <> struct Bits<2> { typedef int16_t Signed; typedef uint16_t Unsigned; };
template <> struct Bits<4> { typedef int32_t Signed; typedef uint32_t Unsigned; typedef float Number; };
template <> struct Bits<8> { typedef int64_t Signed; typedef uint64_t Unsigned; typedef double Number; };

template <class Element> struct Four { typedef Element Of __attribute__((vector_size(FOUR * sizeof(Element)))); };

template <class Vector, class Element> Vector four(const Element* elements) {
  typename Four<Element>::Of read;
  memcpy(&read, elements, sizeof read);
  return __builtin_convertvector(read, Vector);
}

double total(Doubles sums) { return (sums[0] + sums[1]) + (sums[2] + sums[3]); }

uint64_t mix(uint64_t word) {
  word = (word ^ (word >> 30)) * SPLITMIX_MUL_1;
  word = (word ^ (word >> 27)) * SPLITMIX_MUL_2;
  return word ^ (word >> 31);
}

constexpr int LINE = 64;  // bytes of memory that come together

// A block that is worked on later, asked for line by line while others are: a block is read by its columns, which no
// processor sees coming, and would be waited for.
struct Ahead {
  const char* line;
  int step;  // bytes, of 32 that make a block

  void fetch(int steps) {
    for (const char* end = line + steps * step; line < end; line += LINE) __builtin_prefetch(line);
  }
};

constexpr Ahead NOTHING_AHEAD = {nullptr, 0};

// Two blocks on: there is time to find it, and it is still there when it is read.
template <class Raw> Ahead ahead_of(const char* address, int64_t count, int64_t block) {
  if ((block + 3) * BLOCK_ELEMENTS > count) return NOTHING_AHEAD;
  return {address + (block + 2) * BLOCK_ELEMENTS * (int64_t)sizeof(Raw), BLOCK_ELEMENTS * (int)sizeof(Raw) / 32 + 1};
}

// A block and some elements behind it: the value's own memory if all of that may be read, else a copy and zeros.
template <class Raw> const Raw* read_block(const char* address, int64_t count, int64_t block, Raw* scratch) {
  const int64_t start = block * BLOCK_ELEMENTS;
  if (start + PADDED <= count && (uintptr_t)address % (2 * sizeof(Raw)) == 0) return (const Raw*)address + start;
  const int64_t n = count - start < BLOCK_ELEMENTS ? count - start : BLOCK_ELEMENTS;
  memcpy(scratch, address + start * sizeof(Raw), n * sizeof(Raw));
  memset(scratch + n, 0, (PADDED - n) * sizeof(Raw));
  return scratch;
}

}  // namespace
