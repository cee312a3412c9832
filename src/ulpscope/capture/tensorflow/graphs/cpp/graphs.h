// The graphs that are observed, as they were before observers were added.
#pragma once
#include <deque>
#include <mutex>
#include <string>

namespace ulpscope {

struct ObservedGraph {
  std::string function, device;
  std::string definition;  // a GraphDef without the contents of large constants
  std::string options;     // the ConfigProto's GraphOptions
  std::string left_out;    // lines: node, slot, why its result is not read
  bool whole = false;
};

class Graphs {
 public:
  int64_t claim() {
    std::lock_guard<std::mutex> one(lock_);
    graphs_.emplace_back();
    return (int64_t)graphs_.size() - 1;
  }
  void fill(int64_t number, ObservedGraph graph) {
    std::lock_guard<std::mutex> one(lock_);
    graph.whole = true;
    graphs_[number] = std::move(graph);
  }
  // Those before the first that another thread is still preparing.
  int64_t count() {
    std::lock_guard<std::mutex> one(lock_);
    int64_t number = 0;
    while (number < (int64_t)graphs_.size() && graphs_[number].whole) ++number;
    return number;
  }
  // A graph's texts stay where they are: a deque does not move what it holds.
  const std::string& part(int64_t number, int which) {
    std::lock_guard<std::mutex> one(lock_);
    const ObservedGraph& graph = graphs_[number];
    const std::string* parts[] = {&graph.function, &graph.device, &graph.definition, &graph.options, &graph.left_out};
    return *parts[which];
  }

 private:
  std::mutex lock_;
  std::deque<ObservedGraph> graphs_;
};

inline Graphs& graphs() {
  static Graphs* all = new Graphs;
  return *all;
}

}  // namespace ulpscope
