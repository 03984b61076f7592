#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cache/tiers/tier_workers.h"
#include "cache/tiers/tiers_core.h"

namespace deepinfer {

/// Matches: asks tier after tier which of a prompt's pages it has, each on that tier's own thread, within a limit for all of
/// them.
class TierLookup {
 public:
  explicit TierLookup(std::shared_ptr<TiersCore> core);
  /// Ends every open match as kCancelled.
  ~TierLookup();

  /// As KvTiers::match.
  void start(std::vector<PrefixKey> keys, bool exact_only, std::function<void(KvTierMatch)> done);

 private:
  struct Request;
  struct Shared;  ///< what threads use

  static void finish(Request& request, KvStoreMiss reason);
  static void expire(Shared& shared, Request& request);
  static void ask(const std::shared_ptr<Shared>& shared, const std::shared_ptr<Request>& request, size_t tier);
  static void append_runs(TiersCore& core, Request& request, std::span<const PrefixKey> found, size_t index);
  static void look_up(const std::shared_ptr<Shared>& shared, const std::shared_ptr<Request>& request, size_t index);

  std::shared_ptr<Shared> shared_;
  TierWorkers timer_;
};

}  // namespace deepinfer
