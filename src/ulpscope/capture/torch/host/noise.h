// A twin's noise: what happens to an operator's operands and results when the dispatch mode of ../noise.py is asked.
//
// The counterpart of that NoiseMode, whose words and rules hold here too. An operator that runs, and Python that is
// asked, let other threads come here meanwhile: what is known of tensors is looked up anew after either.
#pragma once

#include "moments.h"
#include "moving.h"

#include <ATen/PythonTorchFunctionTLS.h>

#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace ulpscope {

// No function mode sees what is called from here.
class Unseen {
 public:
  Unseen() { at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED); }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
  ~Unseen() { at::impl::PythonTorchFunctionTLS::set_disabled_state(before_); }

 private:
  at::impl::TorchFunctionDisabledState before_ = at::impl::PythonTorchFunctionTLS::get_disabled_state();
};

class Noise {
 public:
  // What noise.py's mode was made with.
  struct Settings {
    PyObject *asked, *scopes, *results, *setup, *forward;
    Precision autocast, parameters;
    int64_t seed;
    PyObject* backward;
    int loss_scale;
  };

  Noise(const Moments& moments, const Settings& settings)
      : moments_(moments), asked_(kept(settings.asked)), scopes_(kept(settings.scopes)),
        results_(kept(settings.results)), setup_(kept(settings.setup)), forward_(kept(settings.forward)),
        autocast_(settings.autocast), parameters_(settings.parameters), first_seed_(settings.seed), seed_(settings.seed),
        backward_(kept(settings.backward)), loss_scale_(settings.loss_scale), moving_(settings.asked) {}

  // Tells the next precision, and which dtype has it, if noise moves that.
  void add_precision(double unit_roundoff, std::optional<at::ScalarType> dtype) {
    if (dtype) own_[static_cast<int8_t>(*dtype)] = static_cast<Precision>(roundings_.size());
    roundings_.push_back(unit_roundoff);
  }

  // What torch asks the dispatch mode: an operator to be run.
  Owned dispatch(PyObject* function, PyObject* args, PyObject* kwargs) {
    const Unseen unseen;
    const Owned phase = moments_.phase();
    if (phase.get() == setup_.get()) return Owned(checked(PyObject_Call(function, args, kwargs)));
    // The other run's gradients underflow later, by as much as they are scaled.
    scale_ = phase.get() == backward_.get() ? loss_scale_ : 0;
    const Operator& known = operator_of(function);
    Objects given;
    if (known.touched) {
      find_floats(args, given);
      if (kwargs != nullptr) find_floats(kwargs, given);
    }
    if (!given.empty()) return run(known, given, args, kwargs, phase.get() == forward_.get());
    Owned result(checked(PyObject_Call(known.own.get(), args, kwargs)));
    for (PyObject* object : floats_of(result.get())) held_.erase(address_of(object));
    return result;
  }

 private:
  using Objects = std::vector<PyObject*>;  // owned by what they were found in
  using Precisions = std::unordered_map<const void*, Precision>;

  // noise.py's _Kernel.
  struct Operator {
    Owned function, written, key, own;  // `own` is what is called
    bool touched, computes, contracts;
  };

  const Operator& operator_of(PyObject* function) {
    const auto found = operators_.find(function);
    if (found != operators_.end()) return found->second;
    Owned told = call_method(asked_.get(), operator_.get(), {function});
    PyObject** field = &PyTuple_GET_ITEM(told.get(), 0);
    Operator fresh{Owned(kept(function)), Owned(kept(field[3])), Owned(kept(field[4])), Owned(kept(field[5])),
                   field[0] == Py_True,   field[1] == Py_True,   field[2] == Py_True};
    return operators_.emplace(function, std::move(fresh)).first->second;
  }

  Owned run(const Operator& known, const Objects& given, PyObject* args, PyObject* kwargs, bool forward) {
    const Precision precision = precision_of(known, given, forward);
    Owned taken_args, taken_kwargs;
    if (known.contracts) {
      taken_args = arguments_taken_as(args, known, precision);
      if (kwargs != nullptr) taken_kwargs = named_taken_as(kwargs, known, precision);
      args = taken_args.get();
      kwargs = taken_kwargs.get();
    }
    Owned result(checked(PyObject_Call(known.own.get(), args, kwargs)));
    if (known.computes)
      move_results(result.get(), precision);
    else
      carry_on(result.get(), given, precision);
    return result;
  }

