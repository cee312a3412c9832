// Sums of blocks of bfloat16 as if their numbers were ordinary, most of them made by the tensor cores.
//
// One instruction multiplies the 16 x 16 numbers of a warp's four words with the 16 x 8 of two others: element (i, k) of
// the first lies in lane 4 * (i mod 8) + k div 2 mod 4, element (k, n) of the second in lane 4 * n + k div 2 mod 4, and
// (i, n) of the product in lane 4 * (i mod 8) + n div 2. Products are exact, and a block's sums are added to ours before
// rounding errors count. With a number's sign, mantissa and lower three bits of the exponent cleared it is 2 ** (8 * bin -
// 127), so that a sum of these is the counts of three neighbouring bins, eight bits each.
#ifndef ULPSCOPE_TENSOR_CORES
#define ULPSCOPE_TENSOR_CORES

#include "hashing.h"
#include "rows.h"

// Two ones; what leaves the bin of both numbers.
constexpr u32 ONES = 0x3F803F80, BIN_BITS = 0x7C007C00;
// What stands for a zero that is counted, as bfloat16; pairs that are looked at again, and how many zeros more than a
// block has are among them.
constexpr float ZERO_WEIGHT = 0.0078125f;
constexpr int LOOKED_AT = 32 * 32;
constexpr u32 FALSE_ZEROS = 2 * LOOKED_AT - BLOCK;
// The largest number's bin: no NaN and no infinity, and nothing that matters whose square float32 cannot hold.
constexpr u32 LOWEST_TOP = 9, HIGHEST_TOP = (SET_ASIDE + 127) >> 3;

// What a lane holds of a second factor, all ones or zeros.
class Factor {
 public:
  DEVICE_MEMBER explicit Factor(bool one) : upper_(kept(one ? ONES : 0)), lower_(kept(one ? ONES : 0)) {}

  DEVICE_MEMBER void multiply(Product& sums, u32 a0, u32 a1, u32 a2, u32 a3) const {
    ::multiply(sums, a0, a1, a2, a3, upper_, lower_);
  }

 private:
  u32 upper_, lower_;
};

class TensorCoreSums {
 public:
  // `nothing` is room of the program where a block would be; a zero is put where rows begin.
  DEVICE_MEMBER TensorCoreSums(u8* nothing, u8*)
      : nothing_(reinterpret_cast<const u32*>(nothing)),
        lane_(kept(lane_number())),
        own_((lane_ >> 2) == 2 * (lane_ & 3)),
        even_((lane_ & 4) == 0),
        odd_((lane_ & 4) != 0) {
    const SumSigns signs0 = signs_of_sum(lane_), signs1 = signs_of_sum(lane_ + 32);
    groups0_ = kept(signs0.groups);
    groups1_ = kept(signs1.groups);
#pragma unroll
    for (int r = 0; r < 4; r++) {
      signs0_[r] = kept(sign_pair(signs0, r));
      signs1_[r] = kept(sign_pair(signs1, r));
    }
    if (lane_ < BLOCK_ROWS) reinterpret_cast<u32*>(nothing)[lane_ * COLUMNS] = 0;
    wait_for_warp();
    low0_ = low1_ = 0x7F807F80;
    high0_ = high1_ = 0xFF80FF80;
    total_ = squares_ = positive_ = sketch0_ = sketch1_ = 0.0f;
    bins_ = zeros_ = tops_ = 0;
    digest_ = 0;
  }

