#include "trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "terminal.h"

namespace deepinfer::bench {
namespace {

using Json = nlohmann::json;

constexpr double kMaxArrival = 1e7;  // four months
constexpr int64_t kMaxLength = int64_t{1} << 24;
constexpr int64_t kMaxPrefixId = int64_t{1} << 40;
constexpr size_t kMaxLineBytes = 4096;
constexpr size_t kShownBytes = 40;
constexpr const char* kFields[] = {"arrival", "input_len", "output_len", "prefix_id", "prefix_len", "class"};

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= kShownBytes ? text : text.substr(0, kShownBytes) + "...";
}

Result<int64_t> whole(const Json& row, const char* field, int64_t low, int64_t high) {
  const auto at = row.find(field);
  if (at == row.end()) return Err(Status::InvalidArgument("{}: is missing", field));
  // Unsigned values beyond 2^63 turn negative here and are refused as such.
  const int64_t value = at->is_number_integer() ? at->get<int64_t>() : -1;
  if (!at->is_number_integer() || value < low || value > high)
    return Err(Status::OutOfRange("{}: is {}, must be a whole number from {} to {}", field, shown(*at), low, high));
  return value;
}

Result<TraceRow> read_row(std::string_view line) {
  if (line.size() > kMaxLineBytes)
    return Err(Status::OutOfRange("has {} bytes, must have at most {}", line.size(), kMaxLineBytes));
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Err(Status::InvalidArgument("not a JSON object"));
  for (const auto& [name, value] : json.items()) {
    if (std::find(std::begin(kFields), std::end(kFields), name) == std::end(kFields))
      return Err(Status::InvalidArgument("{}: unknown field", shown(Json(name))));
  }
  TraceRow row;
  const auto arrival = json.find("arrival");
  if (arrival == json.end()) return Err(Status::InvalidArgument("arrival: is missing"));
  row.arrival = arrival->is_number() ? arrival->get<double>() : -1;
  if (!(row.arrival >= 0 && row.arrival <= kMaxArrival))
    return Err(Status::OutOfRange("arrival: is {}, must be a number from 0 to {}", shown(*arrival), kMaxArrival));
  DI_ASSIGN_OR_RETURN(row.input_len, whole(json, "input_len", 1, kMaxLength));
  DI_ASSIGN_OR_RETURN(row.output_len, whole(json, "output_len", 1, kMaxLength));
  if (json.contains("prefix_id")) {
    DI_ASSIGN_OR_RETURN(row.prefix_id, whole(json, "prefix_id", 0, kMaxPrefixId));
    row.prefix_len = row.input_len;
  }
  if (json.contains("prefix_len")) {
    if (!row.prefix_id.has_value()) return Err(Status::InvalidArgument("prefix_len: needs a prefix_id"));
    DI_ASSIGN_OR_RETURN(row.prefix_len, whole(json, "prefix_len", 0, row.input_len));
  }
  if (const auto at = json.find("class"); at != json.end()) {
    if (at->is_string()) row.cache_class = at->get<std::string>();
    if (row.cache_class != "chat" && row.cache_class != "agent" && row.cache_class != "pinned")
      return Err(Status::InvalidArgument("class: is {}, must be \"chat\", \"agent\" or \"pinned\"", shown(*at)));
  }
  return row;
}

}  // namespace

Result<std::vector<TraceRow>> parse_trace(std::string_view text) {
  std::vector<TraceRow> rows;
  int64_t number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    if (rows.size() == kMaxTraceRows) return Err(Status::OutOfRange("line {}: more than {} requests", number, kMaxTraceRows));
    auto row = read_row(line);
    if (!row) return Err(row.error().with_context(fmt::format("line {}", number)));
    rows.push_back(std::move(*row));
  }
  if (rows.empty()) return Err(Status::InvalidArgument("no requests"));
  return rows;
}

Result<std::vector<TraceRow>> load_trace(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const std::string text, cli::read_input(path, kMaxTraceBytes));
  auto rows = parse_trace(text);
  if (!rows) return Err(rows.error().with_context(path == "-" ? "standard input" : path));
  return rows;
}

}  // namespace deepinfer::bench