  void move_results(PyObject* result, Precision precision) {
    for (PyObject* object : floats_of(result)) {
      const Precision coarser = coarser_than_own(precision, object);
      move(object, coarser);
      hold(object, coarser);
    }
  }

  // What is moved out of a parameter, which set-up made, was not yet rounded. What lies where an operand lies stays.
  void carry_on(PyObject* result, const Objects& given, Precision precision) {
    std::unordered_set<const void*> written;
    Precision held = UNKNOWN;
    for (PyObject* object : given) {
      written.insert(address_of(object));
      held = coarsest(held, looked_up(held_, object));
    }
    for (PyObject* object : floats_of(result)) {
      if (written.count(address_of(object)) > 0) continue;
      const Precision coarser = coarser_than_own(precision, object);
      if (coarser != UNKNOWN && held != coarser) move(object, coarser);
      hold(object, coarser);
    }
  }

  // In which precision the other run has the results; UNKNOWN: in their own.
  Precision precision_of(const Operator& known, const Objects& given, bool forward) {
    if (forward && PyDict_GET_SIZE(results_.get()) > 0) {
      const std::optional<Precision> told = precision_in_module(known);
      if (told) return *told;
    }
    Precision coarse = UNKNOWN;
    bool wide = false;
    for (PyObject* object : given) {
      const Precision held = held_as(object);
      wide = wide || (held == UNKNOWN && THPVariable_Unpack(object).dim() > 0);
      coarse = coarsest(coarse, held);
    }
    if (!known.contracts) return wide ? UNKNOWN : coarse;
    for (PyObject* object : given) coarse = coarsest(coarse, looked_up(taken_, object));
    return forward ? coarsest(coarse, autocast_) : coarse;
  }

  // What the table says of operations of this kind in the module that is running.
  std::optional<Precision> precision_in_module(const Operator& known) {
    Owned path = attribute(attribute(scopes_.get(), innermost_.get()).get(), path_.get());
    PyObject* module = path.get() == Py_None ? outside_.get() : path.get();
    Owned key(checked(PyTuple_Pack(2, module, known.key.get())));
    PyObject* told = PyDict_GetItemWithError(results_.get(), key.get());
    if (told == nullptr && PyErr_Occurred()) throw PythonRaised{};
    return told == nullptr ? std::nullopt : std::optional<Precision>(static_cast<Precision>(as_int(told)));
  }

  Precision held_as(PyObject* object) {
    const Precision held = looked_up(held_, object);
    if (held != UNKNOWN || parameters_ == UNKNOWN) return held;
    const int is_parameter = PyObject_IsInstance(object, ParameterClass);
    if (is_parameter < 0) throw PythonRaised{};
    return is_parameter ? parameters_ : UNKNOWN;
  }

