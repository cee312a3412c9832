// Brings a block's elements, from wherever they lie, into a warp's own memory: one after the other, zeros behind them.
#ifndef ULPSCOPE_STAGING
#define ULPSCOPE_STAGING

#include "instructions.h"
#include "launch.h"
#include "numbers.h"

// Where a unit lies, in units.
DEVICE i64 place_of(i64 unit, const Layout& layout) {
  if (layout.dimensions == 0) return unit;
  u32 index = static_cast<u32>(unit);
  i64 place = 0;
#pragma unroll
  for (int d = 0; d < 3; d++) {
    if (d >= layout.dimensions) return place;
    const u32 outer = __umulhi(index, layout.factors[d]) >> layout.shifts[d];
    place += static_cast<i64>(static_cast<int>(index - outer * layout.sizes[d])) * layout.strides[d];
    index = outer;
  }
  return place + static_cast<i64>(static_cast<int>(index)) * layout.strides[3];
}

template <int BYTES>
struct Unit {
  u32 words[BYTES / 4];
};
template <>
struct Unit<2> {
  u16 word;
};
template <>
struct Unit<1> {
  u8 word;
};
template <>
struct alignas(16) Unit<16> {
  u32 words[4];
};
template <>
struct alignas(8) Unit<8> {
  u32 words[2];
};

// A lane's part of a block that lies in one piece.
DEVICE void stage_whole(u8* to, const u8* from) {
#pragma unroll
  for (int first = 0; first < STAGE_BYTES; first += 16 * 32)
    if (first + 16 * 32 <= STAGE_BYTES || first + 16 * lane_number() < STAGE_BYTES)
      copy_later<16>(to + first, from + first);
}

// A lane's units of a block; zeros from unit `there` on.
template <int BYTES>
DEVICE void stage_units(u8* to, const Value& value, int block, int there) {
  typedef Unit<BYTES> Part;
  constexpr int UNITS = STAGE_BYTES / BYTES;
  constexpr bool LATER = BYTES >= 4;
  const Part* from = reinterpret_cast<const Part*>(value.address);
  const i64 first = static_cast<i64>(block) * UNITS;
  Part* place = reinterpret_cast<Part*>(to);
#pragma unroll(LATER ? 1 : 4)
  for (int unit = lane_number(); unit < UNITS; unit += 32) {
    if (unit >= there) {
      place[unit] = Part{};
      continue;
    }
    const Part* source = from + place_of(first + unit, value.layout);
    if constexpr (LATER)
      copy_later<BYTES>(place + unit, source);
    else
      place[unit] = *source;
  }
}

// Elements behind the last whole unit, which only those that lie one after the other can have.
template <int BYTES>
DEVICE void stage_rest(u8* to, const Value& value, int block, int left) {
  typedef Unit<ITEM> Element;
  const Element* const from = reinterpret_cast<const Element*>(value.address) + static_cast<i64>(block) * BLOCK;
  const int whole = left * ITEM / BYTES * BYTES / ITEM;
  const int own = whole + lane_number();
  if (own < left) reinterpret_cast<Element*>(to)[own] = from[own];
}

template <int BYTES>
DEVICE void stage_with(u8* to, const Value& value, int block, int left) {
  stage_units<BYTES>(to, value, block, left * ITEM / BYTES);
  if (BYTES > ITEM && left * ITEM % BYTES != 0) {
    wait_for_warp();
    stage_rest<BYTES>(to, value, block, left);
  }
}

// Begins to bring `left` elements of a block.
DEVICE void stage(u8* to, const Value& value, int block, int left) {
  if (value.layout.bytes == 16)
    stage_with<16>(to, value, block, left);
  else if (ITEM < 4 && value.layout.bytes == 4)
    stage_with<4>(to, value, block, left);
  else
    stage_with<ITEM>(to, value, block, left);
}

#endif
