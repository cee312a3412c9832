// Moves the numbers of one tensor as far as rounding moves them, in place; which ones, noise.h says.
//
// The counterpart of noise.py's `move`, which does what is out of the ordinary here, too.
#pragma once

#include "launching.h"

#include <c10/core/DeviceGuard.h>

#include <cmath>
#include <map>
#include <memory>

namespace ulpscope {

#include "moved.h"

// The number of a precision, as host/noise.py counts them; UNKNOWN stands for Python's None.
using Precision = int8_t;
constexpr Precision UNKNOWN = -1;

class Moving {
 public:
  // `asked` answers questions by the methods of host/noise.py's NoiseBridge.
  explicit Moving(PyObject* asked) : asked_(asked) {}

  // Of a dtype with the precision `own`, as if another run held it in `precision`, times two to the power of `scale`.
  void move(const at::Tensor& tensor, Precision own, Precision precision, int64_t seed, int scale) {
    if (tensor.numel() == 0 || tensor.is_meta()) return;
    if (!tensor.is_contiguous() && !tensor.is_non_overlapping_and_dense()) return slowly(tensor, precision, seed, scale);
    How& how = how_of(own, precision);
    Moved moved = how.parameters;
    moved.address = reinterpret_cast<int64_t>(tensor.mutable_data_ptr());
    moved.count = tensor.numel();
    moved.seed = seed;
    moved.lowest -= scale;
    moved.largest = std::ldexp(moved.largest, -scale);
    const bool done = tensor.is_cpu() ? move_here(moved, how) : move_on_device(moved, tensor);
    if (!done) slowly(tensor, precision, seed, scale);
  }

 private:
  using Jitter = void (*)(int64_t address, int64_t count, int64_t staying, int64_t seed);
  using Round = void (*)(int64_t address, int64_t count, int kept, int lowest, double largest, int64_t seed);

  // numerics/noise.py's NoiseParameters, and the function for the memory of the CPU.
  struct How {
    Moved parameters{};
    Precision own, precision;
    bool is_asked = false;
    void* function = nullptr;
  };

  // A stream of a device, and the kernels by the size of an element; without `launch` there are none.
  struct Place {
    c10::Device device;
    int64_t id;
    void* stream = nullptr;
    LaunchKernel launch = nullptr;
    std::array<Kernel, 9> kernels;
  };

  How& how_of(Precision own, Precision precision) {
    How& how = hows_[{own, precision}];
    if (how.parameters.staying == 0) {
      Owned told = call_method(asked_, parameters_.get(), {integer(own).get(), integer(precision).get()});
      PyObject** field = &PyTuple_GET_ITEM(told.get(), 0);
      how.own = own;
      how.precision = precision;
      how.parameters.jitters = field[0] == Py_True;
      how.parameters.kept = static_cast<int>(as_int(field[2]));
      how.parameters.lowest = static_cast<int>(as_int(field[3]));
      how.parameters.largest = PyFloat_AsDouble(field[4]);
      how.parameters.staying = as_int(field[1]);
    }
    return how;
  }

  // False where nothing could be compiled.
  bool move_here(const Moved& moved, How& how) {
    if (!how.is_asked) {
      Owned address = call_method(asked_, address_.get(), {integer(how.own).get(), integer(how.precision).get()});
      how.function = reinterpret_cast<void*>(as_int(address.get()));
      how.is_asked = true;
    }
    if (how.function == nullptr) return false;
    const pybind11::gil_scoped_release released;
    if (moved.jitters)
      reinterpret_cast<Jitter>(how.function)(moved.address, moved.count, moved.staying, moved.seed);
    else
      reinterpret_cast<Round>(how.function)(
          moved.address, moved.count, moved.kept, moved.lowest, moved.largest, moved.seed);
    return true;
  }

  // On the current stream; false where no kernel runs.
  bool move_on_device(Moved& moved, const at::Tensor& tensor) {
    Place& place = place_of(tensor);
    if (place.launch == nullptr) return false;
    const Kernel& kernel = kernel_of(place, tensor);
    if (kernel.function == nullptr) return false;
    const int64_t programs = (moved.count + kernel.threads - 1) / kernel.threads;
    const c10::DeviceGuard guard(place.device);
    launch_kernel(
        place.launch, place.stream, kernel, static_cast<unsigned>(std::min(programs, kernel.at_once)), moved);
    return true;
  }

  Place& place_of(const at::Tensor& tensor) {
    const c10::Device device = tensor.device();
    const int64_t id = current_stream(device).id();
    for (const auto& place : places_)
      if (place->id == id && place->device == device) return *place;
    Owned object(checked(THPVariable_Wrap(tensor))), told = call_method(asked_, place_.get(), {object.get()});
    auto place = std::make_unique<Place>(Place{device, id});
    place->stream = reinterpret_cast<void*>(as_int(PyTuple_GET_ITEM(told.get(), 0)));
    place->launch = reinterpret_cast<LaunchKernel>(as_int(PyTuple_GET_ITEM(told.get(), 1)));
    places_.push_back(std::move(place));
    return *places_.back();
  }

  // Compiled when it is first asked for; where it cannot be, the place has none at all.
  const Kernel& kernel_of(Place& place, const at::Tensor& tensor) {
    Kernel& kernel = place.kernels[tensor.element_size()];
    if (kernel.function == nullptr) {
      Owned object(checked(THPVariable_Wrap(tensor))), made = call_method(asked_, kernel_.get(), {object.get()});
      if (made.get() == Py_None)
        place.launch = nullptr;
      else
        kernel = kernel_from(made.get());
    }
    return kernel;
  }

  void slowly(const at::Tensor& tensor, Precision precision, int64_t seed, int scale) {
    Owned object(checked(THPVariable_Wrap(tensor)));
    call_method(
        asked_, move_.get(), {object.get(), integer(precision).get(), integer(seed).get(), integer(scale).get()});
  }

  PyObject* asked_;
  std::map<std::pair<Precision, Precision>, How> hows_;
  std::vector<std::unique_ptr<Place>> places_;
  Owned parameters_ = interned("parameters"), address_ = interned("address"), place_ = interned("place"),
        kernel_ = interned("kernel"), move_ = interned("move");
};

}  // namespace ulpscope
