// The call that the run is in, in memory that outlives the process; ../../last_call.py says what for.
#pragma once

#include "texts.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace ulpscope {

class LastCall {
 public:
  explicit LastCall(const Texts& texts) : texts_(texts) {}
  LastCall(const LastCall&) = delete;
  ~LastCall() {
    if (owner_.obj != nullptr) PyBuffer_Release(&owner_);
  }

  void use(PyObject* memory) {
    if (PyObject_GetBuffer(memory, &owner_, PyBUF_WRITABLE) < 0) throw PythonRaised{};
    begin_ = static_cast<char*>(owner_.buf);
    end_ = begin_ + owner_.len;
  }

  void opened(int64_t step, int32_t phase, int32_t op, int64_t number, int32_t module) {
    if (begin_ == nullptr) return;
    place_ = begin_;
    put("(", 1);
    put(step);
    put("\n", 1);
    put_text(phase);
    put("\n", 1);
    put_text(op);
    put(".", 1);
    put(number);
    put("\n", 1);
    put_text(module);
    put("\n\0", 2);
  }

  void closed() {
    if (begin_ != nullptr) *begin_ = ')';
  }

 private:
  void put(const char* text, size_t length) {
    const size_t room = std::min(length, static_cast<size_t>(end_ - place_));
    std::memcpy(place_, text, room);
    place_ += room;
  }

  void put(int64_t number) {
    char digits[20];
    put(digits, static_cast<size_t>(std::to_chars(digits, digits + sizeof digits, number).ptr - digits));
  }

  void put_text(int32_t code) {
    if (code < 0) return;
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(PyList_GET_ITEM(texts_.items(), code), &length);
    if (text == nullptr) return PyErr_Clear();
    put(text, static_cast<size_t>(length));
  }

  const Texts& texts_;
  Py_buffer owner_{};
  char *begin_ = nullptr, *end_ = nullptr, *place_ = nullptr;
};

}  // namespace ulpscope
