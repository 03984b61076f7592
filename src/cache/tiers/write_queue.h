#pragma once

#include <memory>
#include <vector>

#include "cache/tiers/tiers_core.h"

namespace deepinfer {

/// A page that waits to be written; the tiers share the copy.
struct QueuedPage {
  KvStoreWrite write;
  std::vector<uint8_t> bytes;
};
std::shared_ptr<const QueuedPage> copy_page(const KvStoreWrite& page);

/// What waits to be written to one tier: pages, in batches and, but to memory, at a limited rate; and news of uses. Bounded.
/// Threads that hang in the store own it too.
class WriteQueue {
 public:
  WriteQueue(std::shared_ptr<TiersCore> core, size_t tier);

  /// False: it is full, or the tier out of order.
  bool push(std::shared_ptr<const QueuedPage> page);
  /// The same for pages that are worth less than those that are pushed: they take half of the room.
  bool offer(std::shared_ptr<const QueuedPage> page);
  void touch(std::vector<PrefixKey> keys, CacheClass cache_class);
  /// Writes until `core.stop`.
  void run();
  void wake();
  void flush();
  int64_t queued_pages() const;

 private:
  struct State;
  struct Batch;
  bool push(std::shared_ptr<const QueuedPage> page, int64_t most_bytes);
  bool take(Batch& batch);
  void write(const Batch& batch);

  std::shared_ptr<State> state_;
};

}  // namespace deepinfer
