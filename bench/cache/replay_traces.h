#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "page_trace.h"
#include "trace.h"

namespace deepinfer::bench {

/// How a trace's requests take prompts up again: how many do, and after how long.
struct Reuse {
  double continued = 0;           ///< part of the requests that find more than one block of an earlier one
  std::vector<double> intervals;  ///< seconds since the use of their last common page
};
Reuse measure_reuse(const cache::PageTrace& trace);

/// Rows that say nothing about sharing, as sessions: a request goes on from an earlier, shorter one as often, and after as long,
/// as those of another trace do.
std::vector<TraceRow> assume_sessions(std::vector<TraceRow> rows, const Reuse& reuse, uint64_t seed);

/// The rows of one in `each` conversations, whole ones: those whose prompts have the second block (the first is everybody's
/// system prompt), or the prefix_id, in common. `each` 1: all.
std::vector<TraceRow> choose_conversations(std::vector<TraceRow> rows, int64_t each);

/// What a trace's prompts become for a model with a short context and a small vocabulary.
struct PromptScale {
  int64_t block_tokens = 32;  ///< that a trace's block of kTraceBlockTokens becomes; lengths shrink alike
  int64_t most_tokens = 0;    ///< longer prompts are cut to it
  int64_t vocab_size = 0;
};

/// A request of a trace, ready for an engine.
struct ReplayRequest {
  double time = 0;  ///< seconds from the start of the trace
  std::vector<int32_t> prompt;
};

/// By time. A block's number, or prefix_id and position, gives its tokens: prompts share exactly what the trace says they share.
/// `cut` counts the prompts that were too long.
std::vector<ReplayRequest> make_prompts(const std::vector<TraceRow>& rows, const PromptScale& scale, int64_t& cut);

/// The same requests as pages, for the simulator: equal numbers are equal pages with equal pages before them.
cache::PageTrace pages_of_prompts(const std::vector<ReplayRequest>& requests, int64_t page_positions);

}  // namespace deepinfer::bench
