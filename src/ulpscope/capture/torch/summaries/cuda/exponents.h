// Counts of a warp's numbers by exponent bin, in its own memory.
#ifndef ULPSCOPE_EXPONENTS
#define ULPSCOPE_EXPONENTS

#include "instructions.h"
#include "numbers.h"

class Exponents {
 public:
  DEVICE_MEMBER explicit Exponents(u8* counters) : counters_(reinterpret_cast<u32*>(counters)) {
    counters_[lane_number()] = 0;
    wait_for_warp();
  }

  DEVICE_MEMBER void add(u32 bin) { count_one(counters_ + bin); }

  // How many numbers lie in bin `lane`.
  DEVICE_MEMBER u32 counted() const {
    wait_for_warp();
    return counters_[lane_number()];
  }

 private:
  u32* counters_;
};

#endif
