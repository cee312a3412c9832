// Programs that no device allows, by number: a test that they are told.
#define __shared__ static IN_SHARED_MEMORY
#include "running.h"

static void wrong(int which) {
  __shared__ __align__(16) u8 room[32];
  static const __align__(16) u8 source[32] = {};
  if (which == 0 && lane_number() == 3) return;
  if (which == 1 && lane_number() == 3) sum_of_lanes(1);
  if (which == 2 && warp_number() == 1) wait_for_program();
  if (which == 3) copy_later<16>(room, source + 8);
  if (which == 4) copy_later<16>(room, source), end_of_copies();
  wait_for_warp();
}

extern "C" i64 run(const Grid* grid, const int* which, int, char* message, int room) {
  return run_programs(*grid, message, room, [&] { wrong(*which); }, nullptr);
}
