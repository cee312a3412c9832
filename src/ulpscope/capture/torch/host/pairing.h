// Pairs each backward exactly with its forward, without touching the graph.
//
// The counterpart of pairing.py, whose rules hold here too. Hooks run in autograd's threads, which have to take the GIL;
// nodes may die in any thread, so what is known of them has a lock of its own.
#pragma once

#include "calls.h"
#include "edges.h"
#include "moments.h"
#include "passes.h"
#include "values.h"

#include <ATen/SavedTensorHooks.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/graph_task.h>

#include <mutex>
#include <typeindex>

namespace ulpscope {

using torch::autograd::variable_list;

// A forward call whose backward may run, perhaps several times.
struct Paired {
  CallRow forward;
  int32_t kind;
  int64_t module;  // which module's call it is, for those who record its parameters' gradients; -1 for none
  std::vector<std::vector<int32_t>> places;  // of each input that gradients leave for
  std::vector<int> expected;  // how many gradients flow to each of them; their sum is the input's gradient
  std::vector<std::pair<int, int64_t>> calls;  // its backward in the passes that are running
  std::map<std::pair<int, int>, std::pair<int, at::Tensor>> totals;  // of a pass and an input: how many came, their sum
};

using PairedPtr = std::shared_ptr<Paired>;

// A node of autograd's graph, and which calls' gradients enter and leave there.
struct Watched {
  struct Arriving {
    PairedPtr paired;
    uint32_t number;
    int32_t place;
    Change change;
  };
  struct Leaving {
    PairedPtr paired;
    uint32_t index;
    int slot;
    Change change;
  };
  PairedPtr owner;  // the innermost recorded call that the node belongs to
  std::vector<Arriving> first;  // gradients that must be looked at before the node runs
  std::vector<Arriving> arriving;
  std::vector<Leaving> leaving;
};

class Pairing;
struct Entry;

// What is known of nodes; outlives the capture as long as there are nodes with hooks.
struct Registry {
  std::mutex lock;
  std::unordered_map<const Node*, Entry*> entries;
  std::weak_ptr<Pairing> pairing;  // gone once the capture is closed, and nobody is at work there
};

using RegistryPtr = std::shared_ptr<Registry>;

// A node with its hooks, which own this.
struct Entry : std::enable_shared_from_this<Entry> {
  Entry(RegistryPtr registry, const Node* node) : registry(std::move(registry)), node(node) {}

  ~Entry() {
    const std::lock_guard<std::mutex> held(registry->lock);
    registry->entries.erase(node);
  }

  RegistryPtr registry;
  const Node* node;
  Watched watched;
  bool runs_before = false;
  bool joins = false;  // gradients that leave it are added to others
};

// Our own operators, seen by none of the run's dispatch modes.
class Quiet {
 public:
  Quiet() {
    if (Modes::stack_len() == 0) return;
    modes_ = Modes::get_state();
    Modes::set_state({});
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  ~Quiet() {
    if (modes_) Modes::set_state(std::move(*modes_));
  }

 private:
  using Modes = c10::impl::TorchDispatchModeTLS;
  std::optional<Modes> modes_;
};

class Pairing {
 public:
  Pairing(
      PyObject* bridge, const Lock& lock, const Moments& moments, Calls& calls, Values& values, int32_t phase,
      int32_t grad_output, int32_t grad_input)
      : bridge_(bridge), lock_(lock), moments_(moments), calls_(calls), values_(values), phase_(phase),
        grad_output_(grad_output), grad_input_(grad_input) {}

  // What keeps this while a hook runs; without it hooks do nothing.
  void set_owner(const std::shared_ptr<Pairing>& owned) { registry_->pairing = owned; }

