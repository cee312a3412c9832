// Numbers of stacks: those met before are found by the codes and positions on the way to the enclosing module call.
//
// The counterpart of StackTable.number in stacks.py, which is asked about every other one.
#pragma once

#include "python.h"

#include <string>
#include <unordered_map>

namespace ulpscope {

constexpr size_t MAX_DEPTH = 64;

class Stacks {
 public:
  explicit Stacks(PyObject* table) : table_(table) {
    number_ = Owned(PyUnicode_InternFromString("number"));
    is_hidden_ = Owned(PyUnicode_InternFromString("is_hidden"));
  }

  // The code of ours that every observed module call runs through; borrowed, as long as the capture lives.
  void set_module_call(PyObject* code) { module_call_ = code; }

  // The code that hands functions written in Python to a mode; borrowed from torch.
  void set_handler(PyObject* code) { handler_ = code; }

  // The Python code that asks the function mode, or None if compiled code does; borrowed from whoever knows it.
  PyObject* asking_code() const {
    Owned frame(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
    if (frame.get() == nullptr || code_of(frame.get()).get() != handler_) return Py_None;
    Owned asker(reinterpret_cast<PyObject*>(PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(frame.get()))));
    return asker.get() == nullptr ? Py_None : code_of(asker.get()).get();
  }

  // Of the innermost frame.
  int64_t number(int64_t enclosing) {
    Owned frame(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
    return frame.get() == nullptr ? -1 : number(frame.get(), enclosing);
  }

  int64_t number(PyObject* frame, int64_t enclosing) {
    const std::string key = walk(frame, enclosing);
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    Owned outer = optional_integer(enclosing);
    Owned fresh = call_method(table_, number_.get(), {frame, outer.get()});
    return known_[key] = as_int(fresh.get());
  }

 private:
  std::string walk(PyObject* innermost, int64_t enclosing) {
    std::string key;
    put(key, enclosing);
    const PyObject* stop = enclosing < 0 ? nullptr : module_call_;
    Owned frame(kept(innermost));
    for (size_t depth = 0; frame.get() != nullptr && depth < MAX_DEPTH;) {
      auto* at = reinterpret_cast<PyFrameObject*>(frame.get());
      Owned code = code_of(frame.get());
      if (code.get() == stop) return key;
      if (!is_hidden(code.get())) {
        put(key, reinterpret_cast<int64_t>(code.get()));
        put(key, position(at));
        depth++;
      }
      frame = Owned(reinterpret_cast<PyObject*>(PyFrame_GetBack(at)));
    }
    put(key, -2);  // all of it was walked
    return key;
  }

  static Owned code_of(PyObject* frame) {
    return Owned(reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame))));
  }

  static int64_t position(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
    return PyFrame_GetLasti(frame);
#else
    return frame->f_lasti;
#endif
  }

  // The table keeps every code that it has met: an address stays one code's.
  bool is_hidden(PyObject* code) {
    const auto known = hidden_.find(code);
    if (known != hidden_.end()) return known->second;
    Owned answer = call_method(table_, is_hidden_.get(), {code});
    return hidden_[code] = answer.get() == Py_True;
  }

  static void put(std::string& key, int64_t number) {
    key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }

  PyObject* table_;
  Owned number_, is_hidden_;
  PyObject *module_call_ = nullptr, *handler_ = nullptr;
  std::unordered_map<PyObject*, bool> hidden_;
  std::unordered_map<std::string, int64_t> known_;
};

}  // namespace ulpscope
