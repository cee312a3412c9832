// What a launch of noise is told. Read by the kernel and by the compiled host part.
#ifndef ULPSCOPE_MOVED
#define ULPSCOPE_MOVED

struct Moved {
  long long address, count, seed, staying;
  double largest;
  int kept, lowest, jitters;
};

#endif