  // Watch the backward of a call; it may have written some of its inputs.
  void attach(
      const CallRow& forward, int32_t kind, int64_t module, const Tensors& outputs, const Tensors& untouched,
      const Tensors& written, InputEdges& edges) {
    const std::vector<Arrival> arriving = arrivals(outputs, untouched, written, edges);
    if (arriving.empty()) return;
    auto paired = std::make_shared<Paired>();
    paired->forward = forward;
    paired->kind = kind;
    paired->module = module;
    std::vector<Node*> nodes;
    const std::vector<Crossing> leaving = crossings(arriving, edges, nodes);
    for (const Arrival& arrival : arriving) watch_arrival(paired, arrival);
    watch_crossings(paired, leaving, edges);
    for (Node* node : nodes) {
      Watched& watched = entry_of(node)->watched;
      if (!watched.owner) watched.owner = paired;
    }
  }

  void use_arriving(const std::vector<Watched::Arriving>& wanted, const variable_list& arriving) {
    const int task = torch::autograd::get_current_graph_task_id();
    for (const auto& one : wanted) {
      const int64_t call = call_of(one.paired, task);
      if (one.number < arriving.size() && arriving[one.number].defined())
        calls_.use(call, grad_output_, one.place, values_.observe(looked_at(arriving[one.number], one.change), NONE));
    }
  }

  void use_leaving(const std::vector<Watched::Leaving>& wanted, const variable_list& leaving) {
    const int task = torch::autograd::get_current_graph_task_id();
    for (const auto& one : wanted) {
      at::Tensor gradient = one.index < leaving.size() ? leaving[one.index] : at::Tensor();
      if (gradient.defined()) gradient = looked_at(gradient, one.change);
      if (one.paired->expected[one.slot] > 1)
        add_gradient(one.paired, task, one.slot, gradient);
      else if (gradient.defined())
        use_gradient(call_of(one.paired, task), one.paired->places[one.slot], gradient);
    }
  }

  // A backward pass begins from these tensors with these gradients, or (null) one of which nothing is known.
  void begin(PyObject* roots, PyObject* gradients) {
    values_.settle();
    runs_alone_ = roots != nullptr && runs_alone(roots, gradients);
  }

  // From now on, code of the run's may run in a backward.
  void end() {
    runs_alone_ = false;
    values_.settle();
  }

  // Tensors of graphs that are built now are saved by code of the run's, which brings them back in the backward.
  void note_saving() {
    if (!at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) brings_back_ = true;
  }

  // A backward pass has ended: record totals that are still open, forget what belongs to it.
  void finish() {
    std::vector<PairedPtr> running;
    running.swap(running_);
    for (const PairedPtr& paired : running) {
      for (const auto& [key, total] : paired->totals)
        if (total.second.defined()) use_gradient(call_of(paired, key.first), paired->places[key.second], total.second);
      paired->totals.clear();
      paired->calls.clear();
    }
    values_.settle();
  }

  // The backward call that autograd is executing in this thread; -1 if there is none, or if the `other` forward call,
  // which is not known here, began after its own.
  int64_t current_parent(int64_t other) {
    const auto node = torch::autograd::get_current_node();
    if (!node) return -1;
    PairedPtr owner;
    {
      const std::lock_guard<std::mutex> held(registry_->lock);
      const auto found = registry_->entries.find(node.get());
      if (found != registry_->entries.end()) owner = found->second->watched.owner;
    }
    // A hook of the run's on a tensor comes before all of ours.
    if (!owner || owner->forward.id < other || !moments_.is_captured()) return -1;
    return call_of(owner, torch::autograd::get_current_graph_task_id());
  }

  // Modules whose backward has run in the pass that runs here, with the calls.
  std::vector<std::pair<int64_t, int64_t>> take_ran() {
    auto taken = ran_.extract(current_pass());
    return taken ? std::move(taken.mapped()) : std::vector<std::pair<int64_t, int64_t>>();
  }

  // Run by a hook: our own work, whose errors must not reach the run; gradients that it meets may wait or not.
  template <typename Work>
  void guarded(bool may_wait, Work work) {
    try {
      if (!moments_.is_captured()) return;  // in a forked process, the lock may be held for good
      const Held held(lock_);
      if (!moments_.is_captured()) return;
      const Quiet quiet;
      work();
      if (may_wait && runs_alone_)
        values_.settle_when_many();
      else
        values_.settle();
    } catch (const PythonRaised&) {
      if (!is_ours(bridge_) && !postpone()) pass_on();
      if (PyErr_Occurred()) note_error(bridge_, "backward");
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      note_error(bridge_, "backward");
    }
  }

