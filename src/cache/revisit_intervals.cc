#include "cache/revisit_intervals.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cache/kv_cache_options.h"

namespace deepinfer {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "deepinfer revisit intervals";
constexpr int64_t kMaxCount = int64_t{1} << 50;
constexpr double kMaxSpan = 1e10;
constexpr double kMaxRate = 1e18;
static_assert(std::tuple_size_v<IntervalsByClass> == kCacheClassCount);

Result<int64_t> whole(const Json& object, const char* field) {
  const auto at = object.find(field);
  if (at == object.end()) return Err(Status::InvalidArgument("{}: is missing", field));
  const int64_t value = at->is_number_integer() ? at->get<int64_t>() : -1;
  if (value < 0 || value > kMaxCount) return Err(Status::OutOfRange("{}: must be a whole number from 0 to {}", field, kMaxCount));
  return value;
}

/// A number that may be missing: then 0.
Result<double> number(const Json& object, const std::string& field, double limit) {
  const auto at = object.find(field);
  if (at == object.end()) return 0;
  const double value = at->is_number() ? at->get<double>() : -1;
  if (!(value >= 0 && value <= limit)) return Err(Status::OutOfRange("{}: must be a number from 0 to {}", field, limit));
  return value;
}

/// Pairs of a bin and its count: most bins are empty.
Json sparse(const std::vector<int64_t>& counts) {
  Json out = Json::array();
  for (size_t bin = 0; bin < counts.size(); ++bin) {
    if (counts[bin] > 0) out.push_back({bin, counts[bin]});
  }
  return out;
}

Status read_sparse(const Json& object, const char* field, std::vector<int64_t>& counts) {
  const auto at = object.find(field);
  if (at == object.end() || !at->is_array()) return Status::InvalidArgument("{}: must be a list of [bin, count]", field);
  for (const Json& pair : *at) {
    const bool good = pair.is_array() && pair.size() == 2 && pair[0].is_number_unsigned() && pair[1].is_number_unsigned() &&
                      pair[0].get<uint64_t>() < counts.size() && pair[1].get<uint64_t>() <= static_cast<uint64_t>(kMaxCount);
    if (!good) {
      return Status::OutOfRange("{}: has {}, must be [bin below {}, count up to {}]", field, pair.dump().substr(0, 60),
                                counts.size(), kMaxCount);
    }
    counts[pair[0].get<size_t>()] = pair[1].get<int64_t>();
  }
  return Status::Ok();
}

Result<RevisitIntervals> read_class(const Json& object) {
  RevisitIntervals out;
  if (!object.is_object()) return Err(Status::InvalidArgument("must be an object"));
  DI_ASSIGN_OR_RETURN(out.requests, whole(object, "requests"));
  DI_ASSIGN_OR_RETURN(out.prompt_tokens, whole(object, "prompt_tokens"));
  DI_ASSIGN_OR_RETURN(out.uses, whole(object, "uses"));
  if (!object.contains("span_seconds")) return Err(Status::InvalidArgument("span_seconds: is missing"));
  DI_ASSIGN_OR_RETURN(out.span_seconds, number(object, "span_seconds", kMaxSpan));
  DI_ASSIGN_OR_RETURN(out.ended_seconds, number(object, "ended_seconds", kMaxRate));
  DI_RETURN_IF_ERROR(read_sparse(object, "ended", out.ended));
  DI_RETURN_IF_ERROR(read_sparse(object, "open", out.open));
  const int64_t open = std::accumulate(out.open.begin(), out.open.end(), int64_t{0});
  if (open + out.revisits() != out.uses) {
    return Err(Status::InvalidArgument("uses: is {}, ended and open have {}", out.uses, open + out.revisits()));
  }
  return out;
}

Result<RecordedCosts> read_costs(const Json& object) {
  RecordedCosts out;
  if (!object.is_object()) return Err(Status::InvalidArgument("must be an object"));
  DI_ASSIGN_OR_RETURN(out.page_bytes, whole(object, "page_bytes"));
  DI_ASSIGN_OR_RETURN(out.page_positions, whole(object, "page_positions"));
  DI_ASSIGN_OR_RETURN(out.prefill_tokens_per_second, number(object, "prefill_tokens_per_second", kMaxRate));
  const auto pulls = object.find("pull_bytes_per_second");
  if (pulls == object.end()) return out;
  if (!pulls->is_object()) return Err(Status::InvalidArgument("pull_bytes_per_second: must be an object"));
  for (const auto& [tier, rate] : pulls->items()) {
    DI_ASSIGN_OR_RETURN(out.pull_bytes_per_second[tier], number(*pulls, tier, kMaxRate));
  }
  return out;
}

Json costs_json(const RecordedCosts& costs) {
  Json out = {{"page_bytes", costs.page_bytes}, {"page_positions", costs.page_positions}};
  if (costs.prefill_tokens_per_second > 0) out["prefill_tokens_per_second"] = costs.prefill_tokens_per_second;
  for (const auto& [tier, rate] : costs.pull_bytes_per_second) out["pull_bytes_per_second"][tier] = rate;
  return out;
}

}  // namespace

