// Sums of blocks of float32 or float16 as if their numbers were ordinary: none is selected, sums of float32.
#ifndef ULPSCOPE_ORDINARY
#define ULPSCOPE_ORDINARY

#include "exponents.h"
#include "hashing.h"
#include "rows.h"

// Two neighbouring numbers, and the words that they are.
struct Pair {
  float number0, number1;
  u32 word0, word1;
};

DEVICE Pair pair_at(const u8* staged, int place) {
  if constexpr (ITEM == 4) {
    const float2 both = reinterpret_cast<const float2*>(staged)[place];
    return {both.x, both.y, bits_of(both.x), bits_of(both.y)};
  } else {
    const u32 word = reinterpret_cast<const u32*>(staged)[place];
    return {from_float16(word & 0xFFFF), from_float16(word >> 16), word, word};
  }
}

// The lowest and the highest number.
class Range {
 public:
  DEVICE_MEMBER Range() {
    low_[0] = low_[1] = float_of(INFINITY_32);
    high_[0] = high_[1] = -low_[0];
  }

  DEVICE_MEMBER void add(const Pair& pair) {
    low_[0] = fminf(low_[0], pair.number0);
    low_[1] = fminf(low_[1], pair.number1);
    high_[0] = fmaxf(high_[0], pair.number0);
    high_[1] = fmaxf(high_[1], pair.number1);
  }

  DEVICE_MEMBER void add_first(const Pair& pair) {
    low_[0] = fminf(low_[0], pair.number0);
    high_[0] = fmaxf(high_[0], pair.number0);
  }

  DEVICE_MEMBER float low() const { return fminf(low_[0], low_[1]); }
  DEVICE_MEMBER float high() const { return fmaxf(high_[0], high_[1]); }

 private:
  float low_[2], high_[2];
};

// How many zeros a column has, and of float16 how many numbers below the smallest normal one.
class Small {
 public:
  DEVICE_MEMBER void add(const Pair& pair) {
    if constexpr (ITEM == 4) {
      zeros_ += (pair.number0 == 0.0f) + (pair.number1 == 0.0f);
    } else {
      // Two counts in one register: ones of float16.
      zeros_ = plus_float16(zeros_, are_equal_float16(pair.word0, 0));
      small_ = plus_float16(small_, are_below_float16(pair.word0 & 0x7FFF7FFF, NORMAL_PAIR));
    }
  }

  DEVICE_MEMBER u32 zeros() const { return ITEM == 4 ? zeros_ : counted(zeros_); }
  DEVICE_MEMBER u32 small() const { return ITEM == 4 ? 0 : counted(small_); }

 private:
  static constexpr u32 NORMAL_PAIR = 0x04000400;

  DEVICE_MEMBER static u32 counted(u32 both) {
    return static_cast<u32>(from_float16(both & 0xFFFF) + from_float16(both >> 16));
  }

  u32 zeros_ = 0, small_ = 0;
};

// What a lane adds up of numbers whose sums share rounding errors.
struct Part {
  float total = 0.0f, squares = 0.0f, sizes = 0.0f, sketch = 0.0f;

  DEVICE_MEMBER void add(float number, float sign) {
    total += number;
    squares += number * number;
    sizes += fabsf(number);
    sketch += number * sign;
  }

  DEVICE_MEMBER void add(const Part& other, u32 minus) {
    total += other.total;
    squares += other.squares;
    sizes += other.sizes;
    sketch += float_of(bits_of(other.sketch) ^ (minus << 31));
  }
};

class OrdinarySums {
 public:
  DEVICE_MEMBER OrdinarySums(u8*, u8* counters) : exponents_(counters) {
    signs0_ = signs_of_sum(lane_number());
    signs1_ = signs_of_sum(lane_number() + 32);
    total_ = squares_ = sizes_ = sketch0_ = sketch1_ = 0.0;
    zeros_ = small_ = strange_ = absent_ = 0;
    digest_ = 0;
  }

