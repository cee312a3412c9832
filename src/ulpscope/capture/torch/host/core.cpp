// The compiled host part of a capture: what bridge.py calls. Every function is called with the GIL held.

#include "noise.h"
#include "watching.h"

#include <torch/csrc/Exceptions.h>

namespace ulpscope {
namespace {

struct Parts {
  Parts(PyObject* bridge, PyObject* scopes, PyObject* steps, PyObject* stack_table, Limits limits)
      : bridge(kept(bridge)), scopes(kept(scopes)), stack_table(kept(stack_table)),
        lock(Owned(checked(PyObject_GetAttrString(bridge, "lock"))).get()),
        moments(Owned(checked(PyObject_GetAttrString(bridge, "recorder"))).get(), steps), values(bridge, limits, texts),
        stacks(stack_table),
        pairing(bridge, lock, moments, calls, values, code("backward"), code("grad_output"), code("grad_input")),
        watching(bridge, lock, scopes, moments, calls, values, pairing, stacks, texts) {
    watching.words = {code("api"), code("backward"), code("module"), code("module_backward"),
                      code("input"), code("output"), code("parameter"), code("buffer")};
  }

  int32_t code(const char* word) {
    Owned text(checked(PyUnicode_FromString(word)));
    return texts.code(text.get());
  }

  Owned bridge, scopes, stack_table;
  Lock lock;  // the recorder's
  Moments moments;
  Texts texts;
  Calls calls{texts};
  Values values;
  Stacks stacks;
  Pairing pairing;
  Watching watching;
  std::optional<Noise> noise;  // of a twin
};

// Whoever is at work with the parts keeps them, should another thread close the capture.
using PartsPtr = std::shared_ptr<Parts>;

struct Core {
  PyObject_HEAD
  PartsPtr* parts;
};

PartsPtr parts_of(PyObject* self) {
  const PartsPtr* parts = reinterpret_cast<Core*>(self)->parts;
  return parts != nullptr ? *parts : nullptr;
}

template <typename Work>
PyObject* answered(PyObject* self, Work work) {
  const PartsPtr parts = parts_of(self);
  if (parts == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "the capture is closed");
    return nullptr;
  }
  try {
    const Held held(parts->lock);
    return work(*parts);
  } catch (const PythonRaised&) {
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

PyObject* none() { return kept(Py_None); }

Tensors placed_tensors(Parts& parts, PyObject* list) {
  Tensors tensors;
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(list); index++) {
    PyObject* placed = PyList_GET_ITEM(list, index);
    tensors.push_back({parts.texts.code(PyTuple_GET_ITEM(placed, 0)), PyTuple_GET_ITEM(placed, 1)});
  }
  return tensors;
}

// dispatch(mode, function, types, args, kwargs): what torch calls as the mode's __torch_function__
PyObject* dispatch(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const PartsPtr parts = parts_of(self);
  PyObject* kwargs = count > 4 && arguments[4] != Py_None ? arguments[4] : nullptr;
  Owned nothing(count > 3 ? nullptr : PyTuple_New(0));
  PyObject* args = count > 3 ? arguments[3] : nothing.get();
  if (parts == nullptr) return PyObject_Call(arguments[1], args, kwargs);
  return parts->watching.dispatch(arguments[1], arguments[2], args, kwargs);
}

// set_mode(slowly, records calls)
PyObject* set_mode(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    parts.watching.set_mode(arguments[0], arguments[1] == Py_True);
    return none();
  });
}

// add_api(function, what is to be run, the code that asks for it or None, name, passes, is plain, functional, draws)
PyObject* add_api(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    parts.watching.add_api(
        arguments[0], arguments[1], arguments[2], arguments[3], arguments[4] == Py_True, arguments[5] == Py_True,
        arguments[6] == Py_True, arguments[7] == Py_True);
    return none();
  });
}

