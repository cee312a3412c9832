// Puts observers into graphs that are about to be executed: after grappler, placement and oneDNN's own rewriting, which
// therefore do what they do in a run that nobody watches.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graphs.h"
#include "observing.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/public/session_options.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace ulpscope {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

// They hand on what they are given, which was read where it was made.
inline bool hands_on(const Node& node) {
  static const std::set<std::string> known = {"Identity", "StopGradient", "PreventGradient", "Snapshot"};
  if (known.count(node.type_string())) return !tensorflow::IsRefType(node.input_type(0));
  return node.IsSwitch() || node.IsEnter() || node.IsExit() || node.IsNextIteration() ||
         node.type_string() == "LoopCond";
}

inline const char* why_not_read(const Node& node, int slot) {
  const tensorflow::DataType type = node.output_type(slot);
  if (tensorflow::IsRefType(type)) return "reference";
  if (hands_on(node)) return "handed_on";
  return records().can_read(type) ? nullptr : "dtype";
}

// They give the elements that they are given in the same order.
inline bool reshapes(const Node& node) {
  static const std::set<std::string> known = {"Reshape", "ExpandDims", "Squeeze"};
  return known.count(node.type_string()) > 0;
}

// What a node hands to functions that no pass will see: bodies of While, If and Case that were not lowered.
inline bool hides_functions(const Node& node) {
  static const std::set<std::string> known = {"While",         "StatelessWhile", "If",       "StatelessIf",     "Case",
                                              "StatelessCase", "For",            "MapDefun", "SymbolicGradient"};
  return known.count(node.type_string()) > 0;
}

class Adding {
 public:
  Adding(Graph* graph, int64_t number, ObservedGraph* observed) : graph_(graph), number_(number), observed_(observed) {}

  // Numbers of nodes are their places in the definition.
  void add() {
    const std::vector<Node*> nodes(graph_->op_nodes().begin(), graph_->op_nodes().end());
    for (size_t place = 0; place < nodes.size(); ++place) places_[nodes[place]] = (int64_t)place;
    for (size_t place = 0; place < nodes.size(); ++place) look_at(nodes[place], (int64_t)place);
    // The graph is whole at every moment: it runs with the observers that it has.
    if (!status.ok()) leave_out(-1, -1, "failed");
  }

 private:
  void look_at(Node* node, int64_t place) {
    if (hides_functions(*node)) leave_out(place, -1, "function_body");
    if (node->attrs().Find("_XlaMustCompile") != nullptr) leave_out(place, -1, "xla");
    if (node->num_outputs() == 0) leave_out(place, -1, "no_result");
    const bool is_wanted = !unwanted().has(node->name());
    std::vector<int> slots;
    for (int slot = 0; slot < node->num_outputs(); ++slot) {
      const char* reason = is_wanted ? why_not_read(*node, slot) : "optimizer";
      if (reason != nullptr) {
        leave_out(place, slot, reason);
      } else {
        slots.push_back(slot);
      }
    }
    if (!slots.empty() && status.ok()) observe(node, place, slots);
  }

  void leave_out(int64_t place, int slot, const char* reason) {
    observed_->left_out += std::to_string(place) + " " + std::to_string(slot) + " " + reason + "\n";
  }

  // Whose row a node's first result has, too; -1 if nobody's.
  int64_t same_as(const Node& node, int64_t place) {
    const Node* made_by = &node;
    if (reshapes(node)) {
      const Edge* given = nullptr;
      if (!node.input_edge(0, &given).ok() || given->src_output() != 0) return -1;
      made_by = given->src();
    } else if (!node.IsConstant()) {
      return -1;
    }
    const auto found = places_.find(made_by);
    if (found == places_.end()) return -1;
    auto& known = observed_->known[found->second];
    if (known == nullptr) known.reset(new Known(made_by->IsConstant()));
    return found->second;
  }

  // Whoever uses a result waits for its observer: then nobody can have written into its memory (variables of sessions
  // are written in place), none is copied for being shared, and a result is seen before all that is made of it.
  void observe(Node* node, int64_t place, const std::vector<int>& slots) {
    const std::vector<const Edge*> uses(node->out_edges().begin(), node->out_edges().end());
    Node* observer = graph_->AddNode(definition(*node, place, slots), &status);
    if (!status.ok()) return;
    observer->set_assigned_device_name(node->assigned_device_name());
    for (size_t i = 0; i < slots.size(); ++i) graph_->AddEdge(node, slots[i], observer, (int)i);
    for (const Edge* use : uses) {
      Node* reader = use->dst();
      if (!reader->IsOp() || reader->IsRetval()) continue;
      if (reader->IsMerge()) reader = use->IsControlEdge() ? nullptr : put_identity(use);
      if (reader != nullptr && status.ok()) graph_->AddControlEdge(observer, reader);
    }
  }