size_t RevisitIntervals::bin_of(double seconds) {
  if (!(seconds >= kFirstEdge)) return 0;
  const double bin = std::floor(std::log10(seconds / kFirstEdge) * kBinsPerDecade);
  return 1 + std::min(kBins - 2, static_cast<size_t>(bin));
}

double RevisitIntervals::edge(size_t bin) { return kFirstEdge * std::pow(10.0, static_cast<double>(bin) / kBinsPerDecade); }

int64_t RevisitIntervals::revisits() const { return std::accumulate(ended.begin(), ended.end(), int64_t{0}); }

std::vector<double> RevisitIntervals::followed_within() const {
  std::vector<double> followed(kBins);
  double waiting = 1;  // the part that nothing has followed yet
  int64_t at_risk = uses;
  for (size_t bin = 0; bin < kBins; ++bin) {
    // Those whose recording ends within the bin were seen for half of it, on average.
    const double seen = static_cast<double>(at_risk) - static_cast<double>(open[bin]) / 2;
    if (seen > 0) waiting *= 1 - static_cast<double>(ended[bin]) / seen;
    followed[bin] = 1 - std::max(waiting, 0.0);
    at_risk -= ended[bin] + open[bin];
  }
  return followed;
}

std::string recording_json(const RevisitRecording& recording) {
  nlohmann::ordered_json classes = nlohmann::ordered_json::object();
  for (size_t c = 0; c < kCacheClassCount; ++c) {
    const RevisitIntervals& i = recording.by_class[c];
    if (i.uses == 0) continue;
    classes[std::string(cache_class_name(static_cast<CacheClass>(c)))] = {
        {"requests", i.requests},         {"prompt_tokens", i.prompt_tokens}, {"uses", i.uses},
        {"span_seconds", i.span_seconds}, {"ended_seconds", i.ended_seconds}, {"ended", sparse(i.ended)},
        {"open", sparse(i.open)}};
  }
  nlohmann::ordered_json out{{"format", kFormat},
                             {"version", 1},
                             {"first_edge_seconds", RevisitIntervals::kFirstEdge},
                             {"bins_per_decade", RevisitIntervals::kBinsPerDecade},
                             {"classes", std::move(classes)}};
  if (recording.costs.page_bytes > 0) out["measured"] = costs_json(recording.costs);
  return out.dump() + "\n";
}

Result<RevisitRecording> parse_recording(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("format", Json()) != kFormat)
    return Err(Status::InvalidArgument("format: must be \"{}\"", kFormat));
  if (json.value("version", Json()) != 1 || json.value("first_edge_seconds", Json()) != RevisitIntervals::kFirstEdge ||
      json.value("bins_per_decade", Json()) != RevisitIntervals::kBinsPerDecade) {
    return Err(Status::InvalidArgument("version, first_edge_seconds, bins_per_decade: must be 1, {}, {}",
                                       RevisitIntervals::kFirstEdge, RevisitIntervals::kBinsPerDecade));
  }
  const auto classes = json.find("classes");
  if (classes == json.end() || !classes->is_object()) return Err(Status::InvalidArgument("classes: must be an object"));
  RevisitRecording out;
  for (const auto& [name, object] : classes->items()) {
    const auto cache_class = parse_cache_class(name);
    if (!cache_class) return Err(cache_class.error().with_context("classes"));
    auto read = read_class(object);
    if (!read) return Err(read.error().with_context("classes: " + name));
    out.by_class[static_cast<size_t>(*cache_class)] = *std::move(read);
  }
  if (const auto measured = json.find("measured"); measured != json.end()) {
    auto costs = read_costs(*measured);
    if (!costs) return Err(costs.error().with_context("measured"));
    out.costs = *std::move(costs);
  }
  return out;
}

}  // namespace deepinfer
