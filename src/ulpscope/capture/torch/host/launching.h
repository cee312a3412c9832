// Rows of summaries on a device: which values go into one launch of the fused kernels, and where their rows land.
//
// The counterpart of fused/launching.py, whose words and rules hold here too.
#pragma once

#include "geometry.h"

#include <ATen/core/Tensor.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <array>
#include <string>
#include <vector>

namespace ulpscope {

constexpr size_t FEW = 4;
constexpr size_t SEVERAL = 4 * FEW;
constexpr size_t MAX_ARGUMENTS = 32;
// Of a block of RUN_ELEMENTS' runs each lane can find one. Programs that use the tensor cores have MANY_WARPS.
constexpr int64_t RUN_ELEMENTS = 64;
constexpr int64_t MAX_RUN_OFFSET = (int64_t{1} << 32) - 1;
constexpr int64_t MANY_WARPS = 4;
constexpr int64_t BFLOAT16_KIND = 0;
enum Lies { DENSE, PAIRED, STRIDED, RUNS, WAYS_TO_LIE };
enum Kernel { SUMMARIZE_FEW, SUMMARIZE_MANY, SUMMARIZE_STRIDED, KERNELS };

// Numbers of fused/launching.py, handed over when the core is made.
struct Limits {
  int64_t block_elements, max_inner, full_grid, partial_rows, partial_length, max_dimensions, max_strided_elements,
      max_elements, float32_kind, row_bytes, batch_rows;
};

// What a kernel is compiled for.
struct Variant {
  bool usable = false;
  int64_t kind = 0, item = 0, smallest_normal = 0;
};

// A compiled kernel that can be launched without Triton.
struct Launcher {
  void* function = nullptr;
  unsigned threads = 0, shared = 0;
  std::vector<bool> wide;  // which of its arguments have eight bytes; the others have four
};

// CUDA's own functions, from the library that torch has loaded; null where there is none.
template <typename Function>
Function from_driver(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY);
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

using LaunchKernel = int (*)(
    void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, void* stream,
    void** arguments, void** extra);

inline LaunchKernel launch_kernel() {
  static const auto function = from_driver<LaunchKernel>("cuLaunchKernel");
  return function;
}

using IsCapturing = int (*)(void* stream, int* status);

inline IsCapturing is_capturing() {
  static const auto function = from_driver<IsCapturing>("cuStreamIsCapturing");
  return function;
}

inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// The batch that is being filled on one stream, and what reads values there.
struct Stream {
  c10::Device device;
  int64_t id;
  Owned reader;  // fused/launching.py's
  void* raw = nullptr;  // the handle of the stream
  int64_t keys = 0;  // the address of the digest's keys
  int64_t partials = 0, used_partials = 0;
  Numbers joins;
  Owned batch;
  int32_t batch_number = -1;
  int64_t rows = 0, used_rows = 0;
  bool usable = true;
  std::array<std::vector<Launcher>, KERNELS> launchers;
};

// A value that is to be read. Of its tensor only the memory is kept: autograd takes over a gradient that has no other owner.
struct Pending {
  Stream* stream;
  c10::Storage storage;
  int64_t offset;
  int32_t geometry;
  int8_t dtype;
  Lies lies;
  int64_t address, elements, row, index;
};

struct Share {
  const Pending* pending;
  int64_t blocks, programs;
};

class Launching {
 public:
  Launching(PyObject* bridge, Limits limits, const Geometries& geometries)
      : bridge_(bridge), limits_(limits), geometries_(geometries) {
    launch_ = Owned(PyUnicode_InternFromString("launch"));
    read_many_ = Owned(PyUnicode_InternFromString("read_many"));
    join_ = Owned(PyUnicode_InternFromString("join"));
    layout_ = Owned(PyUnicode_InternFromString("layout"));
  }

  void set_variant(int8_t dtype, int64_t kind, int64_t item, int64_t smallest_normal) {
    Variant& variant = variants_[dtype];
    variant.usable = true;
    variant.kind = kind;
    variant.item = item;
    variant.smallest_normal = smallest_normal;
  }

