// Rows of summaries on a device: which values go into one launch of the fused kernels, and where their rows land.
//
// The counterpart of summaries/launching.py, whose words and rules hold here too.
#pragma once

#include "geometry.h"

#include <ATen/core/Tensor.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <array>
#include <cstring>
#include <numeric>
#include <vector>

namespace ulpscope {

#include "launch.h"  // in here, as torch has a Layout, too

constexpr int64_t WIDE_UNIT = 16, NARROW_UNIT = 4;
constexpr int64_t MAX_STRIDE = (int64_t{1} << 31) - 1;

// Numbers of summaries/launching.py, handed over when the core is made.
struct Limits {
  int64_t block_elements, warps, max_blocks, partial_rows, partial_length, max_dimensions, max_strided_elements, max_elements,
      row_bytes, batch_rows;
};

// A compiled kernel; `at_once` of its programs run at once on the device.
struct Kernel {
  void* function = nullptr;
  unsigned threads = 0, shared = 0;
  int64_t at_once = 1;
  bool early = false;  // whether it waits for the kernel before it by itself
};

// CUDA's own functions, from the library that torch has loaded; null where there is none.
template <typename Function>
Function from_driver(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY);
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

// CUlaunchAttribute and CUlaunchConfig of CUDA's driver.
struct LaunchAttribute {
  int64_t number;
  int32_t value, rest[15];
};

struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  void* stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

// A kernel may be set up while the one before it ends, and waits for it by itself.
constexpr int64_t PROGRAMMATIC_STREAM_SERIALIZATION = 6;

using LaunchKernel = int (*)(const LaunchConfig* config, void* function, void** arguments, void** extra);

// Launches a kernel with its one argument, of which a copy is made.
template <typename Argument>
void launch_kernel(LaunchKernel launch, void* stream, const Kernel& kernel, unsigned programs, Argument& argument) {
  LaunchAttribute early{PROGRAMMATIC_STREAM_SERIALIZATION, 1};
  const LaunchConfig config{{programs, 1, 1}, {kernel.threads, 1, 1}, kernel.shared, stream, &early, kernel.early};
  void* arguments[] = {&argument};
  const int code = launch(&config, kernel.function, arguments, nullptr);
  TORCH_CHECK(code == 0, "cuLaunchKernelEx gave ", code);
}

// Of summaries/kernels.py's tuple.
inline Kernel kernel_from(PyObject* told) {
  PyObject** field = &PyTuple_GET_ITEM(told, 0);
  Kernel kernel;
  kernel.function = reinterpret_cast<void*>(as_int(field[0]));
  kernel.threads = static_cast<unsigned>(as_int(field[1]));
  kernel.shared = static_cast<unsigned>(as_int(field[2]));
  kernel.at_once = as_int(field[3]);
  kernel.early = field[4] == Py_True;
  return kernel;
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
  Owned reader;  // summaries/launching.py's
  void* raw = nullptr;  // the handle of the stream
  LaunchKernel launch = nullptr;
  int64_t partials = 0, used_partials = 0;
  Numbers joins;
  Owned batch;
  int32_t batch_number = -1;
  int64_t rows = 0, used_rows = 0;
  bool usable = true;
  std::array<Kernel, 128> kernels;  // by dtype
};

// A value that is to be read. Of its tensor only the memory is kept: autograd takes over a gradient that has no other owner.
struct Pending {
  Stream* stream;
  c10::Storage storage;
  int64_t offset;
  int32_t geometry;
  int8_t dtype;
  int64_t unit;  // bytes that are copied at once
  int64_t address, elements, row, index;
};

class Launching {
 public:
  Launching(PyObject* bridge, Limits limits, const Geometries& geometries)
      : bridge_(bridge), limits_(limits), geometries_(geometries) {
    kernel_ = Owned(PyUnicode_InternFromString("kernel"));
    join_ = Owned(PyUnicode_InternFromString("join"));
    layout_ = Owned(PyUnicode_InternFromString("layout"));
  }

  void set_item(int8_t dtype, int64_t item) { items_[dtype] = item; }

  // How the kernels read this tensor where it lies; false if they cannot.
  bool plan(Pending& pending) const {
    const int64_t item = items_[pending.dtype];
    const Geometry& geometry = geometries_[pending.geometry];
    pending.elements = geometry.elements;
    if (item == 0 || geometry.elements <= 0 || geometry.elements > limits_.max_elements) return false;
    if (pending.address % item != 0) return false;
    pending.unit = lie_in(WIDE_UNIT, pending, item)                          ? WIDE_UNIT
                   : item < NARROW_UNIT && lie_in(NARROW_UNIT, pending, item) ? NARROW_UNIT
                                                                             : item;
    return geometry.contiguous || is_near(geometry, pending.unit / item);
  }

