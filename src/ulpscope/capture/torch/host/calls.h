// Rows of calls and uses, by columns, and the numbers that calls get.
#pragma once

#include "texts.h"
#include "geometry.h"
#include "last_call.h"

#include <chrono>
#include <unordered_map>

namespace ulpscope {

// What a backward knows of its forward call, and what both write down. Texts by code, -1 for none.
struct CallRow {
  int64_t id = -1, number = 0, step = 0, micro_step = 0, parent = -1, forward = -1, stack = -1;
  int32_t kind = -1, op = -1, module = -1, module_class = -1, phase = -1, autocast = -1;
};

class Calls {
 public:
  explicit Calls(const Texts& texts) : last(texts) {
    arguments_ = Owned(checked(PyList_New(0)));
    errors_ = Owned(checked(PyDict_New()));
    draws_ = Owned(checked(PyDict_New()));
    no_arguments_ = Owned(PyUnicode_InternFromString("{}"));
  }

  int64_t seen = 0;
  LastCall last;

  int64_t next_id() { return ids_++; }
  bool began() const { return ids_ > 0; }

  // How many calls of this name came before it in its step and phase.
  int64_t next_number(int32_t phase, bool recompute, int32_t stem) {
    return numbers_[static_cast<uint64_t>(stem) << 16 | static_cast<uint64_t>(phase) << 1 | recompute]++;
  }

  // It runs from now on, until it is added.
  void opened(const CallRow& row) {
    seen++;
    last.opened(row.step, row.phase, row.op, row.number, row.module);
  }

  void clear_numbers() { numbers_.clear(); }

  void add(const CallRow& row, PyObject* arguments) {
    last.closed();
    id_.push_back(row.id);
    number_.push_back(row.number);
    step_.push_back(row.step);
    micro_step_.push_back(row.micro_step);
    parent_.push_back(row.parent);
    forward_.push_back(row.forward);
    stack_.push_back(row.stack);
    for (const int32_t code : {row.kind, row.op, row.module, row.module_class, row.phase, row.autocast})
      words_.push_back(code);
    if (PyList_Append(arguments_.get(), arguments != nullptr ? arguments : no_arguments_.get()) < 0)
      throw PythonRaised{};
  }

  void add_draw(int64_t id, PyObject* generator, bool drew) {
    Owned key = integer(id), draw(checked(PyTuple_Pack(2, generator, drew ? Py_True : Py_False)));
    if (PyDict_SetItem(draws_.get(), key.get(), draw.get()) < 0) throw PythonRaised{};
  }

  void add_error(int64_t id, PyObject* text) {
    Owned key = integer(id);
    if (PyDict_SetItem(errors_.get(), key.get(), text) < 0) throw PythonRaised{};
  }

  void use(int64_t call, int32_t role, int32_t place, int64_t value) {
    used_by_.push_back(call);
    used_.push_back(value);
    role_.push_back(role);
    place_.push_back(place);
  }

  size_t size() const { return id_.size(); }

  std::chrono::duration<double> since_taken() const { return std::chrono::steady_clock::now() - taken_; }

  Owned take_calls() {
    taken_ = std::chrono::steady_clock::now();
    Owned taken(checked(PyTuple_Pack(
        11, column(id_).get(), column(number_).get(), column(step_).get(), column(micro_step_).get(),
        column(parent_).get(), column(forward_).get(), column(stack_).get(), column(words_).get(), arguments_.get(),
        errors_.get(), draws_.get())));
    for (Numbers* numbers : {&id_, &number_, &step_, &micro_step_, &parent_, &forward_, &stack_}) numbers->clear();
    words_.clear();
    arguments_ = Owned(checked(PyList_New(0)));
    errors_ = Owned(checked(PyDict_New()));
    draws_ = Owned(checked(PyDict_New()));
    return taken;
  }

  Owned take_uses() {
    Owned taken(checked(PyTuple_Pack(
        4, column(used_by_).get(), column(role_).get(), column(place_).get(), column(used_).get())));
    used_by_.clear();
    used_.clear();
    role_.clear();
    place_.clear();
    return taken;
  }

 private:
  int64_t ids_ = 0;
  // Never, which is not long ago: a first part too early would not know its rank.
  std::chrono::steady_clock::time_point taken_ = std::chrono::steady_clock::time_point::max();
  std::unordered_map<uint64_t, int64_t> numbers_;
  Numbers id_, number_, step_, micro_step_, parent_, forward_, stack_, used_by_, used_;
  std::vector<int32_t> words_, role_, place_;
  Owned arguments_, errors_, draws_, no_arguments_;
};

}  // namespace ulpscope