// disturb(mode, operator, types, args, kwargs): what torch calls as the noise mode's __torch_dispatch__
PyObject* disturb(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const PartsPtr parts = parts_of(self);
  PyObject* kwargs = count > 4 && arguments[4] != Py_None ? arguments[4] : nullptr;
  if (parts == nullptr) return PyObject_Call(arguments[1], arguments[3], kwargs);
  try {
    return parts->noise->dispatch(arguments[1], arguments[3], kwargs).release();
  } catch (const PythonRaised&) {
    return nullptr;
  } catch (...) {  // the run's own: a copy for which there is no memory
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

// set_noise(mode, asked, results, set-up, forward, autocast's precision, that of parameters, seed, backward, loss scale,
// precisions), the last a tuple of (unit roundoff, dtype or None)
PyObject* set_noise(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    const auto precision = [](PyObject* number) { return static_cast<Precision>(optional_int(number)); };
    const Noise::Settings settings{
        arguments[1], parts.scopes.get(), arguments[2], arguments[3], arguments[4],
        precision(arguments[5]), precision(arguments[6]), as_int(arguments[7]),
        arguments[8], static_cast<int>(as_int(arguments[9]))};
    parts.noise.emplace(parts.moments, settings);
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(arguments[10]); index++) {
      PyObject** field = &PyTuple_GET_ITEM(PyTuple_GET_ITEM(arguments[10], index), 0);
      std::optional<at::ScalarType> dtype;
      if (field[1] != Py_None) dtype = reinterpret_cast<THPDtype*>(field[1])->scalar_type;
      parts.noise->add_precision(PyFloat_AsDouble(field[0]), dtype);
    }
    parts.watching.set_noise_mode(arguments[0]);
    return none();
  });
}

constexpr const char* BEFORE = "ulpscope.before";

void drop_before(PyObject* capsule) { delete static_cast<Watching::Before*>(PyCapsule_GetPointer(capsule, BEFORE)); }

Watching::Before& before_of(PyObject* capsule) {
  auto* before = static_cast<Watching::Before*>(PyCapsule_GetPointer(capsule, BEFORE));
  if (before == nullptr) throw PythonRaised{};
  return *before;
}

// begin_module(class name, path, training, args, kwargs, parameters, buffers, frame): (call, stack, what end_module
// wants); NotImplemented if the call is not taken
PyObject* begin_module(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    auto before = std::make_unique<Watching::Before>();
    const bool taken = parts.watching.begin_module(
        arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5], arguments[6], arguments[7],
        *before);
    if (!taken) return kept(Py_NotImplemented);
    Owned call = integer(before->row.id), stack = optional_integer(before->row.stack);
    Owned capsule(checked(PyCapsule_New(before.get(), BEFORE, drop_before)));
    before.release();
    return checked(PyTuple_Pack(3, call.get(), stack.get(), capsule.get()));
  });
}

// end_module(before, module number, result)
PyObject* end_module(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    parts.watching.end_module(before_of(arguments[0]), as_int(arguments[1]), arguments[2]);
    return none();
  });
}

// fail_module(before, error): an error of the run's is on its way, and ours must not take its place
PyObject* fail_module(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  if (parts_of(self) == nullptr) return none();
  return answered(self, [&](Parts& parts) {
    parts.watching.fail(before_of(arguments[0]), arguments[1]);
    return none();
  });
}

// observe(tensor, producer)
PyObject* observe(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    return integer(parts.values.observe(arguments[0], optional_int(arguments[1]))).release();
  });
}

// use_all(call, role, placed, makes)
PyObject* use_all(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    const int64_t call = as_int(arguments[0]), producer = arguments[3] == Py_True ? call : NONE;
    const int32_t role = parts.texts.code(arguments[1]);
    for (const Placed& placed : placed_tensors(parts, arguments[2]))
      parts.calls.use(call, role, placed.place, parts.values.observe(placed.object(), producer));
    return none();
  });
}

