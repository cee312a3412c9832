// Storages that were met: who wrote them last, and which contents of them still hold.
//
// A weak reference keeps the address of a storage from being used again without keeping its data alive, so an address
// is an identity for as long as its entry stands here.
#pragma once

#include "python.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <unordered_map>
#include <vector>

namespace ulpscope {

constexpr int64_t NONE = -1;
constexpr int SWEEP_EVERY = 4096;
// Contents of one storage are looked for one by one up to so many, beyond that by hash.
constexpr size_t FEW_KEYS = 12;

// What tells contents of one storage apart.
struct Key {
  int64_t version, offset;
  int32_t place;  // of a value its geometry, of a row its sequence of elements
  int8_t dtype;
  uint8_t flags;

  bool operator==(const Key& other) const {
    return version == other.version && offset == other.offset && place == other.place && dtype == other.dtype &&
        flags == other.flags;
  }
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t mixed = static_cast<uint64_t>(key.offset) * 0x9E3779B97F4A7C15ull;
    mixed ^= (static_cast<uint64_t>(key.place) << 20) ^ (static_cast<uint64_t>(key.version) << 44);
    mixed ^= static_cast<uint64_t>(key.dtype) << 8 ^ key.flags;
    return mixed * 0xC2B2AE3D27D4EB4Full >> 7;
  }
};

template <typename Item>
class Contents {
 public:
  const Item* find(const Key& key) const {
    if (!many_.empty()) {
      const auto found = many_.find(key);
      return found == many_.end() ? nullptr : &found->second;
    }
    for (const auto& entry : few_)
      if (entry.first == key) return &entry.second;
    return nullptr;
  }

  void set(const Key& key, Item item) {
    if (many_.empty() && few_.size() < FEW_KEYS) {
      for (auto& entry : few_)
        if (entry.first == key) {
          entry.second = item;
          return;
        }
      few_.emplace_back(key, item);
      return;
    }
    for (auto& entry : few_) many_.insert(entry);
    few_.clear();
    many_[key] = item;
  }

  void clear() {
    few_.clear();
    many_.clear();
  }

  void append_to(std::vector<Item>& items) const {
    for (const auto& entry : few_) items.push_back(entry.second);
    for (const auto& entry : many_) items.push_back(entry.second);
  }

 private:
  std::vector<std::pair<Key, Item>> few_;
  std::unordered_map<Key, Item, KeyHash> many_;
};

struct RowPlace {
  int64_t part;  // rows go to disk with their part, and cannot be shared after it
  int32_t batch, row;
};

struct Storage {
  int64_t number;
  c10::weak_intrusive_ptr<c10::StorageImpl> weak;
  bool trusted;  // false once its memory can be changed behind torch's back
  bool met = false;
  int64_t writer = NONE;
  int64_t unwritten = 0;  // bytes of a torch.empty nobody has written yet
  Contents<int64_t> values;
  Contents<RowPlace> rows;

  void forget() {
    values.clear();
    rows.clear();
  }

  // A call has written so many of its bytes.
  void wrote(int64_t call, int64_t bytes) {
    forget();
    writer = call;
    unwritten = std::max<int64_t>(0, unwritten - bytes);
  }
};

class Storages {
 public:
  Storage& of(const at::TensorBase& tensor) {
    c10::StorageImpl* address = tensor.storage().unsafeGetStorageImpl();
    const auto found = states_.find(address);
    return found != states_.end() ? *found->second : add(tensor, address);
  }

  void forget_all() {
    sweep();  // many are gone by now, and need not be visited again and again
    for (auto& entry : states_) entry.second->forget();
  }

  void lose_track() {
    forget_all();
    for (auto& entry : states_) {
      entry.second->writer = NONE;
      entry.second->unwritten = 0;
    }
  }

  // The numbers of contents that hold.
  std::vector<int64_t> known() {
    sweep();
    std::vector<int64_t> numbers;
    for (const auto& entry : states_) entry.second->values.append_to(numbers);
    return numbers;
  }

  void sweep() {
    for (auto entry = states_.begin(); entry != states_.end();)
      entry = entry->second->weak.expired() ? states_.erase(entry) : std::next(entry);
  }

  void clear() { states_.clear(); }

 private:
  Storage& add(const at::TensorBase& tensor, c10::StorageImpl* address) {
    if (--until_sweep_ <= 0) {
      until_sweep_ = SWEEP_EVERY;
      sweep();
    }
    // Memory from outside (numpy, shared memory) cannot be resized, and can be written by its other owner.
    auto state = std::make_unique<Storage>(
        Storage{numbered_++, c10::weak_intrusive_ptr<c10::StorageImpl>(tensor.storage().getWeakStorageImpl()), address->resizable()});
    return *(states_[address] = std::move(state));
  }

  std::unordered_map<c10::StorageImpl*, std::unique_ptr<Storage>> states_;
  int64_t numbered_ = 0;
  int until_sweep_ = SWEEP_EVERY;
};

}  // namespace ulpscope
