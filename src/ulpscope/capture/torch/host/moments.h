// Where the run is: whether it is captured, which step it is in.
#pragma once

#include "python.h"

namespace ulpscope {

class Moments {
 public:
  Moments(PyObject* recorder, PyObject* steps) : recorder_(kept(recorder)), steps_(kept(steps)) {}

  bool is_captured() const { return attribute(recorder_.get(), capturing_.get()).get() == Py_True; }
  int64_t step() const { return as_int(attribute(steps_.get(), step_.get()).get()); }
  int64_t micro_step() const { return as_int(attribute(steps_.get(), micro_step_.get()).get()); }
  Owned phase() const { return attribute(steps_.get(), phase_.get()); }

 private:
  Owned recorder_, steps_;
  Owned capturing_ = interned("capturing"), step_ = interned("step"), micro_step_ = interned("micro_step"),
        phase_ = interned("phase");
};

}  // namespace ulpscope
