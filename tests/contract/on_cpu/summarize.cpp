#define __shared__  // room that comes with the launch
#include "running.h"

#include "summarize.cu"

IN_SHARED_MEMORY __align__(16) u8 memory[NOTHING_BYTES + WARPS * WARP_BYTES + GUARD_BYTES];

extern "C" i64 run(const Grid* grid, const Launch* launch, int shared_bytes, char* message, int room) {
  return run_programs(*grid, message, room, [&] { summarize(*launch); }, memory + shared_bytes);
}