  void read(std::vector<Pending>& all) {
    std::vector<bool> taken(all.size());
    for (size_t first = 0; first < all.size(); first++) {
      if (taken[first]) continue;
      std::vector<const Pending*> launch;
      int64_t elements = 0;
      for (size_t index = first; index < all.size() && launch.size() < LAUNCH_VALUES; index++) {
        const Pending& one = all[index];
        if (taken[index] || one.dtype != all[first].dtype || one.stream != all[first].stream) continue;
        if (elements + one.elements > limits_.max_elements) break;
        taken[index] = true;
        launch.push_back(&one);
        elements += one.elements;
      }
      read_together(launch);
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
  using LayoutKey = std::tuple<int32_t, int8_t, int64_t>;  // geometry, -1 if contiguous, dtype and unit

  static int64_t divided_up(int64_t number, int64_t by) { return (number + by - 1) / by; }

  // Whether units of so many bytes lie together everywhere.
  bool lie_in(int64_t unit, const Pending& pending, int64_t item) const {
    const Geometry& geometry = geometries_[pending.geometry];
    if (pending.address % unit != 0) return false;
    if (geometry.contiguous) return true;
    const int64_t count = unit / item;
    if (geometry.merged[0].second != 1 || geometry.merged[0].first % count != 0) return false;
    for (size_t index = 1; index < geometry.merged.size(); index++)
      if (geometry.merged[index].second % count != 0) return false;
    return true;
  }

  // Of units that hold so many elements: whether the kernels find them all.
  bool is_near(const Geometry& geometry, int64_t count) const {
    if (geometry.elements > limits_.max_strided_elements) return false;
    int64_t dimensions = geometry.merged[0].first > count;
    for (size_t index = 1; index < geometry.merged.size(); index++) {
      dimensions++;
      if (geometry.merged[index].second / count > MAX_STRIDE) return false;
    }
    return dimensions <= limits_.max_dimensions && (count > 1 || geometry.merged[0].second <= MAX_STRIDE);
  }

  int64_t blocks_of(const Pending& pending) const { return divided_up(pending.elements, limits_.block_elements); }

  // Programs of each value of a launch: they run all at once, if none has too many or too few blocks to read then.
  Numbers shares_of(const std::vector<const Pending*>& values, int64_t at_once) const {
    int64_t all = 0;
    for (const Pending* value : values) all += blocks_of(*value);
    const int64_t free = std::max<int64_t>(at_once - static_cast<int64_t>(values.size()), 0);
    Numbers shares;
    for (const Pending* value : values) {
      const int64_t blocks = blocks_of(*value), wanted = blocks * free / all + 1;
      const int64_t most = divided_up(blocks, limits_.warps), least = divided_up(blocks, limits_.max_blocks);
      shares.push_back(std::max(least, std::min(most, wanted)));
    }
    return shares;
  }

  void read_together(const std::vector<const Pending*>& values) {
    Stream& stream = *values[0]->stream;
    const auto guard = on(stream);
    const Kernel& kernel = kernel_of(stream, values[0]->dtype);
    const Numbers shares = shares_of(values, kernel.at_once);
    // Joined before these are placed: all that have partial rows must have been read first.
    const int64_t all = std::accumulate(shares.begin(), shares.end(), int64_t{0});
    if (stream.used_partials + all > limits_.partial_rows) join(stream);
    Launch launch;
    int64_t end = 0;
    for (size_t index = 0; index < values.size(); index++) {
      const int64_t programs = shares[index], blocks = blocks_of(*values[index]);
      end += programs;
      launch.ends[index] = static_cast<int>(end);
      Value& value = launch.values[index];
      value.address = values[index]->address;
      value.elements = values[index]->elements;
      value.row = place(stream, *values[index], programs);
      value.blocks = static_cast<int>(blocks / programs);
      value.longer = static_cast<int>(blocks % programs);
      value.layout = layout_of(*values[index]);
    }
    for (size_t index = values.size(); index < LAUNCH_VALUES; index++) launch.ends[index] = static_cast<int>(end);
    launch_kernel(stream.launch, stream.raw, kernel, static_cast<unsigned>(end), launch);
  }

  // Where a value's programs leave their rows: one program in the row itself, several in partial ones.
  int64_t place(Stream& stream, const Pending& pending, int64_t programs) const {
    if (programs == 1) return pending.row;
    const int64_t address = stream.partials + stream.used_partials * limits_.partial_length * 8;
    stream.used_partials += programs;
    stream.joins.insert(stream.joins.end(), {pending.row, address, programs});
    return address;
  }

  const Layout& layout_of(const Pending& pending) {
    const Geometry& geometry = geometries_[pending.geometry];
    const LayoutKey key{geometry.contiguous ? -1 : pending.geometry, pending.dtype, pending.unit};
    const auto found = layouts_.find(key);
    if (found != layouts_.end()) return found->second;
    Numbers dimensions;
    if (!geometry.contiguous)
      for (const auto& [size, stride] : geometry.merged) dimensions.insert(dimensions.end(), {size, stride});
    Owned flat = column(dimensions), item = integer(items_[pending.dtype]), unit = integer(pending.unit);
    Owned made = call_method(bridge_, layout_.get(), {flat.get(), item.get(), unit.get()});
    TORCH_CHECK(PyBytes_GET_SIZE(made.get()) == sizeof(Layout), "a layout of another size");
    Layout& layout = layouts_[key];
    std::memcpy(&layout, PyBytes_AS_STRING(made.get()), sizeof(Layout));
    return layout;
  }

  // Compiled when it is first asked for.
  const Kernel& kernel_of(Stream& stream, int8_t dtype) {
    Kernel& kernel = stream.kernels[dtype];
    if (kernel.function == nullptr) {
      Owned number = integer(dtype);
      Owned made = call_method(bridge_, kernel_.get(), {stream.reader.get(), number.get()});
      kernel = kernel_from(made.get());
    }
    return kernel;
  }

  PyObject* bridge_;
  Limits limits_;
  const Geometries& geometries_;
  std::array<int64_t, 128> items_{};  // bytes of an element, by dtype; 0 of those that the kernels do not read
  std::map<LayoutKey, Layout> layouts_;
  Owned kernel_, join_, layout_;
};

}  // namespace ulpscope