// use_gradients(call, role, parameters): those that these parameters hold
PyObject* use_gradients(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    const int64_t call = as_int(arguments[0]);
    const int32_t role = parts.texts.code(arguments[1]);
    PyObject *name, *parameter;
    Py_ssize_t position = 0;
    while (PyDict_Next(arguments[2], &position, &name, &parameter)) {
      if (!THPVariable_Check(parameter)) continue;
      const at::Tensor gradient = THPVariable_Unpack(parameter).grad();
      if (gradient.defined()) parts.calls.use(call, role, parts.texts.code(name), parts.values.observe(gradient, NONE));
    }
    return none();
  });
}

PyObject* settle(PyObject* self, PyObject*) {
  return answered(self, [&](Parts& parts) {
    parts.values.settle();
    return none();
  });
}

// wrote(tensor, call, bytes)
PyObject* wrote(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    Storage* storage = parts.values.storage_of(arguments[0]);
    if (storage != nullptr) storage->wrote(as_int(arguments[1]), as_int(arguments[2]));
    return none();
  });
}

// wrote_all(placed, call): every element of these
PyObject* wrote_all(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    const int64_t call = as_int(arguments[1]);
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(arguments[0]); index++) {
      PyObject* tensor = PyTuple_GET_ITEM(PyList_GET_ITEM(arguments[0], index), 1);
      Storage* storage = parts.values.storage_of(tensor);
      if (storage != nullptr) storage->wrote(call, static_cast<int64_t>(THPVariable_Unpack(tensor).nbytes()));
    }
    return none();
  });
}

template <typename Change>
PyObject* changed(PyObject* self, PyObject* tensor, Change change) {
  return answered(self, [&](Parts& parts) {
    Storage* storage = parts.values.storage_of(tensor);
    if (storage != nullptr) change(*storage);
    return none();
  });
}

PyObject* initialized(PyObject* self, PyObject* tensor) {
  return changed(self, tensor, [](Storage& storage) {
    storage.forget();
    storage.unwritten = 0;
  });
}

PyObject* suspect(PyObject* self, PyObject* tensor) {
  return changed(self, tensor, [](Storage& storage) { storage.forget(); });
}

PyObject* expose(PyObject* self, PyObject* tensor) {
  return changed(self, tensor, [](Storage& storage) {
    storage.trusted = false;
    storage.forget();
  });
}

PyObject* uninitialized(PyObject* self, PyObject* tensor) {
  return changed(self, tensor, [](Storage& storage) {
    const auto alive = storage.weak.lock();
    if (alive) storage.unwritten = static_cast<int64_t>(alive->nbytes());
  });
}

PyObject* clear_storages(PyObject* self, PyObject*) {
  return answered(self, [](Parts& parts) {
    parts.values.storages.clear();
    return none();
  });
}

PyObject* forget_all(PyObject* self, PyObject*) {
  return answered(self, [](Parts& parts) {
    parts.values.storages.forget_all();
    return none();
  });
}

PyObject* known(PyObject* self, PyObject*) {
  return answered(self, [](Parts& parts) { return column(parts.values.storages.known()).release(); });
}

PyObject* lose_track(PyObject* self, PyObject*) {
  return answered(self, [](Parts& parts) {
    parts.values.storages.lose_track();
    return none();
  });
}

PyObject* next_id(PyObject* self, PyObject*) {
  return answered(self, [](Parts& parts) { return integer(parts.calls.next_id()).release(); });
}

// next_number(phase, recompute, stem)
PyObject* next_number(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    const int32_t phase = parts.texts.code(arguments[0]), stem = parts.texts.code(arguments[2]);
    return integer(parts.calls.next_number(phase, arguments[1] == Py_True, stem)).release();
  });
}

PyObject* clear_numbers(PyObject* self, PyObject*) {
  return answered(self, [](Parts& parts) {
    parts.calls.clear_numbers();
    return none();
  });
}

// begin_backward(the tensors it begins from, or None; their gradients)
PyObject* begin_backward(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    parts.pairing.begin(arguments[0] != Py_None ? arguments[0] : nullptr, arguments[1]);
    return none();
  });
}