  // How the kernels read this tensor where it lies; false if they cannot.
  bool plan(Pending& pending) const {
    const Variant& variant = variants_[pending.dtype];
    const Geometry& geometry = geometries_[pending.geometry];
    pending.elements = geometry.elements;
    if (!variant.usable || geometry.elements <= 0 || geometry.elements > limits_.max_elements) return false;
    // Only pairs of floats are read at once; everything else element by element, however it lies.
    const bool aligned = variant.kind > limits_.float32_kind || pending.address % (2 * variant.item) == 0;
    if (geometry.contiguous) {
      pending.lies = aligned ? DENSE : STRIDED;
      return true;
    }
    if (geometry.elements > limits_.max_strided_elements ||
        static_cast<int64_t>(geometry.merged.size()) > limits_.max_dimensions)
      return false;
    pending.lies = !aligned || !in_pairs(geometry) ? STRIDED
                   : variant.kind == BFLOAT16_KIND && in_runs(geometry) ? RUNS
                                                                        : PAIRED;
    return true;
  }

  void read(std::vector<Pending>& all) {
    std::vector<bool> taken(all.size());
    for (size_t first = 0; first < all.size(); first++) {
      if (taken[first]) continue;
      std::vector<const Pending*> group;
      for (size_t index = first; index < all.size(); index++) {
        if (taken[index] || !go_together(all[first], all[index])) continue;
        taken[index] = true;
        group.push_back(&all[index]);
      }
      if (all[first].lies == DENSE)
        read_portions(group);
      else
        read_strided(group);
    }
  }

  // One thread may settle what another one has asked for, which belongs to another stream or device.
  static c10::StreamGuard on(const Stream& stream) {
    return c10::StreamGuard(c10::Stream(c10::Stream::UNSAFE, stream.device, stream.id));
  }

  void forget_layouts() { layouts_.clear(); }

  // Make whole rows of all partial ones.
  void join(Stream& stream) {
    if (!stream.joins.empty()) {
      Owned table = column(stream.joins);
      call_method(bridge_, join_.get(), {stream.reader.get(), table.get()});
      stream.joins.clear();
    }
    stream.used_partials = 0;
  }

 private:
  static bool go_together(const Pending& one, const Pending& other) {
    if (one.dtype != other.dtype || one.stream != other.stream || one.lies != other.lies) return false;
    return one.lies == DENSE || one.geometry == other.geometry;
  }

  static bool in_pairs(const Geometry& geometry) {
    if (geometry.merged.empty() || geometry.merged[0].second != 1 || geometry.merged[0].first % 2 != 0) return false;
    for (size_t index = 1; index < geometry.merged.size(); index++)
      if (geometry.merged[index].second % 2 != 0) return false;
    return true;
  }

  // Of pairs: whether they lie in runs, none of them too far away.
  static bool in_runs(const Geometry& geometry) {
    int64_t last = 0;
    for (const auto& [size, stride] : geometry.merged) last += (size - 1) * stride;
    return geometry.merged[0].first >= RUN_ELEMENTS && last <= MAX_RUN_OFFSET;
  }

  int64_t warps(const Pending& pending) const {
    const bool many = pending.lies == DENSE || pending.lies == RUNS;
    return many && variants_[pending.dtype].kind == BFLOAT16_KIND ? MANY_WARPS : 1;
  }

  static int64_t divided_up(int64_t number, int64_t by) { return (number + by - 1) / by; }

  int64_t whole_blocks(const Pending& pending) const { return pending.elements / limits_.block_elements; }

  // Of a launch that reads so many blocks: its programs run all at once, if they need not read too many for that.
  Share share(const Pending& pending, int64_t all_blocks) const {
    const int64_t inner = std::min(limits_.max_inner, std::max<int64_t>(1, divided_up(all_blocks, limits_.full_grid)));
    int64_t blocks = inner * warps(pending);
    const int64_t whole = whole_blocks(pending);
    const int64_t most = limits_.partial_rows - 1;
    if (whole > blocks * most) blocks = divided_up(whole, most);
    const bool more = pending.elements % limits_.block_elements > 0;
    return {&pending, blocks, divided_up(whole, blocks) + more};
  }