 private:
  std::shared_ptr<Entry> entry_of(Node* node);

  // What interrupted our work waits for the end of the pass, as it would have had to without us.
  bool postpone() {
    Owned error = taken_error(), name(PyUnicode_InternFromString("postpone"));
    PyObject* arguments[] = {bridge_, error.get()};
    Owned waits(PyObject_VectorcallMethod(name.get(), arguments, 2, nullptr));
    if (waits.get() == Py_True) return true;
    if (waits.get() != nullptr) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
    return false;
  }

  // Autograd brings it to whoever has started the backward.
  [[noreturn]] static void pass_on() {
    python_error raised;
    raised.persist();
    throw raised;
  }

  void watch_arrival(const PairedPtr& paired, const Arrival& arrival);

  void watch_crossings(const PairedPtr& paired, const std::vector<Crossing>& leaving, const InputEdges& edges) {
    std::vector<int> slots(edges.edges.size(), -1);
    for (const Crossing& crossing : leaving) {
      int& slot = slots[crossing.edge];
      if (slot < 0) {
        slot = static_cast<int>(paired->places.size());
        paired->places.push_back(edges.edges[crossing.edge].places);
        paired->expected.push_back(0);
      }
      paired->expected[slot]++;
      entry_of(crossing.node)->watched.leaving.push_back({paired, crossing.index, slot, crossing.change});
    }
  }

  // Nodes of torch's own leave incoming gradients as they are: these can be looked at after the node has run.
  bool only_reads(const Node& node) {
    const std::type_index type(typeid(node));
    const auto known = reading_.find(type);
    if (known != reading_.end()) return known->second;
    return reading_[type] = std::string(type.name()).find("N5torch8autograd9generated") != std::string::npos;
  }

  // Whether a backward runs no code but torch's and ours, so that nobody writes into gradients on their way.
  bool runs_alone(PyObject* roots, PyObject* gradients) {
    if (brings_back_ || c10::impl::TorchDispatchModeTLS::stack_len() > 0) return false;
    BackwardPass pass;
    if (!pass.collect(roots, [this](Node& node) { return runs_alone(node); })) return false;
    if (!pass.stays_here() || pass.writes_into(gradients)) return false;
    for (Node* node : pass.joining()) entry_of(node)->joins = true;
    return true;
  }

  bool runs_alone(Node& node);

  static at::Tensor looked_at(const at::Tensor& gradient, const Change& change) {
    if (!change) return gradient;
    const at::NoGradGuard no_grad;
    return change(gradient);
  }

  int64_t call_of(const PairedPtr& paired, int task) {
    for (const auto& [running, call] : paired->calls)
      if (running == task) return call;
    CallRow row = paired->forward;
    row.forward = row.id;
    row.id = calls_.next_id();
    row.kind = paired->kind;
    row.phase = phase_;
    row.parent = -1;
    row.step = moments_.step();
    row.micro_step = moments_.micro_step();
    row.number = calls_.next_number(phase_, false, row.op);
    calls_.add(row, nullptr);
    calls_.opened(row);
    paired->calls.emplace_back(task, row.id);
    running_.push_back(paired);
    const int64_t pass = paired->module >= 0 ? current_pass() : NONE;
    if (pass != NONE) ran_[pass].emplace_back(paired->module, row.id);
    return row.id;
  }

  // One of several gradients of an input: their sum is recorded when all have come.
  void add_gradient(const PairedPtr& paired, int task, int slot, const at::Tensor& gradient) {
    const at::NoGradGuard no_grad;
    const int64_t call = call_of(paired, task);
    auto [arrived, total] = paired->totals[{task, slot}];
    if (gradient.defined()) total = total.defined() ? total + gradient.detach() : gradient.detach().clone();
    if (arrived + 1 < paired->expected[slot]) {
      paired->totals[{task, slot}] = {arrived + 1, total};
      return;
    }
    paired->totals.erase({task, slot});
    if (total.defined()) use_gradient(call, paired->places[slot], total);
  }