PyObject* end_backward(PyObject* self, PyObject*) {
  return answered(self, [](Parts& parts) {
    parts.pairing.end();
    return none();
  });
}

PyObject* finish_backward(PyObject* self, PyObject*) {
  return answered(self, [](Parts& parts) {
    parts.pairing.finish();
    return none();
  });
}

// current_parent(forward call that may be further inside)
PyObject* current_parent(PyObject* self, PyObject* other) {
  return answered(
      self, [&](Parts& parts) { return optional_integer(parts.pairing.current_parent(as_int(other))).release(); });
}

// take_ran(): (module number, backward call) of modules whose backward has run in the pass that runs here
PyObject* take_ran(PyObject* self, PyObject*) {
  return answered(self, [](Parts& parts) {
    Owned list(checked(PyList_New(0)));
    for (const auto& [module, call] : parts.pairing.take_ran()) {
      Owned pair(checked(PyTuple_Pack(2, integer(module).get(), integer(call).get())));
      if (PyList_Append(list.get(), pair.get()) < 0) throw PythonRaised{};
    }
    return list.release();
  });
}

// take(): (calls, uses, (values, shards), words); the columns as recording/writing_process.py reads them
PyObject* take(PyObject* self, PyObject*) {
  return answered(self, [](Parts& parts) {
    Owned values = parts.values.take_fresh();
    Owned calls = parts.calls.take_calls(), uses = parts.calls.take_uses();
    return checked(PyTuple_Pack(4, calls.get(), uses.get(), values.get(), parts.texts.items()));
  });
}

// counts(): calls seen by the core itself, values, summaries made, summaries reused, calls of the part
PyObject* counts(PyObject* self, PyObject*) {
  return answered(self, [](Parts& parts) {
    return checked(PyTuple_Pack(
        5, integer(parts.calls.seen).get(), integer(parts.values.numbered).get(), integer(parts.values.made).get(),
        integer(parts.values.reused).get(), integer(static_cast<int64_t>(parts.calls.size())).get()));
  });
}

PyObject* set_last_call(PyObject* self, PyObject* memory) {
  return answered(self, [&](Parts& parts) {
    parts.calls.last.use(memory);
    return none();
  });
}

PyObject* set_module_call(PyObject* self, PyObject* code) {
  return answered(self, [&](Parts& parts) {
    parts.stacks.set_module_call(code);
    return none();
  });
}

PyObject* set_handler(PyObject* self, PyObject* code) {
  return answered(self, [&](Parts& parts) {
    parts.stacks.set_handler(code);
    return none();
  });
}

// set_phase(member, word)
PyObject* set_phase(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    parts.watching.set_phase(arguments[0], arguments[1]);
    return none();
  });
}

int8_t scalar_type(PyObject* dtype) { return static_cast<int8_t>(reinterpret_cast<THPDtype*>(dtype)->scalar_type); }

// set_readable(dtype, word): gives the number by which the dtype is known here
PyObject* set_readable(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    const int8_t type = scalar_type(arguments[0]);
    parts.values.set_readable(type, arguments[1]);
    return integer(type).release();
  });
}

// set_item(dtype, bytes of an element): the fused kernels read this dtype
PyObject* set_item(PyObject* self, PyObject* const* arguments, Py_ssize_t) {
  return answered(self, [&](Parts& parts) {
    parts.values.launching.set_item(scalar_type(arguments[0]), as_int(arguments[1]));
    return none();
  });
}

PyObject* close(PyObject* self, PyObject*) {
  auto* core = reinterpret_cast<Core*>(self);
  delete std::exchange(core->parts, nullptr);
  return none();
}

