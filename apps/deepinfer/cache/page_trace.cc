#include "page_trace.h"

#include <algorithm>
#include <boost/unordered/unordered_flat_map.hpp>

namespace deepinfer::cache {
namespace {

/// Numbers of pages: 2^4 traces, then what names the block, then the page in it.
constexpr int kTraceShift = 60;
constexpr int kPrefixShift = 20;

Result<std::vector<uint64_t>> pages_of(const bench::TraceRow& row, int64_t page_positions, int64_t row_number, uint64_t trace) {
  std::vector<uint64_t> pages(static_cast<size_t>(row.input_len / page_positions));
  const int64_t per_block = bench::kTraceBlockTokens / page_positions;
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto page = static_cast<int64_t>(i);
    uint64_t name = 0;
    if (!row.block_ids.empty()) {
      const auto block = static_cast<size_t>(page / per_block);
      if (block >= row.block_ids.size()) {
        return Err(Status::InvalidArgument("request {}: input_length {}: has {} hash_ids, must have one for each {} tokens",
                                           row_number, row.input_len, row.block_ids.size(), bench::kTraceBlockTokens));
      }
      name = static_cast<uint64_t>(row.block_ids[block] * per_block + page % per_block);
    } else if ((page + 1) * page_positions <= row.prefix_len) {
      name = uint64_t{1} << 59 | static_cast<uint64_t>(*row.prefix_id) << kPrefixShift | i;
    } else {
      name = uint64_t{1} << 58 | static_cast<uint64_t>(row_number) << kPrefixShift | i;  // nobody else's
    }
    pages[i] = trace << kTraceShift | name;
  }
  return pages;
}

}  // namespace

Status add_rows(PageTrace& trace, const std::vector<bench::TraceRow>& rows, CacheClass cache_class, uint64_t trace_number) {
  if (bench::kTraceBlockTokens % trace.page_positions != 0) {
    return Status::InvalidArgument("page positions: {}, must divide the {} tokens of a trace's block", trace.page_positions,
                                   bench::kTraceBlockTokens);
  }
  int64_t number = 0;
  for (const bench::TraceRow& row : rows) {
    ++number;
    if (row.block_ids.empty() && !row.prefix_id) {
      return Status::InvalidArgument(
          "request {}: has neither hash_ids nor a prefix_id: nothing says which prompts share a prefix", number);
    }
    PageRequest request{.time = row.arrival, .cache_class = cache_class, .prompt_tokens = row.input_len, .pages = {}};
    if (!row.cache_class.empty()) {
      DI_ASSIGN_OR_RETURN(request.cache_class, parse_cache_class(row.cache_class));
    }
    DI_ASSIGN_OR_RETURN(request.pages, pages_of(row, trace.page_positions, number, trace_number));
    trace.requests.push_back(std::move(request));
  }
  return Status::Ok();
}

void sort_requests(PageTrace& trace) {
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const PageRequest& a, const PageRequest& b) { return a.time < b.time; });
}

IntervalsByClass record_intervals(const PageTrace& trace) {
  IntervalsByClass out;
  struct Use {
    double time = 0;
    CacheClass cache_class = CacheClass::kChat;
  };
  boost::unordered_flat_map<uint64_t, Use> last;
  const auto of = [&](CacheClass c) -> RevisitIntervals& { return out[static_cast<size_t>(c)]; };
  for (const PageRequest& request : trace.requests) {
    RevisitIntervals& mine = of(request.cache_class);
    ++mine.requests;
    mine.prompt_tokens += request.prompt_tokens;
    for (const uint64_t page : request.pages) {
      ++mine.uses;
      const Use now{.time = request.time, .cache_class = request.cache_class};
      const auto [at, fresh] = last.try_emplace(page, now);
      if (fresh) continue;
      const double seconds = request.time - at->second.time;
      ++of(at->second.cache_class).ended[RevisitIntervals::bin_of(seconds)];
      of(at->second.cache_class).ended_seconds += seconds;
      at->second = now;
    }
  }
  const double end = trace.requests.empty() ? 0 : trace.requests.back().time;
  for (const auto& [page, use] : last) ++of(use.cache_class).open[RevisitIntervals::bin_of(end - use.time)];
  for (RevisitIntervals& intervals : out) intervals.span_seconds = trace.span();
  return out;
}

}  // namespace deepinfer::cache
