// Gradient edges of a call: where gradients enter it from its outputs, and where they leave it to its inputs.
//
// The counterpart of edges.py, whose rules hold here too.
#pragma once

#include "arguments.h"

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <unordered_set>

namespace ulpscope {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
// A shared or an intrusive pointer, as torch's version has it.
using NodePtr = std::decay_t<decltype(std::declval<const torch::autograd::Edge&>().function)>;

struct InputEdge {
  NodePtr node;  // null for a leaf
  uint32_t number = 0;
  const void* leaf = nullptr;
  std::vector<int32_t> places;
};

// The inputs of a call that want gradients.
struct InputEdges {
  bool watched = false;
  uint64_t sequence = 0;  // nodes made before this number do not belong to the call
  bool autocast = false;
  std::vector<InputEdge> edges;
  std::vector<std::pair<int32_t, at::Tensor>> later;  // inputs whose edge may only be read after the call
  std::vector<std::pair<const void*, int>> of_tensor;

  void add(int32_t place, const at::Tensor& tensor) {
    InputEdge edge;
    edge.node = tensor.grad_fn();
    if (edge.node)
      edge.number = tensor.output_nr();
    else
      edge.leaf = tensor.unsafeGetTensorImpl();
    int index = edge.node ? find(edge.node.get(), edge.number) : find_leaf(edge.leaf);
    if (index < 0) {
      index = static_cast<int>(edges.size());
      edges.push_back(std::move(edge));
    }
    edges[index].places.push_back(place);
    of_tensor.emplace_back(tensor.unsafeGetTensorImpl(), index);
  }

  int edge_of(const at::Tensor& tensor) const {
    for (const auto& [known, index] : of_tensor)
      if (known == tensor.unsafeGetTensorImpl()) return index;
    return -1;
  }

  int find(const Node* node, uint32_t number) const {
    for (size_t index = 0; index < edges.size(); index++)
      if (edges[index].node.get() == node && edges[index].number == number) return static_cast<int>(index);
    return -1;
  }

  int find_leaf(const void* leaf) const {
    for (size_t index = 0; index < edges.size(); index++)
      if (edges[index].leaf == leaf) return static_cast<int>(index);
    return -1;
  }

  bool has_node(const Node* node) const {
    return std::any_of(edges.begin(), edges.end(), [&](const InputEdge& edge) { return edge.node.get() == node; });
  }
};

// How to look at a gradient; empty: as it is.
using Change = std::function<at::Tensor(const at::Tensor&)>;

// A gradient that enters a call: node, the number of its output, the place of the call's output, how to look at it. Of a
// view that the call has written also the edge that it had as an input, -1 for none.
struct Arrival {
  NodePtr node;
  uint32_t number;
  int32_t place;
  Change change;
  int written_edge = -1;
};

// An edge on which a gradient leaves a call: node, number of the edge there, the input's edge, how to look at it.
struct Crossing {
  Node* node;
  uint32_t index;
  int edge;
  Change change;
};

inline std::optional<at::ScalarType> autocast_dtype(c10::DeviceType device) {
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device)) return std::nullopt;
  return at::autocast::get_autocast_dtype(device);
}

inline bool is_transformed(const at::Tensor& tensor) {
  static const c10::DispatchKeySet wrapped(
      {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper});
  return tensor.unsafeGetTensorImpl()->key_set().has_any(wrapped);
}

inline InputEdges note_inputs(const Tensors& tensors) {
  InputEdges edges;
  if (!at::GradMode::is_enabled()) return edges;
  for (const Placed& placed : tensors) {
    const at::Tensor& tensor = placed.tensor();
    if (!tensor.requires_grad()) continue;
    if (is_transformed(tensor)) return {};
    if (!edges.watched) {
      edges.watched = true;
      edges.autocast = autocast_dtype(tensor.device().type()).has_value();
      edges.sequence = at::sequence_number::peek();
    }
    // To ask a view whose base was written for its node makes a new one.
    if (tensor.is_view() && tensor._version() > 0)
      edges.later.emplace_back(placed.place, tensor);
    else
      edges.add(placed.place, tensor);
  }
  return edges;
}

inline bool is_among(const at::Tensor& tensor, const Tensors& tensors) {
  return std::any_of(
      tensors.begin(), tensors.end(), [&](const Placed& placed) { return placed.tensor().is_same(tensor); });
}

// The node of a write into a view: gradients pass through its base's history, not through the view's own.
inline NodePtr copy_slices(const at::Tensor& tensor, const InputEdges& edges) {
  if (!tensor.is_view()) return nullptr;
  const NodePtr& node = tensor._base().grad_fn();
  const bool is_write = dynamic_cast<torch::autograd::CopySlices*>(node.get()) != nullptr;
  return is_write && node->sequence_nr() >= edges.sequence ? node : nullptr;
}