// Core(bridge, scopes, steps, stacks, limits, part_calls, part_seconds)
int make(PyObject* self, PyObject* args, PyObject*) {
  PyObject *bridge, *scopes, *steps, *stacks;
  Limits limits;
  Py_ssize_t part_calls;
  double part_seconds;
  if (!PyArg_ParseTuple(
          args, "OOOO(LLLLLLLLLL)nd", &bridge, &scopes, &steps, &stacks, &limits.block_elements, &limits.warps, &limits.max_blocks,
          &limits.partial_rows, &limits.partial_length, &limits.max_dimensions, &limits.max_strided_elements,
          &limits.max_elements, &limits.row_bytes, &limits.batch_rows, &part_calls, &part_seconds))
    return -1;
  try {
    auto* core = reinterpret_cast<Core*>(self);
    const auto parts = std::make_shared<Parts>(bridge, scopes, steps, stacks, limits);
    parts->pairing.set_owner(std::shared_ptr<Pairing>(parts, &parts->pairing));
    parts->watching.part_calls = static_cast<size_t>(part_calls);
    parts->watching.part_seconds = std::chrono::duration<double>(part_seconds);
    core->parts = new PartsPtr(parts);
    return 0;
  } catch (const PythonRaised&) {
    return -1;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return -1;
  }
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<Core*>(self)->parts;
  type->tp_free(self);
  Py_DECREF(type);
}

#define FAST(name, function) {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr}
PyMethodDef methods[] = {
    FAST("dispatch", dispatch),
    FAST("set_mode", set_mode),
    FAST("disturb", disturb),
    FAST("set_noise", set_noise),
    FAST("add_api", add_api),
    FAST("begin_module", begin_module),
    FAST("end_module", end_module),
    FAST("fail_module", fail_module),
    FAST("observe", observe),
    FAST("use_all", use_all),
    FAST("use_gradients", use_gradients),
    {"settle", settle, METH_NOARGS, nullptr},
    FAST("wrote", wrote),
    FAST("wrote_all", wrote_all),
    {"initialized", initialized, METH_O, nullptr},
    {"suspect", suspect, METH_O, nullptr},
    {"expose", expose, METH_O, nullptr},
    {"uninitialized", uninitialized, METH_O, nullptr},
    {"forget_all", forget_all, METH_NOARGS, nullptr},
    {"known", known, METH_NOARGS, nullptr},
    {"lose_track", lose_track, METH_NOARGS, nullptr},
    {"clear_storages", clear_storages, METH_NOARGS, nullptr},
    {"next_id", next_id, METH_NOARGS, nullptr},
    FAST("next_number", next_number),
    {"clear_numbers", clear_numbers, METH_NOARGS, nullptr},
    FAST("begin_backward", begin_backward),
    {"end_backward", end_backward, METH_NOARGS, nullptr},
    {"finish_backward", finish_backward, METH_NOARGS, nullptr},
    {"current_parent", current_parent, METH_O, nullptr},
    {"take_ran", take_ran, METH_NOARGS, nullptr},
    {"take", take, METH_NOARGS, nullptr},
    {"counts", counts, METH_NOARGS, nullptr},
    {"set_last_call", set_last_call, METH_O, nullptr},
    {"set_module_call", set_module_call, METH_O, nullptr},
    {"set_handler", set_handler, METH_O, nullptr},
    FAST("set_phase", set_phase),
    FAST("set_readable", set_readable),
    FAST("set_item", set_item),
    {"close", close, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_init, reinterpret_cast<void*>(make)},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_methods, methods},
    {0, nullptr}};

PyType_Spec spec = {"ulpscope_host.Core", sizeof(Core), 0, Py_TPFLAGS_DEFAULT, slots};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "ulpscope_host", nullptr, -1, nullptr};

}  // namespace
}  // namespace ulpscope

PyMODINIT_FUNC PyInit_ulpscope_host() {
  PyObject* module = PyModule_Create(&ulpscope::definition);
  PyObject* type = module == nullptr ? nullptr : PyType_FromSpec(&ulpscope::spec);
  if (type == nullptr || PyModule_AddObject(module, "Core", type) < 0) return nullptr;
  return module;
}