  // A contraction's arguments, with its operands as it takes them. What it writes into must be the run's own.
  Owned arguments_taken_as(PyObject* args, const Operator& known, Precision precision) {
    Owned taken(checked(PyTuple_New(PyTuple_GET_SIZE(args))));
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(args); index++) {
      PyObject* argument = PyTuple_GET_ITEM(args, index);
      const bool is_written = writes(known, integer(index).get());
      PyTuple_SET_ITEM(taken.get(), index, is_written ? kept(argument) : taken_as(argument, precision).release());
    }
    return taken;
  }

  Owned named_taken_as(PyObject* kwargs, const Operator& known, Precision precision) {
    Owned taken(checked(PyDict_Copy(kwargs)));
    PyObject *name, *argument;
    Py_ssize_t position = 0;
    while (PyDict_Next(kwargs, &position, &name, &argument)) {
      if (writes(known, name)) continue;
      if (PyDict_SetItem(taken.get(), name, taken_as(argument, precision).get()) < 0) throw PythonRaised{};
    }
    return taken;
  }

  static bool writes(const Operator& known, PyObject* place) {
    const int found = PySet_Contains(known.written.get(), place);
    if (found < 0) throw PythonRaised{};
    return found > 0;
  }

  // An operand, or several in a list.
  Owned taken_as(PyObject* thing, Precision precision) {
    if (THPVariable_Check(thing)) return is_float(thing) ? operand_taken_as(thing, precision) : Owned(kept(thing));
    if (!PyList_CheckExact(thing) && !PyTuple_CheckExact(thing)) return Owned(kept(thing));
    Owned taken(checked(PySequence_List(thing)));
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(taken.get()); index++) {
      Owned item = taken_as(PyList_GET_ITEM(taken.get(), index), precision);
      PyList_SetItem(taken.get(), index, item.release());
    }
    return taken;
  }

  Owned operand_taken_as(PyObject* object, Precision precision) {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    const Precision coarser = coarser_than_own(precision, object);
    if (coarser != UNKNOWN) {
      taken_[address_of(object)] = coarser;
      if (looked_up(held_, object) == coarser) return Owned(kept(object));
    } else if (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16) {
      return Owned(kept(object));  // summed in float32, in whichever order
    }
    Owned copy(checked(THPVariable_Wrap(copied(tensor))));
    move(copy.get(), coarser);
    return copy;
  }

  static at::Tensor copied(const at::Tensor& tensor) {
    const pybind11::gil_scoped_release released;
    return tensor.detach().clone();
  }

  void move(PyObject* object, Precision coarser) {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    const Precision own = own_of(tensor);
    // A rounding is the same wherever it is made; another order of a sum is none.
    if (coarser != UNKNOWN)
      moving_.move(tensor, own, coarser, first_seed_, scale_);
    else
      moving_.move(tensor, own, own, seed_++, scale_);
  }

  void hold(PyObject* object, Precision coarser) {
    if (coarser == UNKNOWN)
      held_.erase(address_of(object));
    else
      held_[address_of(object)] = coarser;
  }

  // The one with fewer bits; of equals the first.
  Precision coarsest(Precision one, Precision other) const {
    if (other == UNKNOWN) return one;
    return one == UNKNOWN || roundings_[other] > roundings_[one] ? other : one;
  }

  // A precision, if it is coarser than the tensor's own.
  Precision coarser_than_own(Precision precision, PyObject* object) const {
    const Precision own = own_of(THPVariable_Unpack(object));
    return precision != UNKNOWN && roundings_[precision] > roundings_[own] ? precision : UNKNOWN;
  }

  Precision own_of(const at::Tensor& tensor) const { return own_[static_cast<int8_t>(tensor.scalar_type())]; }

  static Precision looked_up(const Precisions& known, PyObject* object) {
    const auto found = known.find(address_of(object));
    return found != known.end() ? found->second : UNKNOWN;
  }

  static const void* address_of(PyObject* object) { return THPVariable_Unpack(object).storage().mutable_data(); }

  // Whether this is a plain tensor of real numbers, in memory: a sparse one has none of its own.
  bool is_float(PyObject* object) const {
    if (!THPVariable_CheckExact(object)) return false;
    const at::Tensor& tensor = THPVariable_Unpack(object);
    return own_of(tensor) != UNKNOWN && tensor.layout() == c10::kStrided;
  }

  Objects floats_of(PyObject* result) const {
    Objects found;
    find_floats(result, found);
    return found;
  }

  // All plain tensors of real numbers among what an operator was given or gave.
  void find_floats(PyObject* thing, Objects& found) const {
    if (THPVariable_Check(thing)) {
      if (is_float(thing)) found.push_back(thing);
    } else if (PyTuple_Check(thing) || PyList_Check(thing)) {
      PyObject** items = PySequence_Fast_ITEMS(thing);
      for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(thing); index++) find_floats(items[index], found);
    } else if (PyDict_Check(thing)) {
      PyObject *key, *item;
      Py_ssize_t position = 0;
      while (PyDict_Next(thing, &position, &key, &item)) find_floats(item, found);
    }
  }

  const Moments& moments_;
  Owned asked_, scopes_, results_, setup_, forward_;
  Precision autocast_, parameters_;
  int64_t first_seed_, seed_;
  Owned backward_;
  int loss_scale_, scale_ = 0;
  Moving moving_;
  std::vector<double> roundings_;  // unit roundoff, by precision
  std::array<Precision, 128> own_ = [] {
    std::array<Precision, 128> none{};
    none.fill(UNKNOWN);
    return none;
  }();  // by dtype
  std::unordered_map<PyObject*, Operator> operators_;
  Precisions held_, taken_;  // noise.py's, by address
  Owned operator_ = interned("operator"), innermost_ = interned("innermost"), path_ = interned("path"),
        outside_ = interned("");
};

}  // namespace ulpscope