  // Adds a block of which `left` elements are there, zeros behind them.
  DEVICE_MEMBER void add(const u8* staged, const BlockWord& word, int block, int left) {
    const u32* pairs = reinterpret_cast<const u32*>(staged);
    const u32 low0 = low0_, high0 = high0_, low1 = low1_, high1 = high1_;
    const int c0 = word.column(lane_), c1 = word.column(lane_ + 32);
    const u32* from0 = pairs + c0;
    const u32* from1 = second() ? pairs + c1 : nothing_;
    const u32 flips0 = word.flips(groups0_, false, lane_), flips1 = word.flips(groups1_, true, lane_);
    Product upper = {}, lower = {}, three = {};
    float positive = 0.0f;
    i64 digest0 = 0, digest1 = 0;
#pragma unroll
    for (int group = 0; group < 4; group++) {
      Product linear = {};
#pragma unroll
      for (int r = 0; r < 4; r += 2) {
        const int row = 4 * group + r;
        const u32 w00 = from0[row * COLUMNS], w01 = from0[(row + 1) * COLUMNS];
        const u32 w10 = from1[row * COLUMNS], w11 = from1[(row + 1) * COLUMNS];
        multiply_half(upper, w00, w01, w00);
        multiply_half(lower, w00, w01, w01);
        multiply_half(upper, w10, w11, w10);
        multiply_half(lower, w10, w11, w11);
        own_.multiply(linear, times_bfloat16(w00, signs0_[r]), times_bfloat16(w10, signs1_[r]),
                      times_bfloat16(w01, signs0_[r + 1]), times_bfloat16(w11, signs1_[r + 1]));
        odd_.multiply(linear, positive_bfloat16(w00), positive_bfloat16(w10), positive_bfloat16(w01),
                      positive_bfloat16(w11));
        even_.multiply(three, w00 & BIN_BITS, w10 & BIN_BITS, w01 & BIN_BITS, w11 & BIN_BITS);
        odd_.multiply(three, w00, w01, w10, w11);
        low0_ = lower_bfloat16(lower_bfloat16(low0_, w00), w01);
        high0_ = higher_bfloat16(higher_bfloat16(high0_, w00), w01);
        low1_ = lower_bfloat16(lower_bfloat16(low1_, w10), w11);
        high1_ = higher_bfloat16(higher_bfloat16(high1_, w10), w11);
        digest0 += product(w00, KEYS[row]) + product(w01, KEYS[row + 1]);
        digest1 += product(w10, KEYS[row]) + product(w11, KEYS[row + 1]);
      }
      sketch0_ += float_of(bits_of(linear.c0) ^ ((flips0 >> group) << 31));
      sketch1_ += float_of(bits_of(linear.c2) ^ ((flips1 >> group) << 31));
      positive += linear.c1 + linear.c3;
    }
    const bool diagonal0 = (lane_ >> 2) == 2 * (lane_ & 3), diagonal1 = (lane_ >> 2) == 2 * (lane_ & 3) + 1;
    squares_ += diagonal0 ? upper.c0 + lower.c2 : diagonal1 ? upper.c1 + lower.c3 : 0.0f;
    total_ += three.c1 + three.c3;
    positive_ += positive;
    const u64 part0 = digest_of(digest0, block, c0), part1 = digest_of(digest1, block, c1);
    digest_ += part0 + (second() ? part1 : 0);
    count(pairs, three, left);
    if (RARE(left < BLOCK)) {
      low0_ = low0, high0_ = high0, low1_ = low1, high1_ = high1;
      add_range(pairs, left);
    }
  }

  // The row of so many elements; false if some number was not ordinary.
  DEVICE_MEMBER bool finish(LaneRow& row, u32 elements) const {
    row.bin = bins_ >> 2;
    row.zeros = zeros_;
    u32 low = low0_, high = high0_;
    if (second()) {
      low = lower_bfloat16(low, low1_);
      high = higher_bfloat16(high, high1_);
    }
    row.low = fminf(float_of(low << 16), float_of(low & 0xFFFF0000));
    row.high = fmaxf(float_of(high << 16), float_of(high & 0xFFFF0000));
    row.total = total_ * 0.25f;
    row.squares = squares_;
    row.sizes = positive_ * 0.5f - row.total;
    row.sketch0 = sketch0_;
    row.sketch1 = sketch1_;
    row.digest = digest_;
    const u32 large = fmaxf(row.high, -row.low) >= SET_ASIDE_FROM ? 1u << 16 : 0;
    const bool all = sum_of_lanes(row.bin) + zeros_ == elements && sum_of_lanes(large) == 0;
    return all && tops_ <= HIGHEST_TOP && (tops_ >= LOWEST_TOP || tops_ == 0);
  }

 private:
  // Whether the lane has a second sum of its own.
  DEVICE_MEMBER bool second() const { return lane_ + 32 < COLUMNS; }

  DEVICE_MEMBER static i64 product(u32 pair, int key) { return static_cast<i64>(static_cast<int>(pair)) * key; }

