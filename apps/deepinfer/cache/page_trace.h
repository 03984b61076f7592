#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cache/kv_cache_options.h"
#include "deepinfer/revisit_intervals.h"
#include "trace.h"

namespace deepinfer::cache {

/// A request's prompt as the pages that a cache would be asked for: equal numbers are equal pages, prefix included.
struct PageRequest {
  double time = 0;  ///< seconds from the start
  CacheClass cache_class = CacheClass::kChat;
  int64_t prompt_tokens = 0;
  std::vector<uint64_t> pages;  ///< full pages, from the first token on
};

struct PageTrace {
  std::vector<PageRequest> requests;  ///< by time
  int64_t page_positions = 0;

  double span() const { return requests.empty() ? 0 : requests.back().time - requests.front().time; }
};

/// Rows that say what they share: by hash_ids of blocks (Mooncake), or by prefix_id. `trace_number` keeps the pages of several
/// traces apart; `cache_class` is for rows that name none. Errors: a row that says nothing about sharing, blocks that are no
/// whole number of pages.
Status add_rows(PageTrace& trace, const std::vector<bench::TraceRow>& rows, CacheClass cache_class, uint64_t trace_number);
/// By time, after the last add_rows.
void sort_requests(PageTrace& trace);

/// Of each class, those of every page between its uses.
IntervalsByClass record_intervals(const PageTrace& trace);

}  // namespace deepinfer::cache
