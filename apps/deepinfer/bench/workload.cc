#include "workload.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/philox.h"

namespace deepinfer::bench {
namespace {

/// What a word of randomness is for, so that no two uses share any.
enum class Stream : uint32_t {
  kPrefix = 1,
  kBody,
  kWarmupPrefix,
  kWarmupBody,
  kInputLength,
  kOutputLength,
  kArrival,
  kSampler,
  kBlock,
  kThink
};

/// Words that depend on (seed, stream, which, position) alone.
class Random {
 public:
  explicit Random(uint64_t seed) : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)} {}

  uint64_t word(Stream stream, int64_t which, int64_t position) const {
    const auto w = static_cast<uint32_t>(which);
    const auto high = static_cast<uint32_t>(which >> 32) << 8 | static_cast<uint32_t>(stream);
    const auto words = philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), w, high}, key_);
    return static_cast<uint64_t>(words[0]) << 32 | words[1];
  }
  /// In (0, 1).
  double uniform(Stream stream, int64_t which, int64_t position = 0) const {
    return (static_cast<double>(word(stream, which, position) >> 11) + 0.5) * 0x1p-53;
  }
  /// Of the gamma distribution with mean 1 (Marsaglia and Tsang's method, on normal deviates after Box and Muller).
  double gamma(Stream stream, int64_t which, double shape) const {
    if (shape == 1) return -std::log(uniform(stream, which));
    int64_t position = 0;
    const auto next = [&] { return uniform(stream, which, position++); };
    // Shapes below 1 come from shape + 1.
    const double boost = shape < 1 ? std::pow(next(), 1 / shape) : 1;
    const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3;
    const double c = 1 / std::sqrt(9 * d);
    while (true) {
      const double radius = std::sqrt(-2 * std::log(next()));
      const double normal = radius * std::cos(2 * std::numbers::pi * next());
      const double root = 1 + c * normal;
      if (root <= 0) continue;
      const double v = root * root * root;
      if (std::log(next()) < normal * normal / 2 + d - d * v + d * std::log(v)) return boost * d * v / shape;
    }
  }
  int32_t token(Stream stream, int64_t which, int64_t position, TokenRange range) const {
    const uint64_t scaled = (word(stream, which, position) >> 32) * static_cast<uint64_t>(range.count) >> 32;
    return static_cast<int32_t>(range.low + static_cast<int64_t>(scaled));
  }
  /// Around `length`, at least 1.
  int64_t length(Stream stream, int64_t which, int64_t length, double jitter) const {
    const auto low = static_cast<int64_t>(std::ceil(static_cast<double>(length) * (1 - jitter)));
    const auto high = static_cast<int64_t>(std::floor(static_cast<double>(length) * (1 + jitter)));
    const auto step = static_cast<int64_t>(uniform(stream, which) * static_cast<double>(high - low + 1));
    return std::max<int64_t>(1, std::min(low + step, high));
  }

 private:
  std::array<uint32_t, 2> key_;
};

/// When each session comes; all at 0 in a closed loop. The first comes at once, as in other serving benchmarks: waiting
/// for it measures nothing. The gaps are scaled so that their mean is that of the rate: a short run has the rate it was told.
std::vector<double> arrival_times(const WorkloadOptions& o, int64_t requests, const Random& random) {
  std::vector<double> times(static_cast<size_t>((requests + o.turns - 1) / o.turns), 0.0);
  if (o.arrival != Arrival::kPoisson || !std::isfinite(o.request_rate) || times.size() < 2) return times;
  for (size_t i = 1; i < times.size(); ++i)
    times[i] = times[i - 1] + random.gamma(Stream::kArrival, static_cast<int64_t>(i), o.burstiness);
  const double last = static_cast<double>(times.size() - 1) * static_cast<double>(o.turns) / o.request_rate;
  const double scale = times.back() > 0 ? last / times.back() : 0;
  for (double& time : times) time *= scale;
  return times;
}

