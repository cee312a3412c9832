// Observes one call of the function mode that does nothing out of the ordinary: what goes in, what comes out, and its
// backward. What else there is (writes, collectives, transforms, recomputation) is left to watching.py.
#pragma once

#include "pairing.h"
#include "stacks.h"

#include <ATen/Context.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace ulpscope {

class Watching {
 public:
  Watching(
      PyObject* bridge, const Lock& lock, PyObject* scopes, const Moments& moments, Calls& calls, Values& values,
      Pairing& pairing, Stacks& stacks, Texts& texts)
      : bridge_(bridge), lock_(lock), scopes_(scopes), moments_(moments), calls_(calls), values_(values),
        pairing_(pairing), stacks_(stacks), texts_(texts), arguments_(bridge, texts) {
    for (Interned* name : {&modules_, &open_calls_, &path_, &class_name_, &stack_, &id_, &find_outputs_,
                           &with_returned_, &describe_error_, &out_, &inplace_, &flush_, &generator_state_, &hidden_,
                           &generator_, &device_, &digest_state_})
      name->object = Owned(PyUnicode_InternFromString(name->text));
  }

  struct Words {
    int32_t api, backward, module, module_backward, input, output, parameter, buffer;
  };
  Words words{};
  size_t part_calls = 0;
  std::chrono::duration<double> part_seconds{};

  // Phases in which calls are taken; of other calls there is more to be known.
  void set_phase(PyObject* phase, PyObject* word) { phases_.emplace_back(Owned(kept(phase)), texts_.code(word)); }

  // What torch asks the function mode: PASS calls and plain ones are answered here, everything else by `slowly`.
  PyObject* dispatch(PyObject* function, PyObject* types, PyObject* args, PyObject* kwargs) {
    const Api* api = api_of(function);
    if (api == nullptr) return slowly(function, types, args, kwargs);
    PyObject* own = api->own.get();
    if (api->passes) return PyObject_Call(own, args, kwargs);
    pairing_.note_saving();
    if (!api->is_plain) return slowly(function, types, args, kwargs);
    if (!records_calls_) return PyObject_Call(own, args, kwargs);
    if (!watches()) return slowly(function, types, args, kwargs);
    PyObject* result = watch(api->name.get(), api->functional, api->draws, own, args, kwargs);
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
    return slowly(function, types, args, kwargs);
  }

  // A dispatch mode that is none of the run's.
  void set_noise_mode(PyObject* mode) { noise_mode_ = Owned(kept(mode)); }

  // Who answers for calls that are not taken, and whether calls are recorded at all.
  void set_mode(PyObject* slowly, bool records) {
    slowly_ = Owned(kept(slowly));
    records_calls_ = records;
  }

  // `own` is run where `asker`, a code or None, asks for `function`.
  void add_api(
      PyObject* function, PyObject* own, PyObject* asker, PyObject* name, bool passes, bool is_plain, bool functional,
      bool draws) {
    Owned index = integer(static_cast<int64_t>(apis_.size()));
    if (PyDict_SetItem(known_apis_.get(), function, index.get()) < 0) throw PythonRaised{};
    apis_.push_back({Owned(kept(name)), Owned(kept(own)), Owned(kept(asker)), passes, is_plain, functional, draws});
  }

  // What was noted before a call ran.
  struct Before {
    CallRow row;
    Owned arguments;
    Tensors tensors;
    std::vector<int64_t> versions;
    InputEdges edges;
    Owned generator;
  };

