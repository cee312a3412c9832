// The graphs that are observed, as they were before observers were added.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "records.h"

namespace ulpscope {

struct ObservedGraph {
  std::string function, device;
  std::string definition;  // a GraphDef without the contents of large constants
  std::string options;     // the ConfigProto's GraphOptions
  std::string left_out;    // lines: node, slot, why its result is not read
  std::map<int64_t, std::unique_ptr<Known>> known;  // by nodes whose row is asked for again
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
  // Null if nobody asks for that row again.
  Known* known(int64_t number, int64_t node) {
    std::lock_guard<std::mutex> one(lock_);
    const auto found = graphs_[number].known.find(node);
    return found == graphs_[number].known.end() ? nullptr : found->second.get();
  }

 private:
  std::mutex lock_;
  std::deque<ObservedGraph> graphs_;
};

inline Graphs& graphs() {
  static Graphs* all = new Graphs;
  return *all;
}

// Names of nodes that are not to be read: those of updates, unless somebody wants to see into them.
class Unwanted {
 public:
  void choose(const char* lines) {
    std::lock_guard<std::mutex> one(lock_);
    names_.clear();
    std::string name;
    for (; *lines != 0; ++lines) {
      if (*lines != '\n') {
        name += *lines;
      } else {
        names_.insert(std::move(name));
        name.clear();
      }
    }
  }
  // A node that came out of a function bears the name that it had there behind that of the call.
  bool has(const std::string& name) {
    std::lock_guard<std::mutex> one(lock_);
    if (names_.empty()) return false;
    for (size_t start = 0;; ++start) {
      if (names_.count(name.substr(start))) return true;
      start = name.find('/', start);
      if (start == std::string::npos) return false;
    }
  }

 private:
  std::mutex lock_;
  std::set<std::string> names_;
};

inline Unwanted& unwanted() {
  static Unwanted* all = new Unwanted;
  return *all;
}

}  // namespace ulpscope
