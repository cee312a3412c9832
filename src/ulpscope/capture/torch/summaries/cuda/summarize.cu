// Reads values: stats, sketch, digest and exponent bins in one read. Compiled for one kind of element at a time.
#include "anything.h"
#include "hashing.h"
#include "ordinary.h"
#include "rows.h"
#include "staging.h"
#include "tensor_cores.h"

constexpr bool HAS_ORDINARY = KIND != FLOAT64 && KIND != INTEGER;

template <int KIND>
struct WayOf {
  typedef OrdinarySums Sums;
};
template <>
struct WayOf<BFLOAT16> {
  typedef TensorCoreSums Sums;
};
typedef typename WayOf<KIND>::Sums OrdinaryWay;

// Which blocks of a value a warp reads, and how many elements are in the value's last one.
struct Blocks {
  int first, count, last, left_in_last;

  DEVICE_MEMBER int number(int turn) const { return first + turn * WARPS; }
  DEVICE_MEMBER int left(int turn) const { return number(turn) == last ? left_in_last : BLOCK; }
  DEVICE_MEMBER u32 elements() const { return count * BLOCK - (BLOCK - left(count - 1)); }
};

// How many values of a launch come before the one that a program reads.
DEVICE int value_number(const Launch& launch, int program) {
  return program < launch.ends[0] ? 0 : lanes_with(program >= launch.ends[lane_number()]);
}

DEVICE Blocks blocks_of_warp(const Value& value, int program) {
  const int all = static_cast<int>((value.elements + BLOCK - 1) / BLOCK);
  const bool longer = program < value.longer;
  const int first = program * value.blocks + (longer ? program : value.longer) + warp_number();
  const int count = (value.blocks + longer + WARPS - 1 - warp_number()) / WARPS;
  return {first, count, all - 1, static_cast<int>(value.elements - static_cast<i64>(all - 1) * BLOCK)};
}

// Brings a warp's blocks; DEPTH of them are under way or being read.
class Pipeline {
 public:
  DEVICE_MEMBER Pipeline(const Value& value, const Blocks& blocks, u8* stages)
      : value_(value), blocks_(blocks), stages_(stages), next_(0), stage_(0) {
    from_ = reinterpret_cast<const u8*>(value.address) + static_cast<i64>(blocks.first) * STAGE_BYTES +
            16 * lane_number();
    const bool in_one_piece = value.layout.bytes == 16 && value.layout.dimensions == 0;
    whole_ = in_one_piece ? blocks.count - (blocks.left(blocks.count - 1) < BLOCK) : 0;
#pragma unroll 1
    for (int turn = 0; turn < DEPTH - 1; turn++) begin_next();
  }

  template <typename Sums>
  DEVICE_MEMBER void add_to(Sums& sums) {
    BlockWords words(blocks_.first, WARPS);
    int stage = 0;
#pragma unroll 1
    for (int turn = 0; turn < blocks_.count; turn++) {
      begin_next();
      wait_for_copies<DEPTH - 1>();
      wait_for_warp();
      sums.add(stages_ + stage, words.of(turn), blocks_.number(turn), blocks_.left(turn));
      wait_for_warp();
      stage = behind(stage);
    }
  }

 private:
  DEVICE_MEMBER static int behind(int stage) { return stage == (DEPTH - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES; }

  DEVICE_MEMBER void begin_next() {
    if (USUAL(next_ < whole_))
      stage_whole(stages_ + stage_ + 16 * lane_number(), from_);
    else if (next_ < blocks_.count)
      stage(stages_ + stage_, value_, blocks_.number(next_), blocks_.left(next_));
    end_of_copies();
    from_ += WARPS * STAGE_BYTES;
    stage_ = behind(stage_);
    next_++;
  }

  const Value& value_;
  const Blocks& blocks_;
  const u8* from_;
  u8* stages_;
  int next_, whole_, stage_;
};

// Reads a warp's blocks as if they were ordinary; false if they are not, and for kinds that have no such way.
DEVICE bool read_as_ordinary(LaneRow& row, const Value& value, const Blocks& blocks, u8* nothing, u8* own) {
  if constexpr (HAS_ORDINARY) {
    Pipeline pipeline(value, blocks, own);
    OrdinaryWay sums(nothing, own + DEPTH * STAGE_BYTES);
    pipeline.add_to(sums);
    return sums.finish(row, blocks.elements());
  }
  return false;
}

static __device__ __noinline__ void read_anyhow(WarpRow& to, const Value& value, const Blocks& blocks, u8* own) {
  Pipeline pipeline(value, blocks, own);
  AnySums sums(own + DEPTH * STAGE_BYTES);
  pipeline.add_to(sums);
  LaneRow row = no_row();
  sums.finish(row, blocks.elements());
  wait_for_warp();
  store_lane(to, row, true);
}

// Leaves the warp's part of the row where its blocks were.
DEVICE void read_warp(WarpRow& to, const Value& value, const Blocks& blocks, u8* nothing, u8* own) {
  LaneRow row = no_row();
  if (blocks.count == 0 || read_as_ordinary(row, value, blocks, nothing, own)) {
    wait_for_warp();
    store_lane(to, row, false);
  } else {
    wait_for_warp();
    read_anyhow(to, value, blocks, own);
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, PROGRAMS) summarize(const __grid_constant__ Launch launch) {
  extern __shared__ __align__(16) u8 memory[];
  const int number = value_number(launch, program_number());
  const Value& value = launch.values[number];
  const int program = program_number() - (number == 0 ? 0 : launch.ends[number - 1]);
  u8* const warps = memory + NOTHING_BYTES;
  u8* const own = warps + warp_number() * WARP_BYTES;
  wait_for_kernel_before();
  read_warp(*reinterpret_cast<WarpRow*>(own), value, blocks_of_warp(value, program), memory, own);
  wait_for_program();
  store_row(reinterpret_cast<double*>(value.row) + static_cast<i64>(program) * PARTIAL_LENGTH, warps);
}
