// Words that occur again and again, each with a code.
#pragma once

#include "python.h"

#include <vector>

namespace ulpscope {

class Texts {
 public:
  Texts() : codes_(checked(PyDict_New())), items_(checked(PyList_New(0))) {}

  int32_t code(PyObject* text) {
    PyObject* known = PyDict_GetItemWithError(codes_.get(), text);
    if (known != nullptr) return static_cast<int32_t>(PyLong_AsLong(known));
    if (PyErr_Occurred()) throw PythonRaised{};
    Owned fresh = integer(PyList_GET_SIZE(items_.get()));
    if (PyDict_SetItem(codes_.get(), text, fresh.get()) < 0) throw PythonRaised{};
    if (PyList_Append(items_.get(), text) < 0) throw PythonRaised{};
    return static_cast<int32_t>(PyLong_AsLong(fresh.get()));
  }

  int32_t optional_code(PyObject* text) { return text == Py_None ? -1 : code(text); }

  // A list that grows: whoever takes it must not change it.
  PyObject* items() const { return items_.get(); }

 private:
  Owned codes_;
  Owned items_;
};

}  // namespace ulpscope