  // A merge goes on with the first input that comes: it must not wait for a branch that is not taken.
  Node* put_identity(const Edge* use) {
    Node *source = use->src(), *merge = use->dst();
    const int slot = use->src_output(), place = use->dst_input();
    if (tensorflow::IsRefType(source->output_type(slot))) return nullptr;
    tensorflow::NodeDef made;
    made.set_name(graph_->NewName("ulpscope/hand_on"));
    made.set_op("Identity");
    made.set_device(source->def().device());
    made.add_input(source->name() + ":" + std::to_string(slot));
    (*made.mutable_attr())["T"].set_type(source->output_type(slot));
    Node* identity = graph_->AddNode(made, &status);
    if (!status.ok()) return nullptr;
    identity->set_assigned_device_name(source->assigned_device_name());
    graph_->AddEdge(source, slot, identity, 0);
    status = graph_->UpdateEdge(identity, 0, merge, place);
    return identity;
  }

  tensorflow::NodeDef definition(const Node& node, int64_t place, const std::vector<int>& slots) {
    tensorflow::NodeDef made;
    // A session keeps its stateful kernels by name, over all graphs that it runs.
    made.set_name("ulpscope/observe_" + std::to_string(number_) + "_" + std::to_string(place));
    made.set_op(OBSERVE);
    made.set_device(node.def().device());
    auto& attributes = *made.mutable_attr();
    attributes["graph"].set_i(number_);
    attributes["node"].set_i(place);
    attributes["same_as"].set_i(same_as(node, place));
    for (const int slot : slots) {
      made.add_input(node.name() + ":" + std::to_string(slot));
      attributes["slots"].mutable_list()->add_i(slot);
      attributes["T"].mutable_list()->add_type(node.output_type(slot));
    }
    return made;
  }

  absl::Status status;
  Graph* graph_;
  int64_t number_;
  ObservedGraph* observed_;
  std::map<const Node*, int64_t> places_;
};

// Which function this thread is preparing: the pass that adds observers is not told.
inline std::string& function_in_hand() {
  thread_local std::string name;
  return name;
}

class NoteFunction : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    function_in_hand() = options.function_def != nullptr ? options.function_def->signature().name() : "";
    return absl::OkStatus();
  }
};

// Eager execution runs one operation as such a function. It is no graph of the user's, and is seen as it is called.
inline bool is_one_eager_operation(const std::string& function) { return function.rfind("__wrapped__", 0) == 0; }

class AddObservers : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.partition_graphs == nullptr || is_one_eager_operation(function_in_hand())) return absl::OkStatus();
    for (auto& partition : *options.partition_graphs) {
      observe(options, partition.first, partition.second.get());
    }
    return absl::OkStatus();
  }

 private:
  static void observe(const tensorflow::GraphOptimizationPassOptions& options, const std::string& device,
                      Graph* graph) {
    const int64_t number = graphs().claim();
    ObservedGraph observed;
    observed.device = device;
    observed.function = function_in_hand();
    if (options.session_options != nullptr) {
      options.session_options->config.graph_options().SerializeToString(&observed.options);
    }
    observed.definition = definition_of(*graph);
    if (is_cpu(device)) {
      Adding(graph, number, &observed).add();
    } else {
      observed.left_out = "-1 -1 device\n";
    }
    graphs().fill(number, std::move(observed));
  }

  static bool is_cpu(const std::string& device) {
    tensorflow::DeviceNameUtils::ParsedName name;
    return tensorflow::DeviceNameUtils::ParseFullName(device, &name) && name.type == "CPU";
  }

  static std::string definition_of(const Graph& graph) {
    tensorflow::GraphDef definition;
    graph.ToGraphDef(&definition);
    definition.clear_library();
    for (tensorflow::NodeDef& node : *definition.mutable_node()) {
      const auto value = node.mutable_attr()->find("value");
      if (value == node.mutable_attr()->end() || !value->second.has_tensor()) continue;
      tensorflow::TensorProto& tensor = *value->second.mutable_tensor();
      if (tensor.ByteSizeLong() > KEPT_CONSTANT_BYTES) {
        const auto dtype = tensor.dtype();
        const tensorflow::TensorShapeProto shape = tensor.tensor_shape();
        tensor.Clear();
        tensor.set_dtype(dtype);
        *tensor.mutable_tensor_shape() = shape;
      }
    }
    std::string text;
    definition.SerializeToString(&text);
    return text;
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 1000, NoteFunction);
// oneDNN's rewriting has phase 1 of the same group.
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_PARTITIONING, 1000, AddObservers);

}  // namespace ulpscope