  // Adds a block of which `left` elements are there, zeros behind them.
  DEVICE_MEMBER void add(const u8* staged, const BlockWord& word, int block, int left) {
    const Range before = range_;
    add_column(staged, word, block, lane_number(), signs0_, sketch0_);
    if (lane_number() + 32 < COLUMNS) add_column(staged, word, block, lane_number() + 32, signs1_, sketch1_);
    if (RARE(left < BLOCK)) {
      absent_ += BLOCK - left;
      range_ = before;
      add_range(staged, left);
    }
  }

  // The row of so many elements; false if some number was not ordinary.
  DEVICE_MEMBER bool finish(LaneRow& row, u32) const {
    row.low = range_.low();
    row.high = range_.high();
    row.total = total_;
    row.squares = squares_;
    row.sizes = sizes_;
    row.sketch0 = sketch0_;
    row.sketch1 = sketch1_;
    row.digest = digest_;
    const u32 zeros = sum_of_lanes(zeros_);
    row.zeros = zeros - absent_;
    row.subnormal = ITEM == 2 ? sum_of_lanes(small_) - zeros : 0;
    row.bin = exponents_.counted() - (lane_number() == 0 ? zeros : 0);
    // Numbers in the lowest bin may be subnormal.
    return sum_of_lanes(strange_ + (lane_number() == 0 ? row.bin : 0)) == 0;
  }

 private:
  DEVICE_MEMBER void add_column(
      const u8* staged, const BlockWord& word, int block, int k, const SumSigns& signs, double& sketch) {
    const int c = word.column(k);
    const u32 flips = word.flips(signs.groups, k >= 32, lane_number());
    // All are read before the first is counted: the compiler cannot know that counters lie elsewhere.
    Pair pairs[BLOCK_ROWS];
#pragma unroll
    for (int row = 0; row < BLOCK_ROWS; row++) pairs[row] = pair_at(staged, row * COLUMNS + c);
    Part sums;
    Small few;
    i64 digest = 0;
#pragma unroll
    for (int group = 0; group < 4; group++) {
      Part part;
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int row = 4 * group + r;
        const Pair& pair = pairs[row];
        part.add(pair.number0, sign(signs.rows0, r));
        part.add(pair.number1, sign(signs.rows1, r));
        range_.add(pair);
        few.add(pair);
        exponents_.add((bits_of(pair.number0) >> 26) & (BINS - 1));
        exponents_.add((bits_of(pair.number1) >> 26) & (BINS - 1));
        digest += words_of(pair, row);
      }
      sums.add(part, flips >> group);
    }
    // None is set aside, and none that matters has a square that float32 cannot hold.
    strange_ |= !(sums.squares < SQUARES_BELOW && (sums.squares > SQUARES_ABOVE || sums.sizes == 0.0f));
    total_ += sums.total;
    squares_ += sums.squares;
    sizes_ += sums.sizes;
    sketch += sums.sketch;
    zeros_ += few.zeros();
    small_ += few.small();
    digest_ += digest_of(digest, block, c);
  }

  DEVICE_MEMBER static float sign(u32 rows, int r) { return float_of(0x3F800000 | ((rows >> r) << 31)); }

  DEVICE_MEMBER static i64 words_of(const Pair& pair, int row) {
    if constexpr (ITEM == 2) return static_cast<i64>(static_cast<int>(pair.word0)) * KEYS[row];
    const i64 first = static_cast<i64>(static_cast<int>(pair.word0)) * KEYS[ITEM / 2 * row];
    return first + static_cast<i64>(static_cast<int>(pair.word1)) * KEYS[ITEM / 2 * row + ITEM / 4];
  }

  // Of a block that is cut off.
  DEVICE_MEMBER void add_range(const u8* staged, int left) {
    for (int place = lane_number(); 2 * place < left; place += 32) {
      const Pair pair = pair_at(staged, place);
      if (2 * place + 1 < left)
        range_.add(pair);
      else
        range_.add_first(pair);
    }
  }

  SumSigns signs0_, signs1_;
  Exponents exponents_;
  Range range_;
  double total_, squares_, sizes_, sketch0_, sketch1_;
  u32 zeros_, small_, strange_, absent_;
  u64 digest_;
};

#endif
