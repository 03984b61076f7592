#include "cache/replay_traces.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "workload.h"

namespace deepinfer::bench {
namespace {

/// A number that looks random, the same for the same two (splitmix64).
uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// Prompts with the same one belong together.
uint64_t conversation_of(const TraceRow& row, size_t number) {
  if (row.prefix_id) return static_cast<uint64_t>(*row.prefix_id);
  return row.block_ids.size() > 1 ? static_cast<uint64_t>(row.block_ids[1]) : ~uint64_t{number};
}

}  // namespace

Reuse measure_reuse(const cache::PageTrace& trace) {
  Reuse reuse;
  std::map<uint64_t, double> last;
  const auto block = static_cast<size_t>(kTraceBlockTokens / trace.page_positions);
  for (const cache::PageRequest& request : trace.requests) {
    size_t common = 0;
    while (common < request.pages.size() && last.contains(request.pages[common])) ++common;
    // The first block is the same system prompt everywhere.
    if (common > block) reuse.intervals.push_back(request.time - last[request.pages[common - 1]]);
    for (const uint64_t page : request.pages) last[page] = request.time;
  }
  reuse.continued = static_cast<double>(reuse.intervals.size()) / static_cast<double>(trace.requests.size());
  return reuse;
}

std::vector<TraceRow> assume_sessions(std::vector<TraceRow> rows, const Reuse& reuse, uint64_t seed) {
  std::stable_sort(rows.begin(), rows.end(), [](const TraceRow& a, const TraceRow& b) { return a.arrival < b.arrival; });
  std::mt19937_64 random(seed);
  std::vector<bool> taken(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    TraceRow& row = rows[i];
    row.prefix_id = static_cast<int64_t>(i);
    row.prefix_len = row.input_len;
    if (reuse.intervals.empty() || std::uniform_real_distribution<>(0, 1)(random) >= reuse.continued) continue;
    const double at = row.arrival - reuse.intervals[random() % reuse.intervals.size()];
    // Of the requests at about that time, the nearest that this one can be a longer turn of.
    size_t best = rows.size();
    for (size_t j = i; j-- > 0 && rows[j].arrival > at - 60;) {
      if (taken[j] || rows[j].input_len + rows[j].output_len > row.input_len) continue;
      if (best == rows.size() || std::abs(rows[j].arrival - at) < std::abs(rows[best].arrival - at)) best = j;
    }
    if (best == rows.size()) continue;
    taken[best] = true;
    row.prefix_id = rows[best].prefix_id;
  }
  return rows;
}

std::vector<TraceRow> choose_conversations(std::vector<TraceRow> rows, int64_t each) {
  std::vector<TraceRow> chosen;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (mix(conversation_of(rows[i], i), 0) % static_cast<uint64_t>(each) == 0) chosen.push_back(std::move(rows[i]));
  }
  return chosen;
}

std::vector<ReplayRequest> make_prompts(const std::vector<TraceRow>& rows, const PromptScale& scale, int64_t& cut) {
  const TokenRange range = safe_tokens(scale.vocab_size);
  std::vector<ReplayRequest> requests;
  cut = 0;
  int64_t number = 0;
  for (const TraceRow& row : rows) {
    ++number;
    const int64_t whole = std::max<int64_t>(1, row.input_len * scale.block_tokens / kTraceBlockTokens);
    cut += whole > scale.most_tokens ? 1 : 0;
    const auto tokens = static_cast<size_t>(std::min(whole, scale.most_tokens));
    const int64_t shared = row.prefix_id ? row.prefix_len * scale.block_tokens / kTraceBlockTokens : 0;
    ReplayRequest& request = requests.emplace_back(ReplayRequest{.time = row.arrival, .prompt = {}});
    for (size_t at = 0; at < tokens; ++at) {
      uint64_t source = 0, place = at;
      const size_t block = at / static_cast<size_t>(scale.block_tokens);
      if (block < row.block_ids.size()) {
        source = static_cast<uint64_t>(row.block_ids[block]) * 4;
        place = at % static_cast<size_t>(scale.block_tokens);
      } else if (static_cast<int64_t>(at) < shared) {
        source = static_cast<uint64_t>(*row.prefix_id) * 4 + 1;
      } else {
        source = static_cast<uint64_t>(number) * 4 + 2;  // nobody else's
      }
      request.prompt.push_back(
          static_cast<int32_t>(range.low + static_cast<int64_t>(mix(source, place) % static_cast<uint64_t>(range.count))));
    }
  }
  std::stable_sort(requests.begin(), requests.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
  return requests;
}

cache::PageTrace pages_of_prompts(const std::vector<ReplayRequest>& requests, int64_t page_positions) {
  cache::PageTrace trace{.requests = {}, .page_positions = page_positions};
  for (const ReplayRequest& request : requests) {
    cache::PageRequest pages{.time = request.time, .prompt_tokens = static_cast<int64_t>(request.prompt.size()), .pages = {}};
    uint64_t name = 0;
    for (size_t at = 0; at < request.prompt.size(); ++at) {
      name = mix(name, static_cast<uint64_t>(request.prompt[at]));
      if ((at + 1) % static_cast<size_t>(page_positions) == 0) pages.pages.push_back(name);
    }
    trace.requests.push_back(std::move(pages));
  }
  return trace;
}

}  // namespace deepinfer::bench
