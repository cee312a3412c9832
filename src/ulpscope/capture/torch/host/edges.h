// Gradient edges of a call: where gradients enter it from its outputs, and where they leave it to its inputs.
//
// The counterpart of edges.py, whose rules hold here too; calls that write into their inputs are left to it.
#pragma once

#include "arguments.h"

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
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

  void add(int32_t place, const at::Tensor& tensor) {
    InputEdge edge;
    edge.node = tensor.grad_fn();
    if (edge.node)
      edge.number = tensor.output_nr();
    else
      edge.leaf = tensor.unsafeGetTensorImpl();
    for (InputEdge& known : edges)
      if (known.node == edge.node && known.number == edge.number && known.leaf == edge.leaf) {
        known.places.push_back(place);
        return;
      }
    edge.places.push_back(place);
    edges.push_back(std::move(edge));
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

// A gradient that enters a call: node, the number of its output, the place of the call's output.
struct Arrival {
  NodePtr node;
  uint32_t number;
  int32_t place;
};

// An edge on which a gradient leaves a call: node, number of the edge there, the input's edge, the dtype to look at it in.
struct Crossing {
  Node* node;
  uint32_t index;
  int edge;
  std::optional<at::ScalarType> cast;
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

// Where gradients will enter; completes `edges` if the call has built a graph.
inline std::vector<Arrival> arrivals(const Tensors& outputs, const Tensors& inputs, InputEdges& edges) {
  std::vector<Arrival> found;
  Tensors fresh;
  for (const Placed& output : outputs) {
    if (!output.tensor().requires_grad()) continue;
    const bool passed = std::any_of(
        inputs.begin(), inputs.end(), [&](const Placed& input) { return input.tensor().is_same(output.tensor()); });
    if (passed) continue;
    if (is_transformed(output.tensor())) return found;
    fresh.push_back(output);
  }
  if (fresh.empty()) return found;
  for (const auto& [place, tensor] : edges.later) edges.add(place, tensor);
  edges.later.clear();
  for (const Placed& output : fresh) {
    const NodePtr& node = output.tensor().grad_fn();
    const auto number = static_cast<uint32_t>(output.tensor().output_nr());
    // Else it is an untouched input behind another name.
    if (node && edges.find(node.get(), number) < 0) found.push_back({node, number, output.place});
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
  crossing = {node, index, edge, beyond->variable.scalar_type()};
  return true;
}

// Edges from the call's nodes to its inputs; `seen` are the nodes of the call.
inline std::vector<Crossing> crossings(
    const std::vector<Arrival>& arriving, const InputEdges& edges, std::vector<Node*>& seen) {
  std::vector<Crossing> found;
  std::vector<Node*> waiting;
  for (const Arrival& arrival : arriving) waiting.push_back(arrival.node.get());
  std::unordered_set<Node*> met;
  while (!waiting.empty()) {
    Node* node = waiting.back();
    waiting.pop_back();
    if (edges.has_node(node) || !met.insert(node).second) continue;
    seen.push_back(node);
    for (uint32_t index = 0; index < node->num_outputs(); index++) {
      const torch::autograd::Edge& following = node->next_edge(index);
      Node* ahead = following.function.get();
      if (ahead == nullptr) continue;
      const auto* leaf = dynamic_cast<AccumulateGrad*>(ahead);
      const int edge = leaf != nullptr ? edges.find_leaf(leaf->variable.unsafeGetTensorImpl())
                                       : edges.find(ahead, following.input_nr);
      Crossing cast;
      if (edge >= 0)
        found.push_back({node, index, edge, std::nullopt});
      else if (edges.autocast && crosses_cast(node, index, *ahead, edges, cast))
        found.push_back(cast);
      else if (leaf == nullptr && ahead->sequence_nr() >= edges.sequence)
        waiting.push_back(ahead);
    }
  }
  return found;
}

}  // namespace ulpscope
