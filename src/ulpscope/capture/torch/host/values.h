// Values: contents of tensors, each summarised once for as long as it certainly has not changed.
//
// The counterpart of values.py, whose rules hold here too.
#pragma once

#include "launching.h"
#include "storages.h"
#include "texts.h"

#include <deque>
#include <string>

namespace ulpscope {

constexpr uint8_t NEGATED = 1, CONJUGATED = 2, WANTS_GRAD = 4;
constexpr size_t MANY_GEOMETRIES = 1 << 17;
// Memory that may be kept for reads to come.
constexpr int64_t MANY_BYTES = 64 << 20;

// A value as it goes to the values table, by columns.
struct ValueColumns {
  Numbers storage, version, producer;
  std::vector<int32_t> geometry, dtype, device, layout, batch, row;
  std::vector<int8_t> requires_grad, initialized;
  size_t size() const { return storage.size(); }
};

class Values {
 public:
  Values(PyObject* bridge, Limits limits, Texts& texts)
      : launching(bridge, limits, geometries_), bridge_(bridge), limits_(limits), texts_(texts) {
    for (auto& [name, owned] : names_) owned = Owned(PyUnicode_InternFromString(name));
    batches_ = Owned(checked(PyList_New(0)));
    shards_ = Owned(checked(PyDict_New()));
    Owned strided(PyUnicode_FromString("strided"));
    strided_ = texts_.code(strided.get());
  }

  Launching launching;
  Storages storages;
  int64_t numbered = 0, made = 0, reused = 0;

  void set_readable(int8_t dtype, PyObject* word) { readable_[dtype] = texts_.code(word); }

  int32_t word_of(at::ScalarType dtype) const { return readable_[static_cast<int8_t>(dtype)]; }

  int64_t observe(PyObject* object, int64_t producer) {
    if (!THPVariable_CheckExact(object)) return look_closer(object, producer);
    return observe(THPVariable_Unpack(object), producer);
  }

  int64_t observe(const at::Tensor& tensor, int64_t producer) {
    if (!is_plain(tensor)) {
      Owned object(checked(THPVariable_Wrap(tensor)));
      return look_closer(object.get(), producer);
    }
    return find_or_add(tensor, producer, Py_None);
  }

  // The storage of a tensor whose content can be read here.
  Storage* storage_of(PyObject* object) {
    if (THPVariable_CheckExact(object) && is_plain(THPVariable_Unpack(object)))
      return &storages.of(THPVariable_Unpack(object));
    Owned seen = call_method(bridge_, name("look"), {object});
    if (PyTuple_GET_ITEM(seen.get(), 0) != Py_None) return nullptr;
    const at::Tensor& local = THPVariable_Unpack(PyTuple_GET_ITEM(seen.get(), 1));
    return local.has_storage() ? &storages.of(local) : nullptr;
  }

  // Have the tensors read that wait for it: after this, the run may write into them.
  void settle() {
    if (pending_.empty()) return;
    std::vector<Pending> all;
    all.swap(pending_);
    try {
      launching.read(all);
    } catch (const PythonRaised&) {
      if (!is_ours(bridge_)) throw;
      read_plainly(all);
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      read_plainly(all);
    }
  }

  // Have them read only when they are worth a launch: nobody can write into them meanwhile.
  void settle_when_many() {
    int64_t bytes = 0;
    for (const Pending& pending : pending_) bytes += static_cast<int64_t>(pending.storage.nbytes());
    if (pending_.size() >= LAUNCH_VALUES || bytes >= MANY_BYTES) settle();
  }

  // Send off what is filled; later values go to fresh rows.
  void land() {
    settle();
    for (auto& stream : streams_) land(*stream);
    call_method(bridge_, name("land"), {});
    part_++;
  }

