// Signs, rotations and the mixing of digests: numerics.sketch and numerics.digest for a lane.
#ifndef ULPSCOPE_HASHING
#define ULPSCOPE_HASHING

#include "instructions.h"
#include "numbers.h"

DEVICE u64 mix(u64 word) {
  word = (word ^ (word >> 30)) * MUL_1;
  word = (word ^ (word >> 27)) * MUL_2;
  return word ^ (word >> 31);
}

DEVICE u64 hash_of(u64 salt, u64 index) { return mix((index + 1) * GAMMA + salt); }

// Four bits of three, with an odd number of ones.
DEVICE u32 odd_bits(u32 bits) {
  bits &= 7;
  return (bits << 1) | (1 ^ ((bits ^ (bits >> 1) ^ (bits >> 2)) & 1));
}

// Of a column's sum: what its block and column make of it.
DEVICE u64 digest_of(i64 sum, int block, int column) {
  return mix(static_cast<u64>(sum) + static_cast<u64>(static_cast<u32>(block * COLUMNS + 1 + column)) * GAMMA);
}

// The signs of a lane's sum k: of the rows of a group, for either number of a pair, and of the groups.
struct SumSigns {
  u32 rows0, rows1, groups;
};

DEVICE SumSigns signs_of_sum(int k) {
  const u32 signs = static_cast<u32>(hash_of(SUM_SALT, k));
  return {odd_bits(signs), odd_bits(signs >> 3), odd_bits(signs >> 6)};
}

// A block's word: the signs of its sums, of its groups of rows, and its rotation.
struct BlockWord {
  u32 low, high, turns;
  int rotation;

  // The column that counts into sum k; some column for k from COLUMNS on.
  DEVICE_MEMBER int column(int k) const {
    const int c = k - rotation;
    return c < 0 ? c + COLUMNS : c >= COLUMNS ? c - COLUMNS : c;
  }

  // Bit g: whether the signs of group g of sum k, k mod 32 being `lane`, are turned.
  DEVICE_MEMBER u32 flips(u32 groups, bool second, int lane) const {
    return groups ^ turns ^ (0 - (((second ? high : low) >> lane) & 1));
  }
};

// Words of a warp's blocks, `step` apart: 32 at a time, each lane makes one.
struct BlockWords {
  int first, step;
  u32 low, high, turned;

  DEVICE_MEMBER BlockWords(int first, int step) : first(first), step(step), low(0), high(0), turned(0) {}

  DEVICE_MEMBER BlockWord of(int turn) {
    if (RARE((turn & 31) == 0)) make(turn);
    const u32 both = from_lane(turned, turn & 31);
    return {from_lane(low, turn & 31), from_lane(high, turn & 31), both >> 8, static_cast<int>(both & 0xFF)};
  }

  DEVICE_MEMBER void make(int turn) {
    const u64 word = hash_of(BLOCK_SALT, static_cast<u32>(first + (turn + lane_number()) * step));
    low = static_cast<u32>(word);
    high = static_cast<u32>(word >> 32);
    const u32 x = (high >> 29) & 1, y = (high >> 30) & 1;
    const u32 rotation = static_cast<u32>((((word * ROTATION_MUL) >> 32) * COLUMNS) >> 32);
    turned = rotation | (((x << 1) | (y << 2) | ((x ^ y) << 3)) << 8);
  }
};

#endif