// Looks at a base's gradient as the view looks at its base.
inline Change window(const at::Tensor& view) {
  const at::TensorBase& base = view._base();
  const std::vector<int64_t> size = view.sizes().vec(), stride = view.strides().vec();
  const std::vector<int64_t> base_size = base.sizes().vec(), base_stride = base.strides().vec();
  const int64_t offset = view.storage_offset() - base.storage_offset();
  return [=](const at::Tensor& gradient) {
    at::Tensor whole = gradient.new_empty_strided(base_size, base_stride);
    whole.copy_(gradient);
    return whole.as_strided(size, stride, offset);
  };
}

// Where gradients will enter; completes `edges` if the call has built a graph. Inputs that the call has not written may
// be among the outputs: these have passed untouched.
inline std::vector<Arrival> arrivals(
    const Tensors& outputs, const Tensors& untouched, const Tensors& written, InputEdges& edges) {
  std::vector<Arrival> found;
  Tensors fresh;
  for (const Placed& output : outputs) {
    if (!output.tensor().requires_grad() || is_among(output.tensor(), untouched)) continue;
    if (is_transformed(output.tensor())) return found;
    fresh.push_back(output);
  }
  if (fresh.empty()) return found;
  for (const auto& [place, tensor] : edges.later) edges.add(place, tensor);
  edges.later.clear();
  for (const Placed& output : fresh) {
    const at::Tensor& tensor = output.tensor();
    if (const NodePtr write = is_among(tensor, written) ? copy_slices(tensor, edges) : nullptr) {
      found.push_back({write, 0, output.place, window(tensor), edges.edge_of(tensor)});
      continue;
    }
    const NodePtr& node = tensor.grad_fn();
    const auto number = static_cast<uint32_t>(tensor.output_nr());
    // Else it is an untouched input behind another name.
    if (node && edges.find(node.get(), number) < 0) found.push_back({node, number, output.place, nullptr});
  }
  return found;
}

// Autocast keeps its cast of a weight for later calls: what enters the cast is this call's share.
inline bool crosses_cast(Node* node, uint32_t index, const Node& ahead, const InputEdges& edges, Crossing& crossing) {
  if (ahead.name() != "ToCopyBackward0" || ahead.num_outputs() == 0) return false;
  const auto* beyond = dynamic_cast<AccumulateGrad*>(ahead.next_edge(0).function.get());
  if (beyond == nullptr) return false;
  const int edge = edges.find_leaf(beyond->variable.unsafeGetTensorImpl());
  if (edge < 0) return false;
  const at::ScalarType dtype = beyond->variable.scalar_type();
  crossing = {node, index, edge, [dtype](const at::Tensor& gradient) { return gradient.to(dtype); }};
  return true;
}

// Edges from the call's nodes to its inputs; `seen` are the nodes of the call.
inline std::vector<Crossing> crossings(
    const std::vector<Arrival>& arriving, const InputEdges& edges, std::vector<Node*>& seen) {
  std::vector<Crossing> found;
  std::vector<Node*> waiting;
  std::unordered_set<Node*> writes, met;
  for (const Arrival& arrival : arriving) {
    waiting.push_back(arrival.node.get());
    if (arrival.change) writes.insert(arrival.node.get());
    if (arrival.written_edge >= 0) found.push_back({arrival.node.get(), 0, arrival.written_edge, arrival.change});
  }
  while (!waiting.empty()) {
    Node* node = waiting.back();
    waiting.pop_back();
    const bool is_write = writes.count(node) > 0;
    if ((edges.has_node(node) && !is_write) || !met.insert(node).second) continue;
    seen.push_back(node);
    for (uint32_t index = is_write ? 1 : 0; index < node->num_outputs(); index++) {
      const torch::autograd::Edge& following = node->next_edge(index);
      Node* ahead = following.function.get();
      if (ahead == nullptr) continue;
      const auto* leaf = dynamic_cast<AccumulateGrad*>(ahead);
      const int edge = leaf != nullptr ? edges.find_leaf(leaf->variable.unsafeGetTensorImpl())
                                       : edges.find(ahead, following.input_nr);
      Crossing cast;
      if (edge >= 0)
        found.push_back({node, index, edge, nullptr});
      else if (edges.autocast && crosses_cast(node, index, *ahead, edges, cast))
        found.push_back(cast);
      else if (leaf == nullptr && ahead->sequence_nr() >= edges.sequence)
        waiting.push_back(ahead);
    }
  }
  return found;
}

}  // namespace ulpscope