  // Gives the columns of values first seen since the last time, their batches and shards.
  Owned take_fresh() {
    land();
    Owned shapes(checked(PyList_New(0)));
    Owned strides(checked(PyList_New(0)));
    Numbers told(geometries_.size(), NONE);
    for (int32_t& geometry : fresh_.geometry) {
      if (told[geometry] == NONE) {
        told[geometry] = PyList_GET_SIZE(shapes.get());
        append(shapes.get(), tuple_of(geometries_[geometry].shape));
        append(strides.get(), tuple_of(geometries_[geometry].strides));
      }
      geometry = static_cast<int32_t>(told[geometry]);
    }
    const ValueColumns& all = fresh_;
    Owned first = integer(numbered - static_cast<int64_t>(all.size()));
    Owned columns(checked(PyTuple_Pack(
        15, first.get(), column(all.storage).get(), column(all.version).get(), column(all.producer).get(),
        column(all.geometry).get(), column(all.dtype).get(), column(all.device).get(), column(all.layout).get(),
        column(all.batch).get(), column(all.row).get(), column(all.requires_grad).get(),
        column(all.initialized).get(), shapes.get(), strides.get(), batches_.get())));
    Owned taken(checked(PyTuple_Pack(2, columns.get(), shards_.get())));
    fresh_ = {};
    batches_ = Owned(checked(PyList_New(0)));
    shards_ = Owned(checked(PyDict_New()));
    if (geometries_.size() > MANY_GEOMETRIES) {
      storages.forget_all();
      geometries_.clear();
      launching.forget_layouts();
    }
    return taken;
  }

 private:
  PyObject* name(const char* text) const { return names_.find(text)->second.get(); }

  bool is_plain(const at::Tensor& tensor) const {
    static const c10::DispatchKeySet odd({
        c10::DispatchKey::Python,
        c10::DispatchKey::FuncTorchBatched,
        c10::DispatchKey::FuncTorchGradWrapper,
        c10::DispatchKey::Functionalize,
        c10::DispatchKey::NestedTensor,
    });
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (impl->key_set().has_any(odd) || impl->layout() != c10::kStrided || impl->is_meta() || !impl->has_storage())
      return false;
    if (impl->has_symbolic_sizes_strides() || readable_[static_cast<int8_t>(tensor.scalar_type())] < 0) return false;
    // FSDP frees a parameter's memory under the tensor, which keeps its shape.
    return tensor.storage().data() != nullptr || tensor.numel() == 0;
  }

  // Observe a tensor that may be of any sort.
  int64_t look_closer(PyObject* object, int64_t producer) {
    Owned seen = call_method(bridge_, name("look"), {object});
    PyObject* reason = PyTuple_GET_ITEM(seen.get(), 0);
    if (reason != Py_None) {
      call_method(bridge_, name("count_opaque"), {reason});
      return add_opaque(PyTuple_GET_ITEM(seen.get(), 2), producer);
    }
    return find_or_add(
        THPVariable_Unpack(PyTuple_GET_ITEM(seen.get(), 1)), producer, PyTuple_GET_ITEM(seen.get(), 2));
  }

  int64_t find_or_add(const at::Tensor& tensor, int64_t producer, PyObject* shard) {
    Storage& storage = storages.of(tensor);
    const Key key = key_of(tensor);
    const int64_t* known = storage.values.find(key);
    if (known != nullptr) {
      reused++;
      return *known;
    }
    return add(tensor, storage, key, producer, shard);
  }

  Key key_of(const at::Tensor& tensor) {
    uint8_t flags = tensor.requires_grad() ? WANTS_GRAD : 0;
    if (tensor.is_neg()) flags |= NEGATED;
    if (tensor.is_conj()) flags |= CONJUGATED;
    const int64_t version = tensor.is_inference() ? NONE : static_cast<int64_t>(tensor._version());
    return {version, tensor.storage_offset(), geometries_.of(tensor), static_cast<int8_t>(tensor.scalar_type()), flags};
  }

  int64_t add(const at::Tensor& tensor, Storage& storage, const Key& key, int64_t producer, PyObject* shard) {
    if (producer != NONE && !storage.met) storage.writer = producer;
    storage.met = true;
    const bool initialized = storage.unwritten == 0;
    const bool holds = key.version != NONE && storage.trusted && initialized;
    const int64_t storage_number = storage.number, writer = storage.writer;
    RowPlace row{part_, -1, -1};
    if (initialized) row = row_of(tensor, storage, key, holds);
    if (row.part == NONE) {  // a tensor of a transform that hides that it has no memory, or of a graph being captured
      Owned object(checked(THPVariable_Wrap(tensor)));
      Owned described = call_method(bridge_, name("unreadable"), {object.get()});
      return add_opaque(described.get(), producer);
    }
    const int64_t number = numbered++;
    fresh_.storage.push_back(storage_number);
    fresh_.version.push_back(key.version);
    fresh_.producer.push_back(producer != NONE ? producer : writer);
    fresh_.geometry.push_back(key.place);
    fresh_.dtype.push_back(readable_[key.dtype]);
    fresh_.device.push_back(device_code(tensor.device()));
    fresh_.layout.push_back(strided_);
    fresh_.batch.push_back(row.batch);
    fresh_.row.push_back(row.row);
    fresh_.requires_grad.push_back((key.flags & WANTS_GRAD) != 0);
    fresh_.initialized.push_back(initialized);
    if (shard != Py_None) {
      Owned index = integer(number);
      if (PyDict_SetItem(shards_.get(), index.get(), shard) < 0) throw PythonRaised{};
    }
    if (holds) storages.of(tensor).values.set(key, number);
    return number;
  }