/// Lengths and times first: they are checked before any prompt takes memory.
Result<std::vector<PlannedRequest>> plan(const WorkloadOptions& o, const Random& random) {
  std::vector<PlannedRequest> out;
  std::vector<int64_t> input_lengths;
  const bool traced = o.arrival == Arrival::kTrace && o.trace != nullptr;
  auto count = o.num_prompts;
  if (traced) {
    const auto rows = static_cast<int64_t>(o.trace->size());
    count = count > 0 ? std::min(count, rows) : rows;
  }
  int64_t input_tokens = 0, output_tokens = 0;
  const std::vector<double> arrivals = traced ? std::vector<double>() : arrival_times(o, count, random);
  out.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    PlannedRequest request;
    request.cache_class = o.cache_class;
    int64_t input_len = 0;
    if (traced) {
      const TraceRow& row = (*o.trace)[static_cast<size_t>(i)];
      request.arrival = row.arrival * o.time_scale;
      input_len = row.input_len;
      request.output_len = row.output_len;
      request.prefix_id = row.prefix_id.value_or(-1);
      request.prefix_len = row.prefix_id.has_value() ? row.prefix_len : 0;
      if (!row.cache_class.empty()) request.cache_class = row.cache_class;
      request.trace_row = i;
    } else {
      request.turn = i % o.turns;
      const bool later = request.turn > 0;
      input_len =
          random.length(Stream::kInputLength, i, later && o.turn_input_len > 0 ? o.turn_input_len : o.input_len, o.length_jitter);
      request.output_len = random.length(Stream::kOutputLength, i, o.output_len, o.length_jitter);
      request.arrival = arrivals[static_cast<size_t>(i / o.turns)];
      if (later) request.think_time = -o.think_time * std::log(random.uniform(Stream::kThink, i));
      if (!later) request.prefix_len = std::llround(o.shared_prefix_ratio * static_cast<double>(input_len));
      if (request.prefix_len > 0) request.prefix_id = i / o.turns % o.num_prefixes;
    }
    request.seed = random.word(Stream::kSampler, i, 0);
    input_tokens += input_len;
    output_tokens += request.output_len;
    if (std::max(input_tokens, output_tokens) > kMaxWorkloadTokens) {
      return Err(Status::OutOfRange("the workload has more than {} tokens with request {} of {}: fewer or shorter requests",
                                    kMaxWorkloadTokens, i + 1, count));
    }
    request.prompt.resize(static_cast<size_t>(input_len));
    out.push_back(std::move(request));
  }
  return out;
}

/// A prompt of blocks: equal ids are equal tokens.
void fill_blocks(PlannedRequest& request, const std::vector<int64_t>& blocks, const Random& random, TokenRange range) {
  for (size_t at = 0; at < request.prompt.size(); ++at) {
    const size_t block = std::min(at / kTraceBlockTokens, blocks.size() - 1);
    const auto position = static_cast<int64_t>(at - block * kTraceBlockTokens);
    request.prompt[at] = random.token(Stream::kBlock, blocks[block], position, range);
  }
}

void fill(PlannedRequest& request, int64_t index, const Random& random, TokenRange range, Stream prefix, Stream body) {
  const auto length = static_cast<int64_t>(request.prompt.size());
  for (int64_t at = 0; at < length; ++at) {
    const bool shared = at < request.prefix_len;
    request.prompt[static_cast<size_t>(at)] =
        shared ? random.token(prefix, request.prefix_id, at, range) : random.token(body, index, at, range);
  }
}

}  // namespace

std::string_view arrival_name(Arrival arrival) {
  switch (arrival) {
    case Arrival::kClosed:
      return "closed";
    case Arrival::kPoisson:
      return "poisson";
    case Arrival::kTrace:
      return "trace";
  }
  return "unknown";
}

TokenRange safe_tokens(int64_t vocab_size) {
  // An eighth at each end, at most 1024: 129280 ids have their added tokens in the first few and from 128000 on.
  const int64_t low = std::min<int64_t>(vocab_size / 8, 1024);
  const int64_t high = vocab_size - std::min<int64_t>(vocab_size / 8, 2048);
  return {low, high - low};
}

int64_t Workload::prompt_tokens() const {
  int64_t sum = 0;
  for (const PlannedRequest& r : requests) sum += static_cast<int64_t>(r.prompt.size());
  return sum;
}

int64_t Workload::output_tokens() const {
  int64_t sum = 0;
  for (const PlannedRequest& r : requests) sum += r.output_len;
  return sum;
}

int64_t Workload::longest() const {
  int64_t most = 0;
  for (const auto* list : {&warmup, &requests}) {
    for (const PlannedRequest& r : *list) most = std::max(most, static_cast<int64_t>(r.prompt.size()) + r.output_len);
  }
  return most;
}

Result<Workload> make_workload(const WorkloadOptions& options) {
  const TokenRange range = safe_tokens(options.vocab_size);
  if (range.count < 2) return Err(Status::OutOfRange("vocab_size is {}, a random prompt needs more", options.vocab_size));
  const Random random(options.seed);
  Workload out;
  DI_ASSIGN_OR_RETURN(out.requests, plan(options, random));
  std::stable_sort(out.requests.begin(), out.requests.end(),
                   [](const PlannedRequest& a, const PlannedRequest& b) { return a.arrival < b.arrival; });
  // Warm-up requests have the shapes of the first ones that count.
  for (int64_t i = 0; i < options.warmup && !out.requests.empty(); ++i) {
    PlannedRequest request = out.requests[static_cast<size_t>(i) % out.requests.size()];
    request.arrival = 0;
    request.seed = ~request.seed;
    fill(request, i, random, range, Stream::kWarmupPrefix, Stream::kWarmupBody);
    out.warmup.push_back(std::move(request));
  }
  for (size_t i = 0; i < out.requests.size(); ++i) {
    const int64_t row = out.requests[i].trace_row;
    if (row >= 0 && !(*options.trace)[static_cast<size_t>(row)].block_ids.empty()) {
      fill_blocks(out.requests[i], (*options.trace)[static_cast<size_t>(row)].block_ids, random, range);
      continue;
    }
    fill(out.requests[i], static_cast<int64_t>(i), random, range, Stream::kPrefix, Stream::kBody);
  }
  return out;
}

}  // namespace deepinfer::bench
