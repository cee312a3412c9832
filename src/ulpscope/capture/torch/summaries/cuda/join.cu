// Makes one row of a value's partial ones. A line of the table: where it goes, where they are, how many.
#include "rows.h"

extern "C" __global__ void __launch_bounds__(32 * JOIN_WARPS) join(const i64* table) {
  __shared__ double sums[JOIN_WARPS][32];
  const i64* const line = table + 3 * static_cast<i64>(blockIdx.x);
  const double* const parts = reinterpret_cast<const double*>(line[1]);
  const i64 count = line[2];
  const int slot = 32 * blockIdx.y + lane_number();
  SlotSum own(slot);
  if (slot < ROW_LENGTH) {
#pragma unroll 8
    for (i64 part = warp_number(); part < count; part += JOIN_WARPS) own.add(parts[part * PARTIAL_LENGTH + slot]);
  }
  sums[warp_number()][lane_number()] = own.result();
  wait_for_program();
  if (warp_number() > 0 || slot >= ROW_LENGTH) return;
  SlotSum all(slot);
  for (int warp = 0; warp < JOIN_WARPS; warp++) all.add(sums[warp][lane_number()]);
  reinterpret_cast<double*>(line[0])[slot] = all.result();
}
