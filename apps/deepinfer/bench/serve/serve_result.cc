#include "serve/serve_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "flag_values.h"

namespace deepinfer::bench {
namespace {

constexpr double kKeepsUp = 0.9;

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

/// Events a second from the first to the last of these times; 0: they are one moment.
double rate_of(const std::vector<double>& times) {
  if (times.size() < 2) return 0;
  const auto [first, last] = std::minmax_element(times.begin(), times.end());
  return ratio(static_cast<double>(times.size() - 1), *last - *first);
}

/// Answers over requests while sessions come; the first half of that time fills the server, in the second as many must leave as
/// come, apart from chance: the root of what was there at its begin. 1 where nothing was offered over time.
double served_share(const std::vector<LoadRecord>& records, const std::vector<double>& sessions) {
  if (sessions.size() < 2) return 1;
  const auto [first, last] = std::minmax_element(sessions.begin(), sessions.end());
  const double begin = (*first + *last) / 2;
  const double end = *last;
  int64_t came = 0, left = 0, there = 0;
  for (const LoadRecord& r : records) {
    came += r.planned >= begin && r.planned < end ? 1 : 0;
    left += r.finished >= begin && r.finished < end ? 1 : 0;
    there += r.planned < begin && r.finished >= begin ? 1 : 0;
  }
  const double chance = std::sqrt(std::max(static_cast<double>(there), 1.0));
  return came > 0 ? std::min(1.0, (static_cast<double>(left) + chance) / static_cast<double>(came)) : 1;
}

std::vector<TurnResult> summarize_turns(const std::vector<LoadRecord>& records, int64_t turns) {
  std::vector<TurnResult> out(static_cast<size_t>(turns));
  std::vector<std::vector<double>> ttft(out.size());
  for (const LoadRecord& r : records) {
    if (!r.ok()) continue;
    const auto at = static_cast<size_t>(r.turn);
    ++out[at].completed;
    out[at].input_tokens += r.input_tokens;
    out[at].cached_tokens += r.cached_tokens;
    ttft[at].push_back(r.ttft() * 1e3);
  }
  for (size_t i = 0; i < out.size(); ++i) out[i].median_ttft = distribution(std::move(ttft[i])).median;
  return out;
}

/// What was sent, and what the client cost.
void summarize_client(const LoadRun& run, ServeResult& out) {
  std::vector<double> planned, sent, delay;
  for (const LoadRecord& r : run.records) {
    delay.push_back((r.sent - r.planned) * 1e3);
    if (r.turn > 0) continue;
    planned.push_back(r.planned);
    sent.push_back(r.sent);
  }
  const auto turns = static_cast<double>(out.conditions.workload.turns);
  out.offered_rate = rate_of(planned) * turns;
  out.sent_rate = rate_of(sent) * turns;
  out.served_share = served_share(run.records, planned);
  out.delay = distribution(std::move(delay));
  std::vector<double> lag = run.lag;
  for (double& value : lag) value *= 1e3;
  out.lag = distribution(std::move(lag));
  out.client_cpu_share = ratio(run.cpu_seconds, run.seconds);
  out.peak_in_flight = run.peak_in_flight;
}

}  // namespace

Result<Goodput> Goodput::Parse(const char* flag, const std::vector<std::string>& limits) {
  Goodput out;
  for (const std::string& limit : limits) {
    const size_t colon = limit.find(':');
    const std::string name = limit.substr(0, colon);
    std::optional<double>* target = name == "ttft"   ? &out.ttft
                                    : name == "tpot" ? &out.tpot
                                    : name == "e2el" ? &out.e2el
                                                     : nullptr;
    if (target == nullptr || colon == std::string::npos)
      return Err(Status::InvalidArgument("{} is \"{}\", must be ttft:MS, tpot:MS or e2el:MS", flag, limit));
    const auto value = cli::parse_real(limit.substr(colon + 1), 1e-6, 1e9);
    if (!value) return Err(Status::InvalidArgument("{}: {}: {}", flag, limit, value.error().message()));
    *target = *value;
  }
  return out;
}

bool Goodput::met(const LoadRecord& r) const {
  const auto within = [](const std::optional<double>& limit, double seconds) {
    // An answer of one token has no time per token.
    return !limit.has_value() || std::isnan(seconds) || seconds * 1e3 <= *limit;
  };
  return r.ok() && within(ttft, r.ttft()) && within(tpot, r.tpot()) && within(e2el, r.latency());
}

ServeResult summarize(ServeConditions conditions, const LoadRun& run) {
  ServeResult out;
  out.conditions = std::move(conditions);
  out.interrupted = run.stopped;
  out.not_sent = run.not_sent;
  out.duration = run.seconds;
  std::vector<double> ttft, tpot, itl, e2el;
  int64_t good = 0;
  for (const LoadRecord& r : run.records) {
    if (!r.ok()) {
      ++out.failed;
      ++out.errors[r.error];
      continue;
    }
    ++out.completed;
    good += out.conditions.goodput.met(r) ? 1 : 0;
    out.total_input_tokens += r.input_tokens;
    out.total_output_tokens += r.output_tokens;
    out.cached_tokens += r.cached_tokens;
    out.counted_by_client += r.counted_by_server ? 0 : 1;
    ttft.push_back(r.ttft() * 1e3);
    tpot.push_back(r.tpot() * 1e3);
    e2el.push_back(r.latency() * 1e3);
    for (const float gap : r.gaps) itl.push_back(static_cast<double>(gap) * 1e3);
  }
  out.request_throughput = ratio(static_cast<double>(out.completed), run.seconds);
  out.output_throughput = ratio(static_cast<double>(out.total_output_tokens), run.seconds);
  out.total_token_throughput = ratio(static_cast<double>(out.total_input_tokens + out.total_output_tokens), run.seconds);
  out.request_goodput = ratio(static_cast<double>(good), run.seconds);
  out.good_share = ratio(static_cast<double>(good), static_cast<double>(run.records.size()));
  out.ttft = distribution(std::move(ttft));
  out.tpot = distribution(std::move(tpot));
  out.itl = distribution(std::move(itl));
  out.e2el = distribution(std::move(e2el));
  if (out.conditions.workload.turns > 1) out.turns = summarize_turns(run.records, out.conditions.workload.turns);
  summarize_client(run, out);
  return out;
}

bool ServeResult::kept_up() const { return served_share >= kKeepsUp && good_share >= kKeepsUp; }

}  // namespace deepinfer::bench
