// Owned references and errors of the interpreter. Everything here runs with the GIL held.
#pragma once

#include <torch/csrc/python_headers.h>
#include <pybind11/pybind11.h>

#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace ulpscope {

// Thrown when the interpreter's error indicator is set.
struct PythonRaised {};

// A reference that is given back.
class Owned {
 public:
  Owned() = default;
  explicit Owned(PyObject* object) : object_(object) {}
  Owned(Owned&& other) noexcept : object_(other.release()) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Owned() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_ = nullptr;
};

inline PyObject* checked(PyObject* object) {
  if (object == nullptr) throw PythonRaised{};
  return object;
}

inline PyObject* kept(PyObject* object) {
  Py_XINCREF(object);
  return object;
}

inline int64_t as_int(PyObject* object) {
  const int64_t number = PyLong_AsLongLong(object);
  if (number == -1 && PyErr_Occurred()) throw PythonRaised{};
  return number;
}

inline Owned attribute(PyObject* object, PyObject* name) { return Owned(checked(PyObject_GetAttr(object, name))); }

inline Owned interned(const char* text) { return Owned(checked(PyUnicode_InternFromString(text))); }

inline Owned call(PyObject* function, std::initializer_list<PyObject*> arguments) {
  return Owned(checked(PyObject_Vectorcall(function, arguments.begin(), arguments.size(), nullptr)));
}

inline Owned call_method(PyObject* object, PyObject* name, std::initializer_list<PyObject*> arguments) {
  PyObject* all[8] = {object};
  size_t count = 1;
  for (PyObject* argument : arguments) all[count++] = argument;
  return Owned(checked(PyObject_VectorcallMethod(name, all, count, nullptr)));
}

inline Owned integer(int64_t number) { return Owned(checked(PyLong_FromLongLong(number))); }

inline Owned optional_integer(int64_t number) { return number < 0 ? Owned(kept(Py_None)) : integer(number); }

inline int64_t optional_int(PyObject* object) { return object == Py_None ? -1 : as_int(object); }

// Whether what was raised is an error of ours; else it is the run's, and nobody may keep it from that.
inline bool is_ours(PyObject* bridge) {
  PyObject *kind, *error, *traceback;
  PyErr_Fetch(&kind, &error, &traceback);
  PyErr_NormalizeException(&kind, &error, &traceback);
  if (traceback != nullptr && error != nullptr) PyException_SetTraceback(error, traceback);
  Owned name(PyUnicode_InternFromString("is_interruption"));
  PyObject* arguments[] = {bridge, error != nullptr ? error : Py_None};
  Owned answer(PyObject_VectorcallMethod(name.get(), arguments, 2, nullptr));
  if (answer.get() == nullptr) PyErr_Clear();
  PyErr_Restore(kind, error, traceback);
  return answer.get() == Py_False;
}

// What was raised, which is no longer set; never null.
inline Owned taken_error() {
  PyObject *kind, *error, *traceback;
  PyErr_Fetch(&kind, &error, &traceback);
  PyErr_NormalizeException(&kind, &error, &traceback);
  if (traceback != nullptr && error != nullptr) PyException_SetTraceback(error, traceback);
  Owned owned_kind(kind), owned_traceback(traceback);
  return Owned(error != nullptr ? error : kept(Py_None));
}

// Have an error of ours noted in the trace; the run must not see it.
inline void note_error(PyObject* bridge, const char* where) {
  Owned error = taken_error(), place(PyUnicode_FromString(where)), name(PyUnicode_InternFromString("note_error"));
  PyObject* arguments[] = {bridge, place.get(), error.get()};
  Owned done(PyObject_VectorcallMethod(name.get(), arguments, 3, nullptr));
  PyErr_Clear();
}

// A lock of Python's that its holder may take again. Whoever waits for it lets others have the GIL.
class Lock {
 public:
  explicit Lock(PyObject* lock) {
    acquire_ = Owned(checked(PyObject_GetAttrString(lock, "acquire")));
    release_ = Owned(checked(PyObject_GetAttrString(lock, "release")));
  }

  void acquire() const { call(acquire_.get(), {}); }

  void release() const {
    PyObject *kind, *error, *traceback;
    PyErr_Fetch(&kind, &error, &traceback);
    Owned done(PyObject_Vectorcall(release_.get(), nullptr, 0, nullptr));
    PyErr_Restore(kind, error, traceback);
  }

 private:
  Owned acquire_, release_;
};

// Python that is called from here lets other threads run: they must not come here meanwhile.
class Held {
 public:
  explicit Held(const Lock& lock) : lock_(lock) { lock_.acquire(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { lock_.release(); }

 private:
  const Lock& lock_;
};

template <typename Item>
Owned column(const std::vector<Item>& items) {
  return Owned(checked(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(Item))));
}

}  // namespace ulpscope
