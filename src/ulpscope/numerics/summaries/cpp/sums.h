// Sums and sketch of a block: over a column's 16 rows in the numbers' own type, beyond that in float64.
#pragma once
#include "blocks.h"

namespace {

template <class Number> struct Columns { Number total[LANES], squares[LANES], sizes[LANES], signed_[LANES]; };

template <class Number> struct FourRows { Number total, squares, sizes, signed_; };

float size_of(float number) { return __builtin_fabsf(number); }
double size_of(double number) { return __builtin_fabs(number); }

template <class Number> inline FourRows<Number> four_rows(const Number* numbers, const Number* signs) {
  const Number a = numbers[0], b = numbers[WIDTH], c = numbers[2 * WIDTH], d = numbers[3 * WIDTH];
  return {(a + b) + (c + d), (a * a + b * b) + (c * c + d * d), (size_of(a) + size_of(b)) + (size_of(c) + size_of(d)),
          (signs[0] * a + signs[STRIDE] * b) + (signs[2 * STRIDE] * c + signs[3 * STRIDE] * d)};
}

template <class Number>
void sum_columns(const Number* __restrict numbers, const Number* __restrict signs, const Number (&turns)[3], int first,
                 Columns<Number>& __restrict columns) {
  for (int e = first; e < first + LANES / 4; ++e) {
    const auto one = four_rows(numbers + e, signs + e);
    const auto two = four_rows(numbers + e + 4 * WIDTH, signs + e + 4 * STRIDE);
    const auto three = four_rows(numbers + e + 8 * WIDTH, signs + e + 8 * STRIDE);
    const auto four = four_rows(numbers + e + 12 * WIDTH, signs + e + 12 * STRIDE);
    columns.total[e] = (one.total + two.total) + (three.total + four.total);
    columns.squares[e] = (one.squares + two.squares) + (three.squares + four.squares);
    columns.sizes[e] = (one.sizes + two.sizes) + (three.sizes + four.sizes);
    columns.signed_[e] = (one.signed_ + turns[0] * two.signed_) + (turns[1] * three.signed_ + turns[2] * four.signed_);
  }
}

template <class Number> double sum_lanes(Number* lanes) {
  memset(lanes + WIDTH, 0, (LANES - WIDTH) * sizeof(Number));
  Doubles sum = {};
  for (int e = 0; e < LANES; e += FOUR) sum += four<Doubles>(lanes + e);
  return total(sum);
}

template <class Number> double squares_in_double(const Number* numbers) {
  Doubles sum = {};
  for (int i = 0; i < BLOCK_ELEMENTS; i += FOUR) {
    const Doubles read = four<Doubles>(numbers + i);
    sum += read * read;
  }
  return total(sum);
}

// sketch: 61 sums and, behind them, 61 places that belong to the same sums again.
template <class Number>
void add_pairs(const Number* __restrict pairs, uint64_t bits, int rotation, double* __restrict sketch) {
  const uint64_t turned = (bits >> rotation) | (bits << (SKETCH_LENGTH - rotation));
  for (int c = 0; c < SKETCH_LENGTH; ++c) {
    const double sign = 1.0 - 2.0 * (double)(int64_t)((turned >> c) & 1);
    sketch[rotation + c] += sign * ((double)pairs[2 * c] + (double)pairs[2 * c + 1]);
  }
}

// Of what is ahead it asks for half.
template <class Number>
void add_sums(const Number* numbers, int64_t block, bool narrow, double* sketch, double* row, Ahead& ahead) {
  const uint64_t word = mix(BLOCK_SALT + (uint64_t)(block + 1) * SPLITMIX_GAMMA);
  const int rotation = (((word * ROTATION_MUL) >> 32) * SKETCH_LENGTH) >> 32;
  const Number one = (word >> SKETCH_LENGTH) & 1 ? -1 : 1, two = (word >> (SKETCH_LENGTH + 1)) & 1 ? -1 : 1;
  Columns<Number> columns;
  for (int e = 0; e < LANES; e += LANES / 4) {
    ahead.fetch(4);
    sum_columns(numbers, Signs<Number>::table + 2 * rotation, {one, two, one * two}, e, columns);
  }
  row[SLOT_SUM] += sum_lanes(columns.total);
  row[SLOT_SUM_SQUARES] += narrow ? squares_in_double(numbers) : sum_lanes(columns.squares);
  row[SLOT_ABS_SUM] += sum_lanes(columns.sizes);
  add_pairs(columns.signed_, word & ((1ULL << SKETCH_LENGTH) - 1), rotation, sketch);
}

}  // namespace
