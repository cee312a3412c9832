// What observers saw, kept until Python takes it: summary rows and, where they are wanted, elements.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/denormal.h"

namespace ulpscope {

// As `RECORD` in results.py has it.
struct Record {
  int64_t sequence, time_ns, run, graph, node, slot, dtype, frame, iteration, rank;
  int64_t dims[MAX_DIMS];
  int64_t data, nbytes;
  double row[ROW_LENGTH];
};

struct Place {
  int64_t run, graph, node, slot, frame, iteration;
};

// The row of a content that is met again: a constant's, or what a reshape gives in another shape.
class Known {
 public:
  explicit Known(bool always) : always_(always) {}
  bool tell(const Place& here, double* row) {
    std::lock_guard<std::mutex> one(lock_);
    const bool same = there_ && (always_ || (where_.run == here.run && where_.frame == here.frame &&
                                             where_.iteration == here.iteration));
    if (same) memcpy(row, row_, sizeof row_);
    return same;
  }
  void keep(const Place& here, const double* row) {
    std::lock_guard<std::mutex> one(lock_);
    if (there_ && always_) return;
    memcpy(row_, row, sizeof row_);
    where_ = here;
    there_ = true;
  }

 private:
  std::mutex lock_;
  const bool always_;
  bool there_ = false;
  Place where_ = {};
  double row_[ROW_LENGTH];
};

// Of one element type: the compiled kernel, and what kernels of tables take besides.
struct Summarizer {
  void* kernel;
  const int32_t* table;
  int64_t normal, parts;
};

enum What { NOTHING, ROWS, ROWS_AND_DATA };

class Records {
 public:
  void teach(int dtype, const Summarizer& summarizer) { summarizers_[dtype] = summarizer; }
  bool can_read(int dtype) const { return dtype < DTYPES && summarizers_[dtype].kernel != nullptr; }
  void limit(int64_t records, int64_t data_bytes) {
    std::unique_lock<std::shared_mutex> alone(gate_);
    chunks_.resize((records + CHUNK - 1) / CHUNK);
    data_limit_ = data_bytes;
  }
  void want(What what) { wanted_.store(what, std::memory_order_relaxed); }
  bool is_wanted() const { return wanted_.load(std::memory_order_relaxed) != NOTHING; }

  // `known`: where the row may be told already. `asked_again`: where it will be asked for.
  void add(const Place& place, const tensorflow::Tensor& tensor, Known* known, Known* asked_again) {
    std::shared_lock<std::shared_mutex> among_others(gate_);
    const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= (int64_t)chunks_.size() * CHUNK) {
      ++dropped_rows_;
      return;
    }
    Record& record = at(index);
    tell(place, tensor, record);
    if (known == nullptr || !known->tell(place, record.row)) summarize(tensor, record.row);
    if (asked_again != nullptr) asked_again->keep(place, record.row);
    if (wanted_.load(std::memory_order_relaxed) == ROWS_AND_DATA) keep_data(tensor, record);
  }

  // Sets aside what was gathered, for `copy`; later records begin anew. How many there are.
  int64_t detach() {
    std::unique_lock<std::shared_mutex> alone(gate_);
    const int64_t room = (int64_t)chunks_.size() * CHUNK;
    const int64_t count = next_.load() < room ? next_.load() : room;
    chunks_.swap(detached_);
    chunks_.resize(detached_.size());
    next_ = 0;
    detached_count_ = count;
    return count;
  }

  void copy(Record* records) {
    for (int64_t start = 0; start < detached_count_; start += CHUNK) {
      const int64_t count = detached_count_ - start < CHUNK ? detached_count_ - start : CHUNK;
      memcpy(records + start, detached_[start / CHUNK].get(), count * sizeof(Record));
    }
  }

  void let_go(void* data, int64_t nbytes) {
    free(data);
    data_held_ -= nbytes;
  }

  int64_t dropped_rows() const { return dropped_rows_; }
  int64_t dropped_data() const { return dropped_data_; }

 private:
  static constexpr int64_t CHUNK = 1024;
  static constexpr int DTYPES = 128;

  Record& at(int64_t index) {
    std::unique_ptr<Record[]>& chunk = chunks_[index / CHUNK];
    // Nobody but the first of a chunk's makes it; the others wait for that.
    std::lock_guard<std::mutex> one(making_);
    if (chunk == nullptr) chunk.reset(new Record[CHUNK]);
    return chunk[index % CHUNK];
  }

  void tell(const Place& place, const tensorflow::Tensor& tensor, Record& record) {
    using Clock = std::chrono::system_clock;
    const auto now = Clock::now().time_since_epoch();
    record = {sequence_.fetch_add(1, std::memory_order_relaxed),
              std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(),
              place.run,
              place.graph,
              place.node,
              place.slot,
              (int64_t)tensor.dtype(),
              place.frame,
              place.iteration,
              tensor.dims()};
    for (int k = 0; k < tensor.dims() && k < MAX_DIMS; ++k) record.dims[k] = tensor.dim_size(k);
  }

  // The framework's threads may flush subnormal numbers to zero, which would change sums.
  void summarize(const tensorflow::Tensor& tensor, double* row) const {
    const tensorflow::port::ScopedDontFlushDenormal as_they_are;
    const Summarizer& how = summarizers_[tensor.dtype()];
    const auto* elements = (const char*)tensor.data();
    const int64_t count = tensor.NumElements() * how.parts;
    if (how.table == nullptr) {
      ((void (*)(const char*, int64_t, double*))how.kernel)(elements, count, row);
    } else {
      ((void (*)(const int32_t*, int64_t, const char*, int64_t, double*))how.kernel)(how.table, how.normal, elements,
                                                                                      count, row);
    }
  }

  void keep_data(const tensorflow::Tensor& tensor, Record& record) {
    const int64_t nbytes = tensor.NumElements() * tensorflow::DataTypeSize(tensor.dtype());
    void* data = nullptr;
    if (data_held_.fetch_add(nbytes) + nbytes <= data_limit_) data = malloc(nbytes > 0 ? nbytes : 1);
    if (data == nullptr) {
      data_held_ -= nbytes;
      ++dropped_data_;
      return;
    }
    memcpy(data, tensor.data(), nbytes);
    record.data = (int64_t)data;
    record.nbytes = nbytes;
  }

  Summarizer summarizers_[DTYPES] = {};
  std::shared_mutex gate_;
  std::mutex making_;
  std::vector<std::unique_ptr<Record[]>> chunks_, detached_;
  int64_t detached_count_ = 0, data_limit_ = 0;
  std::atomic<int64_t> next_{0}, sequence_{0}, data_held_{0}, dropped_rows_{0}, dropped_data_{0};
  std::atomic<int> wanted_{NOTHING};
};

inline Records& records() {
  static Records* all = new Records;  // never destroyed: kernels may run when the process ends
  return *all;
}

}  // namespace ulpscope