  // The row of a content; one of another view that tells the same elements in the same order will do.
  RowPlace row_of(const at::Tensor& tensor, Storage& storage, const Key& key, bool holds) {
    Key sequence = key;
    sequence.place = geometries_[key.place].sequence;
    sequence.flags &= NEGATED | CONJUGATED;
    const RowPlace* known = storage.rows.find(sequence);
    if (known != nullptr && known->part == part_) {
      reused++;
      return *known;
    }
    made++;
    RowPlace row = summarize(tensor, key);
    if (holds && row.part != NONE) storages.of(tensor).rows.set(sequence, row);
    return row;
  }

  RowPlace summarize(const at::Tensor& tensor, const Key& key) {
    Stream* stream = stream_of(tensor);
    if (stream != nullptr && (key.flags & (NEGATED | CONJUGATED)) == 0) {
      Pending waiting{stream, tensor.storage(), key.offset, key.place, key.dtype, 0, 0, 0, 0, 0};
      waiting.address = reinterpret_cast<int64_t>(tensor.storage().data()) +
          key.offset * static_cast<int64_t>(tensor.element_size());
      if (launching.plan(waiting)) return reserve(std::move(waiting));
    }
    Owned object(checked(THPVariable_Wrap(tensor)));
    Owned place = call_method(bridge_, name("summarize"), {object.get()});
    if (place.get() == Py_None) return {NONE, -1, -1};
    PyObject* batch = PyTuple_GET_ITEM(place.get(), 0);
    return {part_, batch_number(batch), static_cast<int32_t>(as_int(PyTuple_GET_ITEM(place.get(), 1)))};
  }

  RowPlace reserve(Pending waiting) {
    Stream& stream = *waiting.stream;
    if (stream.batch.get() == nullptr) begin_batch(stream);
    waiting.index = stream.used_rows++;
    waiting.row = stream.rows + waiting.index * limits_.row_bytes;
    const RowPlace place{part_, stream.batch_number, static_cast<int32_t>(waiting.index)};
    pending_.push_back(std::move(waiting));
    if (stream.used_rows == limits_.batch_rows) {
      settle();
      land(stream);
    }
    return place;
  }

  void begin_batch(Stream& stream) {
    Owned made = call_method(bridge_, name("new_batch"), {stream.reader.get()});
    stream.batch = Owned(kept(PyTuple_GET_ITEM(made.get(), 0)));
    stream.rows = as_int(PyTuple_GET_ITEM(made.get(), 1));
    stream.used_rows = 0;
    stream.batch_number = batch_number(stream.batch.get());
  }

  void land(Stream& stream) {
    if (stream.batch.get() == nullptr) return;
    launching.join(stream);
    Owned used = integer(stream.used_rows);
    call_method(bridge_, name("land_batch"), {stream.batch.get(), used.get()});
    stream.batch = Owned();
  }

  // What reads values on the current stream of a device; null where the kernels do not run.
  Stream* stream_of(const at::Tensor& tensor) {
    const c10::Device device = tensor.device();
    const int64_t id = current_stream(device).id();
    for (auto& stream : streams_)
      if (stream->id == id && stream->device == device) return usable(*stream);
    Owned object(checked(THPVariable_Wrap(tensor)));
    Owned reader = call_method(bridge_, name("make_reader"), {object.get()});
    auto stream = std::make_unique<Stream>(Stream{device, id});
    stream->usable = reader.get() != Py_None;
    if (stream->usable) {
      stream->reader = Owned(kept(PyTuple_GET_ITEM(reader.get(), 0)));
      stream->raw = reinterpret_cast<void*>(as_int(PyTuple_GET_ITEM(reader.get(), 1)));
      stream->partials = as_int(PyTuple_GET_ITEM(reader.get(), 2));
      stream->launch = reinterpret_cast<LaunchKernel>(as_int(PyTuple_GET_ITEM(reader.get(), 3)));
    }
    streams_.push_back(std::move(stream));
    return usable(*streams_.back());
  }

