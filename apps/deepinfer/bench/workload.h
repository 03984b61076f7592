#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::bench {

/// When requests come.
enum class Arrival : uint8_t {
  kClosed,   ///< as soon as one ends, the next starts: `concurrency` of them run
  kPoisson,  ///< at random times, `request_rate` a second, whatever the engine does; gamma with `burstiness` != 1
  kTrace,    ///< at the times of the trace
};
std::string_view arrival_name(Arrival arrival);

/// One line of a trace.
struct TraceRow {
  double arrival = 0;  ///< seconds
  int64_t input_len = 0;
  int64_t output_len = 0;
  std::optional<int64_t> prefix_id;     ///< prompts of equal id start with the same tokens
  int64_t prefix_len = 0;               ///< how many of them this one has
  std::string cache_class;              ///< empty: the option's
  std::vector<int64_t> block_ids = {};  ///< equal ids are equal blocks of kTraceBlockTokens prompt tokens; empty: not known
};
/// Of a block that the hash_ids of a Mooncake trace name.
inline constexpr int64_t kTraceBlockTokens = 512;

/// What a workload is made from. The same options give the same requests.
struct WorkloadOptions {
  Arrival arrival = Arrival::kClosed;
  int64_t num_prompts = 0;  ///< of a trace: at most; 0: all
  int64_t input_len = 256;
  int64_t output_len = 64;
  double length_jitter = 0;        ///< lengths are uniform in len x [1 - jitter, 1 + jitter]
  double shared_prefix_ratio = 0;  ///< part of each prompt that those of one group share
  int64_t num_prefixes = 1;        ///< groups, taken in turn
  double request_rate = std::numeric_limits<double>::infinity();
  double burstiness = 1;       ///< shape of the gamma distribution of gaps; 1: exponential, less: burstier, more: more even
  double time_scale = 1;       ///< arrivals of a trace are multiplied by it
  int64_t turns = 1;           ///< requests of a session, which follow each other in the list and have its arrival
  int64_t turn_input_len = 0;  ///< prompt tokens of a session's later turns; 0: input_len
  double think_time = 0;       ///< seconds between an answer and the next turn on average, exponentially distributed
  std::shared_ptr<const std::vector<TraceRow>> trace;  ///< for Arrival::kTrace
  std::string cache_class = "chat";
  uint64_t seed = 0;
  int64_t warmup = 0;  ///< requests before those that count
  int64_t vocab_size = 0;
};

inline constexpr int64_t kMaxWorkloadTokens = int64_t{1} << 28;  ///< of all prompts, and of all answers

/// One request, ready to be submitted.
struct PlannedRequest {
  double arrival = 0;           ///< seconds from the start, of its session; 0 in a closed loop
  int64_t turn = 0;             ///< in its session
  double think_time = 0;        ///< seconds from the answer before it
  std::vector<int32_t> prompt;  ///< what it adds to what was said before
  int64_t output_len = 0;
  int64_t prefix_id = -1;  ///< -1: shares nothing
  int64_t prefix_len = 0;
  int64_t trace_row = -1;  ///< that it is made from
  std::string cache_class;
  uint64_t seed = 0;  ///< of the sampler
};

struct Workload {
  std::vector<PlannedRequest> warmup;    ///< same shapes, other tokens, no arrival times
  std::vector<PlannedRequest> requests;  ///< by arrival

  int64_t prompt_tokens() const;
  int64_t output_tokens() const;
  /// Prompt and answer of the longest.
  int64_t longest() const;
};

/// Random token ids that are plain words in any vocabulary: special tokens lie at its ends.
struct TokenRange {
  int64_t low = 0;
  int64_t count = 0;
};
TokenRange safe_tokens(int64_t vocab_size);

/// A pure function of the options. Errors: too many tokens, a vocabulary too small.
Result<Workload> make_workload(const WorkloadOptions& options);

}  // namespace deepinfer::bench
