// Shapes with their strides, each kept once, and which elements they show in which order.
#pragma once

#include "python.h"

#include <ATen/core/TensorBase.h>

#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

namespace ulpscope {

using Numbers = std::vector<int64_t>;

struct Geometry {
  Numbers shape, strides;
  int64_t elements = 1;
  bool contiguous = true;
  // Views of one storage with equal numbers tell the same elements in the same order, if they begin at the same.
  int32_t sequence = 0;
  // Sizes and strides, innermost first, without dimensions of one element, those joined that continue each other.
  std::vector<std::pair<int64_t, int64_t>> merged;
};

class Geometries {
 public:
  int32_t of(const at::TensorBase& tensor) { return of(tensor.sizes(), tensor.strides(), tensor.is_contiguous()); }

  int32_t of(c10::IntArrayRef shape, c10::IntArrayRef strides, bool contiguous) {
    auto& candidates = known_[hash(shape, strides)];
    for (const int32_t index : candidates) {
      const Geometry& geometry = all_[index];
      if (c10::IntArrayRef(geometry.shape) == shape && c10::IntArrayRef(geometry.strides) == strides) return index;
    }
    const auto index = static_cast<int32_t>(all_.size());
    candidates.push_back(index);
    all_.push_back(make(shape, strides, contiguous));
    return index;
  }

  const Geometry& operator[](int32_t index) const { return all_[index]; }
  size_t size() const { return all_.size(); }

  void clear() {
    known_.clear();
    all_.clear();
    sequences_.clear();
  }

 private:
  static uint64_t hash(c10::IntArrayRef shape, c10::IntArrayRef strides) {
    uint64_t mixed = shape.size();
    for (const int64_t size : shape) mixed = (mixed ^ static_cast<uint64_t>(size)) * 0x9E3779B97F4A7C15ull;
    for (const int64_t stride : strides) mixed = (mixed ^ static_cast<uint64_t>(stride)) * 0xC2B2AE3D27D4EB4Full;
    return mixed ^ (mixed >> 29);
  }

  Geometry make(c10::IntArrayRef shape, c10::IntArrayRef strides, bool contiguous) {
    Geometry geometry;
    geometry.shape = shape.vec();
    geometry.strides = strides.vec();
    for (const int64_t size : shape) geometry.elements *= size;
    geometry.contiguous = contiguous;
    if (shape.size() == strides.size()) geometry.merged = merge(geometry);
    geometry.sequence = sequence_of(geometry);
    return geometry;
  }

  static std::vector<std::pair<int64_t, int64_t>> merge(const Geometry& geometry) {
    std::vector<std::pair<int64_t, int64_t>> merged;
    for (size_t index = geometry.shape.size(); index-- > 0;) {
      const int64_t size = geometry.shape[index], stride = geometry.strides[index];
      if (size == 1) continue;
      if (!merged.empty() && stride == merged.back().first * merged.back().second)
        merged.back().first *= size;
      else
        merged.emplace_back(size, stride);
    }
    return merged;
  }

  int32_t sequence_of(const Geometry& geometry) {
    Numbers key;
    if (geometry.contiguous) {
      key = {geometry.elements};
    } else {
      for (const auto& [size, stride] : geometry.merged) key.insert(key.end(), {size, stride});
    }
    return sequences_.emplace(std::move(key), static_cast<int32_t>(sequences_.size())).first->second;
  }

  std::unordered_map<uint64_t, std::vector<int32_t>> known_;
  std::deque<Geometry> all_;
  std::map<Numbers, int32_t> sequences_;
};

}  // namespace ulpscope
