// What a launch is told: its values, and where their rows land. Read by the kernels and by the compiled host part.
#ifndef ULPSCOPE_LAUNCH
#define ULPSCOPE_LAUNCH

// As many as the arguments of a kernel can hold (4 KiB), rounded down.
constexpr int LAUNCH_VALUES = 32;

// Where units of `bytes` bytes lie: sizes of the three inner dimensions with what divides by them, the innermost first,
// and four strides in units. Without dimensions they lie one after the other.
struct Layout {
  int bytes, dimensions;
  unsigned sizes[3], factors[3], shifts[3];
  int strides[4];
};

struct Value {
  long long address, elements;
  long long row;  // of its first program; each leaves one
  int blocks;     // that a program reads
  int longer;     // how many programs, the first ones, read one more
  Layout layout;
};

struct Launch {
  int ends[LAUNCH_VALUES];  // how many programs there are up to a value's last one
  Value values[LAUNCH_VALUES];
};

#endif