  // Partial rows are joined before a launch's values are placed: all that have some must have been read first.
  std::vector<Share> with_room(const std::vector<const Pending*>& launch) {
    int64_t blocks = 0, programs = 0;
    for (const Pending* pending : launch) blocks += whole_blocks(*pending);
    std::vector<Share> shares;
    for (const Pending* pending : launch) {
      shares.push_back(share(*pending, blocks));
      programs += shares.back().programs;
    }
    Stream& stream = *launch[0]->stream;
    if (stream.used_partials + programs > limits_.partial_rows) join(stream);
    return shares;
  }

  // Where a value's programs leave their rows: one program in the row itself, several in partial ones.
  int64_t place(Stream& stream, const Share& share) const {
    if (share.programs == 1) return share.pending->row;
    const int64_t address = stream.partials + stream.used_partials * limits_.partial_length * 8;
    stream.used_partials += share.programs;
    stream.joins.insert(stream.joins.end(), {share.pending->row, address, share.programs});
    return address;
  }

  // Parts of these that have partial rows enough: each by itself needs the most.
  void read_portions(const std::vector<const Pending*>& group) {
    std::vector<const Pending*> portion;
    int64_t rows = 0;
    for (const Pending* pending : group) {
      const int64_t alone = share(*pending, whole_blocks(*pending)).programs;
      if (rows + alone > limits_.partial_rows) {
        read_dense(portion);
        portion.clear();
        rows = 0;
      }
      portion.push_back(pending);
      rows += alone;
    }
    if (!portion.empty()) read_dense(portion);
  }

  void read_dense(const std::vector<const Pending*>& values) {
    const auto guard = on(*values[0]->stream);
    if (values.size() > SEVERAL) return read_many(with_room(values));
    for (size_t first = 0; first < values.size(); first += FEW) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
      read_few(with_room({begin, begin + static_cast<std::ptrdiff_t>(std::min(FEW, values.size() - first))}));
    }
  }

  void read_few(const std::vector<Share>& shares) {
    Stream& stream = *shares[0].pending->stream;
    Numbers arguments;
    int64_t end = 0;
    for (const Share& share : shares) {
      end += share.programs;
      const int64_t where = place(stream, share);
      arguments.insert(arguments.end(), {share.pending->address, share.pending->elements, end, share.blocks, where});
    }
    while (arguments.size() < 5 * FEW) arguments.insert(arguments.end(), {0, 0, end, 0, 0});
    arguments.erase(arguments.begin() + 5 * FEW - 3);  // where the last one's programs end nobody asks
    launch(SUMMARIZE_FEW, *shares[0].pending, end, arguments);
  }

  void read_many(const std::vector<Share>& shares) {
    const Pending& first = *shares[0].pending;
    Stream& stream = *first.stream;
    Numbers table;
    std::vector<int32_t> owners;
    for (const Share& share : shares) {
      const int64_t where = place(stream, share);
      const auto begin = static_cast<int64_t>(owners.size());
      table.insert(table.end(), {begin, share.pending->address, share.pending->elements, share.blocks, where});
      owners.insert(owners.end(), share.programs, static_cast<int32_t>(&share - shares.data()));
    }
    Owned lines = column(table), owner = column(owners), dtype = integer(first.dtype);
    call_method(bridge_, read_many_.get(), {stream.reader.get(), dtype.get(), lines.get(), owner.get()});
  }

  void read_strided(const std::vector<const Pending*>& alike) {
    const auto guard = on(*alike[0]->stream);
    for (size_t first = 0; first < alike.size(); first += FEW) {
      const auto begin = alike.begin() + static_cast<std::ptrdiff_t>(first);
      read_strided_few(with_room({begin, begin + static_cast<std::ptrdiff_t>(std::min(FEW, alike.size() - first))}));
    }
  }

  void read_strided_few(const std::vector<Share>& shares) {
    const Pending& pending = *shares[0].pending;
    Numbers arguments;
    for (const Share& share : shares)
      arguments.insert(arguments.end(), {share.pending->address, place(*pending.stream, share)});
    arguments.resize(2 * FEW);
    arguments.insert(arguments.end(), {pending.elements, shares[0].blocks});
    const Numbers& layout = layout_of(pending);
    arguments.insert(arguments.end(), layout.begin(), layout.end());
    launch(SUMMARIZE_STRIDED, pending, shares[0].programs, arguments, static_cast<unsigned>(shares.size()));
  }

