// Summaries in one read, and copies past the caches. compiled.py puts the numbers of constants.py before this text.
#include "counts.h"
#include "digest.h"
#include "noise.h"
#include "sums.h"

namespace {

void reset(double* row) {
  memset(row, 0, ROW_LENGTH * sizeof(double));
  row[SLOT_MIN] = __builtin_inf();
  row[SLOT_MAX] = -__builtin_inf();
}

// Counts a block's codes and sums its numbers, which have these bits; gives the keys of its lowest and highest finite
// number. `kept` is room for numbers without those that are set aside; the bits may lie there.
template <class Code, class Wide>
Ends add_block(const Code* codes, const Wide* bits, int n, int64_t block, const Rules& rules, const Rules& wide,
               Wide* kept, double* sketch, double* row, Ahead& ahead) {
  Ends ends = scan(codes, n, rules.mask);
  add_counts(codes, n, ends, rules, row);
  const int64_t largest = ends.largest;
  if (largest >= rules.infinity) scan_finite(codes, n, rules, ends);
  const bool aside = largest >= rules.set_aside;
  if (aside) {
    add_set_aside(codes, n, rules, row);
    for (int i = 0; i < PADDED; ++i) kept[i] = (Wide)(bits[i] & (Wide)wide.mask) < (Wide)wide.set_aside ? bits[i] : 0;
    bits = kept;
  }
  add_sums((const typename Bits<sizeof(Wide)>::Number*)bits, block, aside || largest < rules.tiny, sketch, row, ahead);
  return ends;
}

template <class Wide> double number_of(int64_t key_, const Rules& rules, const Rules& wide) {
  const Wide bits = key(key_, rules.mask) * (int64_t)(((uint64_t)wide.mask + 1) / ((uint64_t)rules.mask + 1));
  typename Bits<sizeof(Wide)>::Number number;
  memcpy(&number, &bits, sizeof number);
  return (double)number + 0.0;
}

// Widen: its Raw are elements, its Wide the bits of numbers that hold them, its Code what is counted, by `rules`.
template <class Widen> void summarize(const char* address, int64_t count, const Widen& widen, double* row) {
  typedef typename Widen::Wide Wide;
  constexpr Rules wide = sizeof(Wide) == 8 ? rules_of(64, 11) : rules_of(32, 8);
  alignas(64) typename Widen::Raw scratch[PADDED];
  alignas(64) Wide kept[PADDED];
  double sketch[2 * SKETCH_LENGTH] = {};
  int64_t low = INT64_MAX, high = -INT64_MAX;
  uint64_t digest = 0;
  reset(row);
  for (int64_t block = 0; block * BLOCK_ELEMENTS < count; ++block) {
    const int n = lesser(count - block * BLOCK_ELEMENTS, (int64_t)BLOCK_ELEMENTS);
    const auto* raw = read_block(address, count, block, scratch);
    Ahead ahead = ahead_of<typename Widen::Raw>(address, count, block);
    digest += digest_part(raw, block, ahead);
    const Wide* bits = widen.bits(raw, n, kept);
    const Ends ends = add_block(widen.codes(raw, bits), bits, n, block, widen.rules, wide, kept, sketch, row, ahead);
    low = lesser(low, ends.low), high = greater(high, ends.high);
  }
  if (low <= high) {
    row[SLOT_MIN] = number_of<Wide>(low, widen.rules, wide);
    row[SLOT_MAX] = number_of<Wide>(high, widen.rules, wide);
  }
  for (int k = 0; k < SKETCH_LENGTH; ++k) row[SLOT_SKETCH + k] = sketch[k] + sketch[k + SKETCH_LENGTH];
  memcpy(row + SLOT_DIGEST, &digest, sizeof digest);
}

// Their bits are numbers already.
template <class Element> struct Plain {
  typedef Element Raw, Wide;
  Rules rules;
  const Wide* bits(const Raw* raw, int, Wide*) const { return raw; }
  const Raw* codes(const Raw* raw, const Wide*) const { return raw; }
};

struct Bfloat16 {
  typedef int16_t Raw;
  typedef int32_t Wide;
  Rules rules = rules_of(16, 8);
  const Wide* bits(const Raw* raw, int, Wide* kept) const {
    for (int i = 0; i < PADDED; ++i) kept[i] = (int32_t)((uint32_t)raw[i] << 16);
    return kept;
  }
  const Raw* codes(const Raw* raw, const Wide*) const { return raw; }
};

struct Widened {
  typedef int32_t Wide;
  Rules rules = rules_of(32, 8);
};

struct Float16 : Widened {
  typedef int16_t Raw;
  // Rebiases the exponent; a subnormal, an integer times 2**-24, is converted.
  const Wide* bits(const Raw* raw, int, Wide* kept) const {
    for (int i = 0; i < PADDED; ++i) {
      const int32_t size = raw[i] & 0x7FFF;
      const float subnormal = (float)size * 0x1p-24f;
      int32_t wide;
      memcpy(&wide, &subnormal, sizeof wide);
      const int32_t normal = ((size << 13) + (112 << 23)) | (size < 0x7C00 ? 0 : 0x7F800000);
      kept[i] = (size < 0x400 ? wide : normal) | (int32_t)((uint32_t)(raw[i] & 0x8000) << 16);
    }
    return kept;
  }
  const Wide* codes(const Raw*, const Wide* bits) const { return bits; }
};

struct Float8 : Widened {
  typedef uint8_t Raw;
  const int32_t* table;
  const Wide* bits(const Raw* raw, int n, Wide* kept) const {
    for (int i = 0; i < n; ++i) kept[i] = table[raw[i]];
    memset(kept + n, 0, (PADDED - n) * sizeof(Wide));  // byte 0 need not stand for 0: in float8_e8m0fnu it is 2**-127
    return kept;
  }
  const Wide* codes(const Raw*, const Wide* bits) const { return bits; }
};

template <class Element> int count_zeros(const Element* numbers, int n) {
  typename Bits<sizeof(Element) == 1 ? 2 : sizeof(Element)>::Signed zeros = 0;
  for (int i = 0; i < n; ++i) zeros += numbers[i] == 0;
  return zeros;
}

template <class Element> double sum_wide(const Element* numbers, int n) {
  Doubles sum = {};
  const int whole = n - n % FOUR;
  for (int i = 0; i < whole; i += FOUR) sum += four<Doubles>(numbers + i);
  double rest = 0.0;
  for (int i = whole; i < n; ++i) rest += (double)numbers[i];
  return total(sum) + rest;
}

// What a block holds of narrow ones fits 64 bits.
template <class Element> double sum_integers(const Element* numbers, int n) {
  int64_t sum = 0;
  for (int i = 0; i < n; ++i) sum += numbers[i];
  return sum;
}

double sum_integers(const int64_t* numbers, int n) { return sum_wide(numbers, n); }
double sum_integers(const uint64_t* numbers, int n) { return sum_wide(numbers, n); }

template <class Element> void summarize_integers(const char* address, int64_t count, double* row) {
  alignas(64) Element scratch[PADDED];
  uint64_t digest = 0;
  reset(row);
  for (int64_t block = 0; block * BLOCK_ELEMENTS < count; ++block) {
    const int n = lesser(count - block * BLOCK_ELEMENTS, (int64_t)BLOCK_ELEMENTS);
    const Element* numbers = read_block(address, count, block, scratch);
    Ahead ahead = NOTHING_AHEAD;
    digest += digest_part(numbers, block, ahead);
    Element low = numbers[0], high = numbers[0];
    for (int i = 0; i < n; ++i) low = lesser(low, numbers[i]), high = greater(high, numbers[i]);
    row[SLOT_MIN] = lesser(row[SLOT_MIN], (double)low);
    row[SLOT_MAX] = greater(row[SLOT_MAX], (double)high);
    row[SLOT_SUM] += sum_integers(numbers, n);
    row[SLOT_ZERO] += count_zeros(numbers, n);
  }
  memcpy(row + SLOT_DIGEST, &digest, sizeof digest);
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default"))) void
#define ENTRY(name, work) \
  EXPORTED name(const char* address, int64_t count, double* row) { work; }

ENTRY(float64, summarize(address, count, Plain<int64_t>{rules_of(64, 11)}, row))
ENTRY(float32, summarize(address, count, Plain<int32_t>{rules_of(32, 8)}, row))
ENTRY(float16, Float16 widen; widen.rules.normal = (127LL - 14) << 23; summarize(address, count, widen, row))
ENTRY(bfloat16, summarize(address, count, Bfloat16(), row))
ENTRY(int8, summarize_integers<int8_t>(address, count, row))
ENTRY(int16, summarize_integers<int16_t>(address, count, row))
ENTRY(int32, summarize_integers<int32_t>(address, count, row))
ENTRY(int64, summarize_integers<int64_t>(address, count, row))
ENTRY(uint8, summarize_integers<uint8_t>(address, count, row))
ENTRY(uint16, summarize_integers<uint16_t>(address, count, row))
ENTRY(uint32, summarize_integers<uint32_t>(address, count, row))
ENTRY(uint64, summarize_integers<uint64_t>(address, count, row))

// table: the bits of all 256 numbers as float32; normal: those of the smallest normal one.
EXPORTED float8(const int32_t* table, int64_t normal, const char* address, int64_t count, double* row) {
  Float8 widen;
  widen.table = table;
  widen.rules.normal = normal;
  summarize(address, count, widen, row);
}

EXPORTED noise32(float* numbers, int64_t count, int kept, int lowest, double largest, int64_t seed) {
  move_like_rounding<float, uint32_t, 23, 127>(numbers, count, kept, lowest, largest, (uint32_t)seed);
}
EXPORTED noise64(double* numbers, int64_t count, int kept, int lowest, double largest, int64_t seed) {
  move_like_rounding<double, uint64_t, 52, 1023>(numbers, count, kept, lowest, largest, (uint32_t)seed);
}
EXPORTED jitter16(uint16_t* numbers, int64_t count, int64_t staying, int64_t seed) {
  jitter<uint16_t>(numbers, count, staying, (uint32_t)seed);
}
EXPORTED jitter32(uint32_t* numbers, int64_t count, int64_t staying, int64_t seed) {
  jitter<uint32_t>(numbers, count, staying, (uint32_t)seed);
}
EXPORTED jitter64(uint64_t* numbers, int64_t count, int64_t staying, int64_t seed) {
  jitter<uint64_t>(numbers, count, staying, (uint32_t)seed);
}

// Copies bytes to an address that is a multiple of a cache line, past the caches.
EXPORTED stream(char* target, const char* source, int64_t size) {
#if defined(__x86_64__)
  const int64_t whole = size - size % 64;
  for (int64_t start = 0; start < whole; start += 8) {
    long long word;
    memcpy(&word, source + start, 8);
    __builtin_ia32_movnti64((long long*)(target + start), word);
  }
  memcpy(target + whole, source + whole, size - whole);
  __builtin_ia32_sfence();  // such stores wait for nobody: another thread must not find what was there before
#else
  memcpy(target, source, size);
#endif
}