  // 1 or -1 for both numbers of a pair in row r of its group.
  DEVICE_MEMBER static u32 sign_pair(const SumSigns& signs, int r) {
    return ONES | (((signs.rows0 >> r) & 1) << 15) | ((signs.rows1 >> r) << 31);
  }

  // Counts the numbers of a block: those of the three highest bins from `three`, then, as long as some are unseen, looks
  // at it again.
  DEVICE_MEMBER void count(const u32* pairs, const Product& three, int left) {
    const u32 top = largest_of_lanes(bits_of(fmaxf(three.c0, three.c2))) >> 26;
    tops_ = top > tops_ ? top : tops_;
    u32 window = top > 3 ? top : 3;
    int unseen = BLOCK - add_bins(three, window);
    if (USUAL(unseen <= 0)) return;
    u32 zeros = 0;
    do {
      const Product more = look_below(pairs, window - 2);
      window = window > 6 ? window - 3 : 3;
      if (zeros == 0) {
        zeros = sum_of_lanes(static_cast<u32>((more.c1 + more.c3) * (1.0f / ZERO_WEIGHT))) / 4 - FALSE_ZEROS;
        unseen -= zeros;
      }
      unseen -= add_bins(more, window);
    } while (unseen > 0 && window > 3);
    zeros_ += zeros - (BLOCK - left);
  }

  // Adds the numbers in the three bins up to `window` that a sum of powers of two holds; gives how many they are. Four
  // lanes hold the same.
  DEVICE_MEMBER int add_bins(const Product& sum, u32 window) {
    const float scale = float_of((270 - 8 * window) << 23);
    const u32 packed0 = static_cast<int>(sum.c0 * scale), packed1 = static_cast<int>(sum.c2 * scale);
    const u32 outer = sum_of_lanes((packed0 & 0xFF00FF) + (packed1 & 0xFF00FF));
    const u32 middle = sum_of_lanes(((packed0 >> 8) & 0xFF) + ((packed1 >> 8) & 0xFF));
    const u32 lowest = outer & 0xFFFF, highest = outer >> 16;
    bins_ += lane_ == window ? highest : lane_ + 1 == window ? middle : lane_ + 2 == window ? lowest : 0;
    return static_cast<int>((lowest + middle + highest) / 4);
  }

  // The same sum of a block's numbers in bins below `bin` alone, and its zeros. As float16, a bin's bits are a power of
  // two as well.
  DEVICE_MEMBER Product look_below(const u32* pairs, u32 bin) {
    const u32 limit = (bin << 10) | (bin << 26);
    Product sum = {};
#pragma unroll 4
    for (int first = 0; first < LOOKED_AT; first += 4 * 32) {
      u32 words[4], below[4];
#pragma unroll
      for (int which = 0; which < 4; which++) {
        const int place = first + 32 * which + lane_;
        words[which] = place < BLOCK / 2 ? pairs[place] : 0;
        below[which] = words[which] & BIN_BITS;
        below[which] = times_float16(below[which], are_below_float16(below[which], limit));
        words[which] = are_equal_float16(words[which], 0);
      }
      even_.multiply(sum, below[0], below[1], below[2], below[3]);
      odd_.multiply(sum, words[0], words[1], words[2], words[3]);
    }
    return sum;
  }

  // Of a block that is cut off.
  DEVICE_MEMBER void add_range(const u32* pairs, int left) {
    for (int place = lane_; 2 * place < left; place += 32) {
      u32 pair = pairs[place];
      if (2 * place + 1 == left) pair = (pair & 0xFFFF) | (pair << 16);
      low0_ = lower_bfloat16(low0_, pair);
      high0_ = higher_bfloat16(high0_, pair);
    }
  }

  const u32* nothing_;
  u32 lane_;
  Factor own_, even_, odd_;
  u32 groups0_, groups1_, signs0_[4], signs1_[4];
  u32 low0_, high0_, low1_, high1_;
  float total_, squares_, positive_, sketch0_, sketch1_;
  u32 bins_, zeros_, tops_;  // four times those of bin `lane`; all of the warp's zeros; its largest number's bin
  u64 digest_;
};

#endif