  const Numbers& layout_of(const Pending& pending) {
    Numbers& layout = layouts_[{pending.geometry, pending.lies}];
    if (layout.empty()) {
      Numbers dimensions;
      const Geometry& geometry = geometries_[pending.geometry];
      for (const auto& [size, stride] : geometry.merged) dimensions.insert(dimensions.end(), {size, stride});
      if (geometry.contiguous) dimensions = {geometry.elements, 1};
      Owned flat = column(dimensions), lies = integer(pending.lies);
      Owned numbers = call_method(bridge_, layout_.get(), {flat.get(), lies.get()});
      for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(numbers.get()); index++)
        layout.push_back(as_int(PyTuple_GET_ITEM(numbers.get(), index)));
    }
    return layout;
  }

  void launch(
      Kernel kernel, const Pending& pending, int64_t programs, const Numbers& arguments, unsigned slices = 1) {
    Stream& stream = *pending.stream;
    auto& launchers = stream.launchers[kernel];
    const size_t index = pending.dtype * WAYS_TO_LIE + pending.lies;
    if (launchers.size() <= index) launchers.resize(index + 1);
    Launcher& launcher = launchers[index];
    if (launcher.function == nullptr)
      launch_slowly(launcher, kernel, pending, programs, slices, arguments);
    else
      launch_directly(launcher, pending, programs, slices, arguments);
  }

  // Through Triton, which compiles the kernel if it has to.
  void launch_slowly(
      Launcher& launcher, Kernel kernel, const Pending& pending, int64_t programs, unsigned slices,
      const Numbers& arguments) {
    Owned packed = column(arguments), code = integer(kernel), count = integer(programs), across = integer(slices);
    Owned dtype = integer(pending.dtype), lies = integer(pending.lies);
    Owned compiled = call_method(
        bridge_,
        launch_.get(),
        {pending.stream->reader.get(), code.get(), dtype.get(), lies.get(), count.get(), across.get(), packed.get()});
    if (compiled.get() == Py_None) return;
    PyObject** field = &PyTuple_GET_ITEM(compiled.get(), 0);
    if (launch_kernel() == nullptr || PyTuple_GET_SIZE(field[3]) > static_cast<Py_ssize_t>(MAX_ARGUMENTS)) return;
    launcher.threads = static_cast<unsigned>(as_int(field[1]));
    launcher.shared = static_cast<unsigned>(as_int(field[2]));
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(field[3]); index++)
      launcher.wide.push_back(PyTuple_GET_ITEM(field[3], index) == Py_True);
    launcher.function = reinterpret_cast<void*>(as_int(field[0]));
  }

  void launch_directly(
      const Launcher& launcher, const Pending& pending, int64_t programs, unsigned slices, const Numbers& arguments) {
    int64_t numbers[MAX_ARGUMENTS];
    void* places[MAX_ARGUMENTS + 2];
    size_t count = 0;
    numbers[count++] = pending.stream->keys;
    numbers[count++] = variants_[pending.dtype].smallest_normal;
    for (const int64_t argument : arguments) numbers[count++] = argument;
    TORCH_CHECK(count == launcher.wide.size(), "a kernel wants ", launcher.wide.size(), " arguments, not ", count);
    // Of a number of four bytes, the lower half is where the whole begins.
    for (size_t index = 0; index < count; index++) places[index] = &numbers[index];
    int64_t no_scratch = 0;  // Triton's kernels may take the addresses of two scratch memories behind their arguments
    places[count] = places[count + 1] = &no_scratch;
    const int code = launch_kernel()(
        launcher.function, static_cast<unsigned>(programs), slices, 1, launcher.threads, 1, 1, launcher.shared,
        pending.stream->raw, places, nullptr);
    TORCH_CHECK(code == 0, "cuLaunchKernel gave ", code);
  }

  PyObject* bridge_;
  Limits limits_;
  const Geometries& geometries_;
  std::array<Variant, 128> variants_;
  std::map<std::pair<int32_t, int>, Numbers> layouts_;
  Owned launch_, read_many_, join_, layout_;
};

}  // namespace ulpscope
