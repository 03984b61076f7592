#pragma once

#include <boost/unordered/unordered_flat_set.hpp>
#include <mutex>

#include "cache/prefix_key.h"

namespace deepinfer {

/// Pages that lie in a store but turned out to be damaged when they were read. A match counts them as missing and the next write
/// replaces them, while whoever reads deletes nothing: with bad memory it would find everything damaged. Thread-safe.
class SuspectPages {
 public:
  void add(const PrefixKey& key) {
    const std::lock_guard lock(mutex_);
    if (keys_.size() >= kMost) keys_.clear();  // they are found damaged once more, that is all
    keys_.insert(key);
  }
  bool contains(const PrefixKey& key) const {
    const std::lock_guard lock(mutex_);
    return keys_.contains(key);
  }
  void remove(const PrefixKey& key) {
    const std::lock_guard lock(mutex_);
    keys_.erase(key);
  }

 private:
  static constexpr size_t kMost = 4096;
  mutable std::mutex mutex_;
  boost::unordered_flat_set<PrefixKey, PrefixKeyHash> keys_;
};

}  // namespace deepinfer