  // Notes a module's call; false if it is not taken.
  bool begin_module(
      PyObject* class_name, PyObject* path, PyObject* training, PyObject* args, PyObject* kwargs, PyObject* parameters,
      PyObject* buffers, PyObject* frame, Before& before) {
    pairing_.note_saving();
    if (!calls_.began() || !is_ordinary(false, args, nullptr)) return false;
    CallRow& row = before.row;
    if (!look_at_steps(row)) return false;
    PyObject* text = arguments_.encode(args, kwargs, training, before.tensors);
    if (text == nullptr) return false;
    before.arguments = Owned(kept(text));
    Tensors all = before.tensors;
    const size_t inputs = all.size();
    if (!add_named(parameters, all)) return false;
    const size_t wanting = all.size();
    if (!add_named(buffers, all)) return false;
    int64_t enclosing = -1;
    look_at_scopes(row, enclosing);
    row.kind = words.module;
    row.op = row.module_class = texts_.code(class_name);
    row.module = texts_.optional_code(path);
    open(row);
    row.stack = stacks_.number(frame, enclosing);
    for (size_t index = 0; index < all.size(); index++) {
      const int32_t role = index < inputs ? words.input : index < wanting ? words.parameter : words.buffer;
      calls_.use(row.id, role, all[index].place, values_.observe(all[index].object(), NONE));
    }
    for (const Placed& placed : before.tensors) before.versions.push_back(version_of(placed));
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(wanting), all.end());
    before.edges = note_inputs(all);
    values_.settle();
    return true;
  }

  void end_module(Before& before, int64_t module, PyObject* result) {
    Tensors outputs;
    find_outputs(result, outputs);
    for (const Placed& output : outputs)
      calls_.use(before.row.id, words.output, output.place, values_.observe(output.object(), before.row.id));
    calls_.add(before.row, before.arguments.get());
    if (before.edges.watched) {
      Tensors untouched, written;
      for (size_t index = 0; index < before.tensors.size(); index++) {
        const bool same = version_of(before.tensors[index]) == before.versions[index];
        (same ? untouched : written).push_back(before.tensors[index]);
      }
      pairing_.attach(before.row, words.module_backward, module, outputs, untouched, written, before.edges);
    }
    values_.settle();
    flush_if_many();
  }

  void fail(Before& before, PyObject* text) {
    calls_.add_error(before.row.id, text);
    calls_.add(before.row, before.arguments.get());
  }

  // What the function gives; null with an error set if it raised; NotImplemented if the call is not taken.
  PyObject* watch(PyObject* name, bool functional, bool draws, PyObject* function, PyObject* args, PyObject* kwargs) {
    Before before;
    bool taken = false;
    try {
      const Held held(lock_);
      taken = calls_.began() && is_ordinary(functional, args, kwargs) && begin(name, args, kwargs, before);
      if (taken && draws) before.generator = generator(before, kwargs);
      if (taken) values_.settle();
    } catch (const PythonRaised&) {
      if (!is_ours(bridge_)) return nullptr;
      note_error(bridge_, "before a call");
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      note_error(bridge_, "before a call");
    }
    if (!taken) return kept(Py_NotImplemented);
    PyObject* result = PyObject_Call(function, args, kwargs);
    if (guarded_end(before, kwargs, result)) return result;
    Py_XDECREF(result);
    return nullptr;
  }

 private:
  struct Interned {
    const char* text;
    Owned object;
    PyObject* get() const { return object.get(); }
  };

  struct Api {
    Owned name, own, asker;
    bool passes, is_plain, functional, draws;
  };

  // A generator's state that was met last, with its digest.
  struct Drawn {
    std::string state;
    Owned digest;
  };

  const Api* api_of(PyObject* function) {
    PyObject* index = PyDict_GetItemWithError(known_apis_.get(), function);
    if (index == nullptr) {
      PyErr_Clear();  // a callable that has no hash
      return nullptr;
    }
    const Api& api = apis_[PyLong_AsSize_t(index)];
    return api.asker.get() == stacks_.asking_code() ? &api : nullptr;
  }

  PyObject* slowly(PyObject* function, PyObject* types, PyObject* args, PyObject* kwargs) {
    PyObject* arguments[] = {function, types, args, kwargs != nullptr ? kwargs : Py_None};
    return PyObject_Vectorcall(slowly_.get(), arguments, 4, nullptr);
  }

  bool watches() {
    try {
      if (!moments_.is_captured() || as_int(attribute(scopes_, hidden_.get()).get()) != 0) return false;
      return !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer);  // torch.jit's
    } catch (const PythonRaised&) {
      PyErr_Clear();
      return false;
    }
  }

  // Whether operators go through a dispatch mode, but for a twin's noise, which lies below all that is recorded.
  bool is_dispatched() const {
    using Modes = c10::impl::TorchDispatchModeTLS;
    const int64_t count = Modes::stack_len();
    return count > 1 || (count == 1 && Modes::get_stack_at(0)->ptr(getPyInterpreter()) != noise_mode_.get());
  }

  bool is_ordinary(bool functional, PyObject* args, PyObject* kwargs) const {
    if (is_dispatched()) return false;
    if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) return false;
    if (kwargs != nullptr && PyDict_GET_SIZE(kwargs) > 0) {
      if (PyDict_GetItem(kwargs, out_.get()) != nullptr || PyDict_GetItem(kwargs, inplace_.get()) == Py_True)
        return false;
    }
    if (functional)
      for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(args); index++)
        if (PyTuple_GET_ITEM(args, index) == Py_True) return false;
    return true;
  }

  bool begin(PyObject* name, PyObject* args, PyObject* kwargs, Before& before) {
    CallRow& row = before.row;
    if (!look_at_steps(row)) return false;
    PyObject* text = arguments_.encode(args, kwargs, Py_None, before.tensors);
    if (text == nullptr) return false;
    before.arguments = Owned(kept(text));
    int64_t enclosing = -1;
    look_at_scopes(row, enclosing);
    row.kind = words.api;
    row.op = texts_.code(name);
    open(row);
    row.stack = stacks_.number(enclosing);
    row.autocast = autocast_of(before.tensors);
    for (const Placed& placed : before.tensors) {
      calls_.use(row.id, words.input, placed.place, values_.observe(placed.object(), NONE));
      before.versions.push_back(version_of(placed));
    }
    before.edges = note_inputs(before.tensors);
    return true;
  }

  bool look_at_steps(CallRow& row) {
    const Owned phase = moments_.phase();
    for (const auto& [known, word] : phases_)
      if (known.get() == phase.get()) row.phase = word;
    row.step = moments_.step();
    row.micro_step = moments_.micro_step();
    return row.phase >= 0;
  }

  void open(CallRow& row) {
    row.id = calls_.next_id();
    row.number = calls_.next_number(row.phase, false, row.op);
    calls_.opened(row);
  }

  // False if there is something else among the tensors.
  bool add_named(PyObject* tensors, Tensors& all) {
    PyObject *name, *tensor;
    Py_ssize_t position = 0;
    while (PyDict_Next(tensors, &position, &name, &tensor)) {
      if (tensor == Py_None) continue;
      if (!THPVariable_Check(tensor)) return false;
      all.push_back({texts_.code(name), tensor});
    }
    return true;
  }

  void flush_if_many() {
    if (calls_.size() >= part_calls || calls_.since_taken() >= part_seconds) call_method(bridge_, flush_.get(), {});
  }

  void look_at_scopes(CallRow& row, int64_t& enclosing) {
    Owned modules = attribute(scopes_, modules_.get());
    if (PyList_GET_SIZE(modules.get()) > 0) {
      PyObject* scope = PyList_GET_ITEM(modules.get(), PyList_GET_SIZE(modules.get()) - 1);
      row.module = texts_.optional_code(attribute(scope, path_.get()).get());
      row.module_class = texts_.optional_code(attribute(scope, class_name_.get()).get());
      enclosing = optional_int(attribute(scope, stack_.get()).get());
    }
    Owned open = attribute(scopes_, open_calls_.get());
    if (PyList_GET_SIZE(open.get()) > 0) {
      PyObject* parent = PyList_GET_ITEM(open.get(), PyList_GET_SIZE(open.get()) - 1);
      row.parent = as_int(attribute(parent, id_.get()).get());
    }
  }

  int32_t autocast_of(const Tensors& tensors) {
    const auto dtype = autocast_dtype(tensors.empty() ? c10::kCPU : tensors[0].tensor().device().type());
    return dtype ? values_.word_of(*dtype) : -1;
  }

  static int64_t version_of(const Placed& placed) {
    return placed.tensor().is_inference() ? NONE : static_cast<int64_t>(placed.tensor()._version());
  }

  // Digest of the state of the generator that the call would draw from, or None. As long as a device's own generator
  // has the same state, its digest is the same.
  Owned generator(const Before& before, PyObject* kwargs) {
    PyObject* first = before.tensors.empty() ? Py_None : before.tensors[0].object();
    const bool is_chosen = kwargs != nullptr && PyDict_GET_SIZE(kwargs) > 0 && chooses_generator(kwargs);
    const c10::Device device = first == Py_None ? c10::Device(c10::kMeta) : before.tensors[0].tensor().device();
    if (is_chosen || (!device.is_cpu() && !device.is_cuda()))
      return call_method(bridge_, generator_state_.get(), {first, kwargs != nullptr ? kwargs : Py_None});
    std::string state = state_of(at::globalContext().defaultGenerator(device));
    if (!drawn_ || drawn_->state != state) {
      Owned bytes(checked(PyBytes_FromStringAndSize(state.data(), static_cast<Py_ssize_t>(state.size()))));
      Owned digest = call_method(bridge_, digest_state_.get(), {bytes.get()});
      drawn_ = Drawn{std::move(state), std::move(digest)};
    }
    return Owned(kept(drawn_->digest.get()));
  }

  bool chooses_generator(PyObject* kwargs) const {
    return PyDict_GetItem(kwargs, generator_.get()) != nullptr || PyDict_GetItem(kwargs, device_.get()) != nullptr;
  }

  static std::string state_of(at::Generator generator) {
    const std::lock_guard<std::mutex> held(generator.mutex());
    const at::Tensor state = generator.get_state();
    return {static_cast<const char*>(state.const_data_ptr()), state.nbytes()};
  }

  void note_draw(const Before& before, PyObject* kwargs) {
    if (before.generator.get() == nullptr || before.generator.get() == Py_None) return;
    Owned now = generator(before, kwargs);
    const int same = PyObject_RichCompareBool(now.get(), before.generator.get(), Py_EQ);
    calls_.add_draw(before.row.id, before.generator.get(), same == 0);
  }

  // False, with the error set, if the run was interrupted meanwhile.
  bool guarded_end(Before& before, PyObject* kwargs, PyObject* result) {
    PyObject *kind = nullptr, *error = nullptr, *traceback = nullptr;
    if (result == nullptr) PyErr_Fetch(&kind, &error, &traceback);
    try {
      const Held held(lock_);
      if (result == nullptr) {
        PyErr_NormalizeException(&kind, &error, &traceback);
        Owned text = call_method(bridge_, describe_error_.get(), {error != nullptr ? error : Py_None});
        fail(before, text.get());
      } else {
        note_draw(before, kwargs);
        end(before, result);
      }
      values_.settle();
      flush_if_many();
    } catch (const PythonRaised&) {
      if (!is_ours(bridge_)) {
        Owned instead_of(kind), its_error(error), its_traceback(traceback);
        return false;
      }
      note_error(bridge_, "after a call");
    } catch (const std::exception& raised) {
      PyErr_SetString(PyExc_RuntimeError, raised.what());
      note_error(bridge_, "after a call");
    }
    if (result == nullptr) PyErr_Restore(kind, error, traceback);
    return true;
  }

  void end(Before& before, PyObject* result) {
    Tensors outputs;
    find_outputs(result, outputs);
    note_writes(before);
    if (before.edges.watched)
      pairing_.attach(before.row, words.backward, -1, outputs, before.tensors, {}, before.edges);
    for (const Placed& output : outputs)
      calls_.use(before.row.id, words.output, output.place, values_.observe(output.object(), before.row.id));
    if (outputs.empty()) {
      Owned text = call_method(bridge_, with_returned_.get(), {before.arguments.get(), result});
      before.arguments = std::move(text);
    }
    calls_.add(before.row, before.arguments.get());
  }

  void find_outputs(PyObject* result, Tensors& outputs) {
    if (THPVariable_Check(result)) {
      outputs.push_back({output_place(0), result});
      return;
    }
    if (find_several(result, outputs)) return;
    if (result == Py_None || PyBool_Check(result) || PyLong_Check(result) || PyFloat_Check(result)) return;
    Owned found = call_method(bridge_, find_outputs_.get(), {result});
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(found.get()); index++) {
      PyObject* placed = PyList_GET_ITEM(found.get(), index);
      outputs.push_back({texts_.code(PyTuple_GET_ITEM(placed, 0)), PyTuple_GET_ITEM(placed, 1)});
    }
  }

  // Tensors one after the other; false if there is anything else.
  bool find_several(PyObject* result, Tensors& outputs) {
    if (!PyTuple_Check(result) && !PyList_Check(result)) return false;
    const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(result));
    PyObject** items = PySequence_Fast_ITEMS(result);
    for (size_t index = 0; index < count; index++)
      if (!THPVariable_Check(items[index])) return false;
    for (size_t index = 0; index < count; index++) outputs.push_back({output_place(index), items[index]});
    return true;
  }

  int32_t output_place(size_t index) {
    while (output_places_.size() <= index) {
      Owned text(checked(PyUnicode_FromFormat("output.%zu", output_places_.size())));
      output_places_.push_back(texts_.code(text.get()));
    }
    return output_places_[index];
  }

  // Calls that may write are not taken; should one write all the same, what was known of its arguments is forgotten.
  void note_writes(const Before& before) {
    for (size_t index = 0; index < before.tensors.size(); index++) {
      if (version_of(before.tensors[index]) == before.versions[index]) continue;
      Storage* storage = values_.storage_of(before.tensors[index].object());
      if (storage == nullptr) continue;
      storage->forget();
      storage->writer = before.row.id;
      storage->unwritten = 0;
    }
  }

  PyObject* bridge_;
  const Lock& lock_;
  PyObject* scopes_;
  const Moments& moments_;
  Owned slowly_, noise_mode_, known_apis_{checked(PyDict_New())};
  std::deque<Api> apis_;
  bool records_calls_ = true;
  Calls& calls_;
  Values& values_;
  Pairing& pairing_;
  Stacks& stacks_;
  Texts& texts_;
  Arguments arguments_;
  std::vector<std::pair<Owned, int32_t>> phases_;
  std::vector<int32_t> output_places_;
  Interned modules_{"modules"}, open_calls_{"calls"}, path_{"path"}, class_name_{"class_name"}, stack_{"stack"}, id_{"id"},
      find_outputs_{"find_outputs"},
      with_returned_{"with_returned"}, describe_error_{"describe_error"}, out_{"out"},
      inplace_{"inplace"}, flush_{"flush"}, generator_state_{"generator_state"}, hidden_{"hidden"},
      generator_{"generator"}, device_{"device"}, digest_state_{"digest_state"};
  std::optional<Drawn> drawn_;
};

}  // namespace ulpscope
