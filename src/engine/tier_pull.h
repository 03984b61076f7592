#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "cache/kv_tiers.h"
#include "model/sequence_state.h"

namespace deepinfer {

/// The groups of a page, as the model lays them out.
inline KvPageShape page_shape(const PageLayout& layout) {
  KvPageShape shape;
  for (size_t i = 0; i < layout.sources.size(); ++i) {
    const int64_t end = i + 1 < layout.sources.size() ? layout.sources[i + 1].main_offset : layout.page_bytes;
    shape.group_bytes.push_back(end - layout.sources[i].main_offset);
  }
  return shape;
}

/// A part of a prompt that the tiers have, as it was found when the request came.
struct TierHit {
  KvTierMatch match;
  int64_t first_page = 0;  ///< of the prompt: the pages before it were the device's then
};

/// Pages of a prefix on their way from the tiers into a sequence's table. Shared by the sequence, its forks and the commands that
/// run rows behind them. It ends before the pages are given back.
struct TierPull {
  int64_t first_page = 0;       ///< of the sequence
  bool exact = true;            ///< all of its pages are
  std::vector<uint8_t*> pages;  ///< [pulled]
  const KvPageShape* shape = nullptr;
  double ttl_seconds = 0;
  double begin = 0;  ///< on the core's clock
  std::unique_ptr<KvPull> pull;

  /// Blocks until operators on `memory`, where the pages lie, may read `group` of all pages: for the backend's caller. False: the
  /// pull has failed and is over; what did not arrive reads as zeros, so that a step which is under way goes on, with rows that
  /// mean nothing.
  bool wait(int64_t group, DeviceMemory& memory) {
    if (pull->wait(group)) return true;
    pull->cancel();
    while (!pull->done()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    // A step runs rows behind a failed pull at most twice, so this is not worth remembering.
    for (auto i = static_cast<size_t>(pull->result().good_pages); i < pages.size(); ++i)
      memory.fill(pages[i], 0, shape->page_bytes());
    return false;
  }
};

}  // namespace deepinfer