  Stream* usable(Stream& stream) {
    if (!stream.usable) return nullptr;
    if (!pending_.empty() && pending_.back().stream == &stream) return &stream;  // it was asked a moment ago
    // A graph that is being captured must stay as the run records it.
    int status = 0;
    if (is_capturing() != nullptr && (is_capturing()(stream.raw, &status) != 0 || status != 0)) return nullptr;
    return &stream;
  }

  // The fused kernels cannot run, without a compiler for one: a slower way is there for everything.
  void read_plainly(std::vector<Pending>& all) {
    Owned error = taken_error();
    call_method(bridge_, name("note_trouble"), {error.get()});
    for (Pending& one : all) {
      one.stream->usable = false;
      one.stream->joins.clear();
      const auto guard = Launching::on(*one.stream);
      Owned object(checked(THPVariable_Wrap(tensor_of(one)))), index = integer(one.index);
      call_method(bridge_, name("read_plainly"), {object.get(), one.stream->batch.get(), index.get()});
    }
  }

  at::Tensor tensor_of(const Pending& one) const {
    const c10::DispatchKey key = c10::computeDispatchKey(
        static_cast<at::ScalarType>(one.dtype), c10::kStrided, one.stream->device);
    at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(one.storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(static_cast<at::ScalarType>(one.dtype)));
    const Geometry& geometry = geometries_[one.geometry];
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(geometry.shape, geometry.strides, one.offset);
    return tensor;
  }

  int64_t add_opaque(PyObject* described, int64_t producer) {
    PyObject** field = &PyTuple_GET_ITEM(described, 0);
    const Numbers shape = numbers_of(field[1]), strides = numbers_of(field[2]);
    fresh_.storage.push_back(NONE);
    fresh_.version.push_back(NONE);
    fresh_.producer.push_back(producer);
    fresh_.geometry.push_back(geometries_.of(shape, strides, false));
    fresh_.dtype.push_back(texts_.code(field[0]));
    fresh_.device.push_back(texts_.code(field[3]));
    fresh_.layout.push_back(texts_.code(field[4]));
    fresh_.batch.push_back(-1);
    fresh_.row.push_back(-1);
    fresh_.requires_grad.push_back(field[5] == Py_True);
    fresh_.initialized.push_back(1);
    return numbered++;
  }

  int32_t device_code(c10::Device device) {
    const uint32_t key = static_cast<uint32_t>(device.type()) << 8 | static_cast<uint8_t>(device.index());
    const auto found = devices_.find(key);
    if (found != devices_.end()) return found->second;
    Owned word(checked(PyUnicode_FromString(device.str().c_str())));
    return devices_[key] = texts_.code(word.get());
  }

  int32_t batch_number(PyObject* batch) {
    const Py_ssize_t count = PyList_GET_SIZE(batches_.get());
    for (Py_ssize_t index = count; index-- > 0;)
      if (PyList_GET_ITEM(batches_.get(), index) == batch) return static_cast<int32_t>(index);
    if (PyList_Append(batches_.get(), batch) < 0) throw PythonRaised{};
    return static_cast<int32_t>(count);
  }

  static void append(PyObject* list, Owned item) {
    if (PyList_Append(list, item.get()) < 0) throw PythonRaised{};
  }

  static Owned tuple_of(const Numbers& numbers) {
    Owned tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(numbers.size()))));
    for (size_t index = 0; index < numbers.size(); index++)
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(index), integer(numbers[index]).release());
    return tuple;
  }

  static Numbers numbers_of(PyObject* tuple) {
    Numbers numbers;
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(tuple); index++)
      numbers.push_back(as_int(PyTuple_GET_ITEM(tuple, index)));
    return numbers;
  }

  struct Less {
    bool operator()(const char* one, const char* other) const { return strcmp(one, other) < 0; }
  };

  PyObject* bridge_;
  Limits limits_;
  Texts& texts_;
  Geometries geometries_;
  int64_t part_ = 0;
  int32_t strided_ = -1;
  std::array<int32_t, 128> readable_ = [] {
    std::array<int32_t, 128> none{};
    none.fill(-1);
    return none;
  }();
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Pending> pending_;  // of all threads
  std::unordered_map<uint32_t, int32_t> devices_;
  ValueColumns fresh_;
  Owned batches_, shards_;
  std::map<const char*, Owned, Less> names_ = make_names();

  static std::map<const char*, Owned, Less> make_names() {
    std::map<const char*, Owned, Less> names;
    for (const char* text :
         {"look", "count_opaque", "unreadable", "summarize", "new_batch", "land_batch", "land", "make_reader",
          "note_trouble", "read_plainly"})
      names[text] = Owned();
    return names;
  }
};

}  // namespace ulpscope
