// A backward pass before it runs: what code will run in it, and where gradients will be added up.
#pragma once

#include "edges.h"
#include "launching.h"
#include "storages.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <torch/csrc/PyInterpreter.h>

#include <unordered_map>

namespace ulpscope {

// The number of the pass that runs here, as steps.py gives it; NONE for one that was started past us.
inline int64_t current_pass() {
  using Objects = at::impl::ThreadLocalPythonObjects;
  static const std::string key = "ulpscope.pass";
  return Objects::contains(key) ? optional_int(Objects::get(key)->ptr(getPyInterpreter())) : NONE;
}

class BackwardPass {
 public:
  // All nodes that can be reached from these tensors; false, and not all of them, if one is not `wanted`.
  template <typename Wanted>
  bool collect(PyObject* roots, Wanted wanted) {
    if (!PyTuple_Check(roots)) return false;
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(roots); index++) {
      PyObject* root = PyTuple_GET_ITEM(roots, index);
      if (!THPVariable_CheckExact(root)) return false;
      const at::Tensor& tensor = THPVariable_Unpack(root);
      if (tensor.grad_fn()) add(tensor.grad_fn().get(), tensor.output_nr());
    }
    for (size_t next = 0; next < nodes_.size(); next++) {
      if (!wanted(*nodes_[next])) return false;
      for (const auto& edge : nodes_[next]->next_edges())
        if (edge.function) add(edge.function.get(), edge.input_nr);
    }
    return true;
  }

  // Whether all of it runs on the streams that are current here.
  bool stays_here() const {
    return std::all_of(nodes_.begin(), nodes_.end(), [](Node* node) {
      const auto stream = node->stream();
      return !stream || *stream == current_stream(stream->device());
    });
  }

  // Whether one of the gradients that it begins with lies where a leaf has a gradient, to which it adds.
  bool writes_into(PyObject* gradients) const {
    if (!PyTuple_Check(gradients)) return false;
    std::unordered_set<const void*> written;
    for (Node* node : nodes_) {
      const auto* leaf = dynamic_cast<const AccumulateGrad*>(node);
      if (leaf != nullptr && leaf->variable.grad().defined()) written.insert(memory_of(leaf->variable.grad()));
    }
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(gradients); index++) {
      PyObject* gradient = PyTuple_GET_ITEM(gradients, index);
      if (THPVariable_Check(gradient) && written.count(memory_of(THPVariable_Unpack(gradient))) > 0) return true;
    }
    return false;
  }

  // Nodes that send a gradient to where others arrive, too: autograd adds to the one that came first, in place if it
  // has no other owner.
  std::vector<Node*> joining() const {
    std::vector<Node*> joining;
    for (Node* node : nodes_) {
      const auto& edges = node->next_edges();
      const bool joins = std::any_of(edges.begin(), edges.end(), [&](const torch::autograd::Edge& edge) {
        return edge.function && senders_.at(edge.function.get())[edge.input_nr] > 1;
      });
      if (joins) joining.push_back(node);
    }
    return joining;
  }

 private:
  void add(Node* node, uint32_t number) {
    auto [found, is_new] = senders_.try_emplace(node);
    if (is_new) nodes_.push_back(node);
    if (found->second.size() <= number) found->second.resize(number + 1);
    found->second[number]++;
  }

  // Of a tensor without a storage (a sparse one) none.
  static const void* memory_of(const at::Tensor& tensor) {
    return tensor.has_storage() ? tensor.storage().data() : nullptr;
  }

  std::vector<Node*> nodes_;
  std::unordered_map<const Node*, std::vector<int>> senders_;  // how many, for each of a node's inputs
};

}  // namespace ulpscope