  void use_gradient(int64_t call, const std::vector<int32_t>& places, const at::Tensor& gradient) {
    for (const int32_t place : places) calls_.use(call, grad_input_, place, values_.observe(gradient, call));
  }

  PyObject* bridge_;
  const Lock& lock_;
  const Moments& moments_;
  Calls& calls_;
  Values& values_;
  int32_t phase_, grad_output_, grad_input_;
  RegistryPtr registry_ = std::make_shared<Registry>();
  std::vector<PairedPtr> running_;
  std::unordered_map<int64_t, std::vector<std::pair<int64_t, int64_t>>> ran_;  // by pass
  std::unordered_map<std::type_index, bool> reading_;
  bool runs_alone_ = false;
  bool brings_back_ = false;
};

template <typename Work>
void run_hook(Entry& entry, Work work) {
  pybind11::gil_scoped_acquire gil;
  const std::shared_ptr<Pairing> pairing = entry.registry->pairing.lock();
  if (pairing) pairing->guarded(!entry.joins, [&] { work(*pairing, entry.watched); });
}

struct PreHook : torch::autograd::FunctionPreHook {
  explicit PreHook(std::shared_ptr<Entry> entry) : entry(std::move(entry)) {}

  variable_list operator()(const variable_list& gradients) override {
    run_hook(*entry, [&](Pairing& pairing, Watched& watched) { pairing.use_arriving(watched.first, gradients); });
    return gradients;
  }

  // Compiled autograd leaves it out; torch 2.6 asks without const.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const {}
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) {}

  std::shared_ptr<Entry> entry;
};

struct PostHook : torch::autograd::FunctionPostHook {
  explicit PostHook(std::shared_ptr<Entry> entry) : entry(std::move(entry)) {}

  variable_list operator()(const variable_list& leaving, const variable_list& arriving) override {
    if (entry->watched.arriving.empty() && entry->watched.leaving.empty() && !entry->joins) return leaving;
    run_hook(*entry, [&](Pairing& pairing, Watched& watched) {
      pairing.use_arriving(watched.arriving, arriving);
      pairing.use_leaving(watched.leaving, leaving);
    });
    return leaving;
  }

  // Compiled autograd leaves it out; torch 2.6 asks without const.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const {}
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) {}

  std::shared_ptr<Entry> entry;
};

// Every known node has a hook that runs after it, which keeps its entry.
inline std::shared_ptr<Entry> Pairing::entry_of(Node* node) {
  {
    const std::lock_guard<std::mutex> held(registry_->lock);
    const auto found = registry_->entries.find(node);
    if (found != registry_->entries.end()) return found->second->shared_from_this();
  }
  auto entry = std::make_shared<Entry>(registry_, node);
  {
    const std::lock_guard<std::mutex> held(registry_->lock);
    registry_->entries[node] = entry.get();
  }
  node->add_post_hook(std::make_unique<PostHook>(entry));
  return entry;
}

inline bool Pairing::runs_alone(Node& node) {
  if (!only_reads(node) && typeid(node) != typeid(AccumulateGrad)) return false;
  if (!node.tensor_pre_hooks().empty() || node.tensor_post_acc_grad_hooks() != nullptr) return false;
  for (const auto& hook : node.pre_hooks())
    if (dynamic_cast<const PreHook*>(hook.get()) == nullptr) return false;
  for (const auto& hook : node.post_hooks())
    if (dynamic_cast<const PostHook*>(hook.get()) == nullptr) return false;
  return true;
}

inline void Pairing::watch_arrival(const PairedPtr& paired, const Arrival& arrival) {
  const std::shared_ptr<Entry> entry = entry_of(arrival.node.get());
  if (only_reads(*arrival.node)) {
    entry->watched.arriving.push_back({paired, arrival.number, arrival.place, arrival.change});
    return;
  }
  entry->watched.first.push_back({paired, arrival.number, arrival.place, arrival.change});
  if (!entry->runs_before) {
    entry->runs_before = true;
    arrival.node->add_pre_hook(std::make_unique<PreHook>(entry));
  }
}

}  // namespace ulpscope
