// Encoded arguments, kept by what tells them apart: a layer's calls look like those of the layer before.
//
// The counterpart of Encodings in recording/arguments.py, whose rules hold here too.
#pragma once

#include "texts.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/Size.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace ulpscope {

constexpr size_t MAX_KEPT = 4096;
constexpr Py_ssize_t MAX_PARTS = 64;
constexpr size_t MAX_SIGNATURE = 8192;
constexpr size_t MAX_ALIASED = 32;

// A tensor among the arguments or results of a call; kept, for a call may empty the list that held it.
class Placed {
 public:
  Placed(int32_t place, PyObject* object) : place(place), object_(kept(object)) {}
  Placed(const Placed& other) : Placed(other.place, other.object()) {}
  Placed(Placed&&) noexcept = default;
  Placed& operator=(Placed&&) noexcept = default;

  PyObject* object() const { return object_.get(); }
  const at::Tensor& tensor() const { return THPVariable_Unpack(object()); }

  int32_t place;

 private:
  Owned object_;
};

using Tensors = std::vector<Placed>;

struct Encoded {
  Owned text;
  std::vector<int32_t> places;
};

class Arguments {
 public:
  Arguments(PyObject* bridge, Texts& texts) : bridge_(bridge), texts_(texts) {
    encode_ = Owned(PyUnicode_InternFromString("encode"));
  }

  // The tensors of a call, and the text of everything (borrowed); null if nothing but encoding it can tell. Of a module
  // it is told whether it is `training`; None for functions.
  PyObject* encode(PyObject* args, PyObject* kwargs, PyObject* training, Tensors& tensors) {
    signature_.assign(1, training == Py_None ? 'F' : training == Py_True ? 'M' : 'E');
    std::vector<PyObject*> found;
    put_number(PyTuple_GET_SIZE(args));
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(args); index++)
      if (!sign(PyTuple_GET_ITEM(args, index), found)) return nullptr;
    if (kwargs != nullptr && !sign_named(kwargs, found)) return nullptr;
    auto known = known_.find(signature_);
    if (known == known_.end()) {
      if (known_.size() >= MAX_KEPT) known_.clear();  // arguments that differ each time
      const std::string signature = signature_;
      known = known_.emplace(signature, ask(args, kwargs, training)).first;
    }
    const Encoded& encoded = known->second;
    if (encoded.places.size() != found.size()) return nullptr;
    for (size_t index = 0; index < found.size(); index++) tensors.push_back({encoded.places[index], found[index]});
    return encoded.text.get();
  }

 private:
  Encoded ask(PyObject* args, PyObject* kwargs, PyObject* training) {
    Owned answer = call_method(bridge_, encode_.get(), {args, kwargs != nullptr ? kwargs : Py_None, training});
    Encoded encoded;
    encoded.text = Owned(kept(PyTuple_GET_ITEM(answer.get(), 0)));
    PyObject* places = PyTuple_GET_ITEM(answer.get(), 1);
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(places); index++)
      encoded.places.push_back(texts_.code(PyTuple_GET_ITEM(places, index)));
    return encoded;
  }

  bool sign_named(PyObject* kwargs, std::vector<PyObject*>& found) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(kwargs, &position, &key, &item)) {
      put('k');
      if (!sign_text(key) || !sign(item, found)) return false;
    }
    return true;
  }

  bool sign(PyObject* item, std::vector<PyObject*>& found) {
    if (signature_.size() > MAX_SIGNATURE) return false;  // a list may hold itself
    if (THPVariable_Check(item)) {
      sign_tensor(item, found);
      return true;
    }
    if (item == Py_None || item == Py_True || item == Py_False) {
      put(item == Py_None ? 'n' : item == Py_True ? 'y' : 'x');
      return true;
    }
    if (PyLong_CheckExact(item)) return sign_integer(item);
    if (PyFloat_CheckExact(item)) {
      put('f');
      put_bytes(PyFloat_AS_DOUBLE(item));
      return true;
    }
    if (PyUnicode_CheckExact(item)) return sign_text(item);
    if (PyTuple_CheckExact(item) || PyList_CheckExact(item) || THPSize_Check(item)) return sign_sequence(item, found);
    return sign_word(item, found);
  }

  bool sign_sequence(PyObject* item, std::vector<PyObject*>& found) {
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(item);
    if (count > MAX_PARTS) return false;
    put(PyList_CheckExact(item) ? 'l' : PyTuple_CheckExact(item) ? 't' : 'z');
    put_number(count);
    for (Py_ssize_t index = 0; index < count; index++)
      if (!sign(PySequence_Fast_GET_ITEM(item, index), found)) return false;
    return true;
  }

  bool sign_word(PyObject* item, std::vector<PyObject*>& found) {
    if (PySlice_Check(item)) {
      auto* slice = reinterpret_cast<PySliceObject*>(item);
      put('s');
      return sign(slice->start, found) && sign(slice->stop, found) && sign(slice->step, found);
    }
    if (THPDevice_Check(item)) {
      const c10::Device device = reinterpret_cast<THPDevice*>(item)->device;
      put('d');
      put_number(static_cast<int64_t>(device.type()) << 8 | static_cast<uint8_t>(device.index()));
      return true;
    }
    if (THPDtype_Check(item) || THPLayout_Check(item) || THPMemoryFormat_Check(item)) {  // of these there is one each
      put('p');
      put_bytes(item);
      return true;
    }
    return false;
  }

  bool sign_integer(PyObject* item) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(item, &overflow);
    if (overflow != 0) return false;
    put('i');
    put_number(number);
    return true;
  }

  bool sign_text(PyObject* item) {
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(item, &length);
    if (text == nullptr) {
      PyErr_Clear();
      return false;
    }
    put('u');
    put_number(length);
    signature_.append(text, length);
    return true;
  }

  void sign_tensor(PyObject* item, std::vector<PyObject*>& found) {
    put('T');
    for (size_t position = 0; position < found.size() && position < MAX_ALIASED; position++)
      if (found[position] == item) {
        put('a');
        put_number(static_cast<int64_t>(position));
        break;
      }
    found.push_back(item);
  }

  void put(char tag) { signature_.push_back(tag); }
  void put_number(int64_t number) { put_bytes(number); }

  template <typename Item>
  void put_bytes(const Item& item) {
    signature_.append(reinterpret_cast<const char*>(&item), sizeof(item));
  }

  PyObject* bridge_;
  Texts& texts_;
  Owned encode_;
  std::string signature_;
  std::unordered_map<std::string, Encoded> known_;
};

}  // namespace ulpscope
