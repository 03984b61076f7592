#include "trace.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "flag_values.h"
#include "terminal.h"

namespace deepinfer::bench {
namespace {

using Json = nlohmann::json;

constexpr double kMaxArrival = 1e7;  // four months
constexpr int64_t kMaxLength = int64_t{1} << 24;
constexpr int64_t kMaxPrefixId = int64_t{1} << 40;
constexpr size_t kMaxLineBytes = 4096;
constexpr size_t kMaxMooncakeLineBytes = 1 << 20;  // a number for each block of the prompt
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

Result<TraceRow> read_mooncake_row(std::string_view line) {
  if (line.size() > kMaxMooncakeLineBytes)
    return Err(Status::OutOfRange("has {} bytes, must have at most {}", line.size(), kMaxMooncakeLineBytes));
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Err(Status::InvalidArgument("not a JSON object"));
  TraceRow row;
  DI_ASSIGN_OR_RETURN(const int64_t milliseconds, whole(json, "timestamp", 0, static_cast<int64_t>(kMaxArrival) * 1000));
  row.arrival = static_cast<double>(milliseconds) * 1e-3;
  DI_ASSIGN_OR_RETURN(row.input_len, whole(json, "input_length", 1, kMaxLength));
  DI_ASSIGN_OR_RETURN(row.output_len, whole(json, "output_length", 1, kMaxLength));
  if (const auto ids = json.find("hash_ids"); ids != json.end()) {
    if (!ids->is_array()) return Err(Status::InvalidArgument("hash_ids: is {}, must be a list", shown(*ids)));
    for (const Json& id : *ids) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kMaxPrefixId)
        return Err(Status::OutOfRange("hash_ids: has {}, must have whole numbers from 0 to {}", shown(id), kMaxPrefixId));
      row.block_ids.push_back(id.get<int64_t>());
    }
  }
  return row;
}

/// Digits of `text` at `at`, as many as there should be; -1 if there are other characters.
int64_t digits(std::string_view text, size_t at, size_t count) {
  int64_t value = 0;
  for (size_t i = at; i < at + count; ++i) {
    if (i >= text.size() || text[i] < '0' || text[i] > '9') return -1;
    value = value * 10 + (text[i] - '0');
  }
  return value;
}

/// Seconds since 1970 of "2023-11-16 18:17:03.9799600"; a fraction and what follows it (a zone: all rows have the same) may be
/// absent.
Result<double> parse_timestamp(std::string_view text) {
  const int64_t year = digits(text, 0, 4), month = digits(text, 5, 2), day = digits(text, 8, 2);
  const int64_t hour = digits(text, 11, 2), minute = digits(text, 14, 2), second = digits(text, 17, 2);
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(year)),
                                         std::chrono::month(static_cast<unsigned>(std::max<int64_t>(month, 0))),
                                         std::chrono::day(static_cast<unsigned>(std::max<int64_t>(day, 0)))};
  if (year < 1970 || !date.ok() || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60)
    return Err(Status::InvalidArgument("TIMESTAMP: is {}, must be YYYY-MM-DD HH:MM:SS[.FRACTION]", shown(Json(text))));
  double out = static_cast<double>(std::chrono::sys_days(date).time_since_epoch().count()) * 86400.0 +
               static_cast<double>(hour * 3600 + minute * 60 + second);
  if (text.size() > 19 && text[19] == '.') {
    double unit = 0.1;
    for (size_t i = 20; digits(text, i, 1) >= 0; ++i, unit /= 10) out += unit * static_cast<double>(digits(text, i, 1));
  }
  return out;
}

Result<TraceRow> read_azure_row(std::string_view line) {
  const size_t first = line.find(','), second = first == std::string_view::npos ? first : line.find(',', first + 1);
  if (second == std::string_view::npos || line.find(',', second + 1) != std::string_view::npos)
    return Err(Status::InvalidArgument("must have three fields: TIMESTAMP,ContextTokens,GeneratedTokens"));
  TraceRow row;
  DI_ASSIGN_OR_RETURN(row.arrival, parse_timestamp(line.substr(0, first)));
  const auto count = [&](const char* field, std::string_view text) -> Result<int64_t> {
    auto value = cli::parse_whole(text, 0, kMaxLength);
    if (!value) return Err(value.error().with_context(field));
    return std::max<int64_t>(*value, 1);  // a few of Azure's rows made nothing: they ask for one token
  };
  DI_ASSIGN_OR_RETURN(row.input_len, count("ContextTokens", line.substr(first + 1, second - first - 1)));
  DI_ASSIGN_OR_RETURN(row.output_len, count("GeneratedTokens", line.substr(second + 1)));
  return row;
}

constexpr std::string_view kAzureHeading = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// The reader for a trace with this first line.
Result<TraceRow> (*reader_for(std::string_view line))(std::string_view) {
  if (line == kAzureHeading) return read_azure_row;
  const Json json = line.size() <= kMaxMooncakeLineBytes ? Json::parse(line, nullptr, /*allow_exceptions=*/false) : Json();
  return json.is_object() && json.contains("timestamp") && json.contains("input_length") ? read_mooncake_row : read_row;
}

}  // namespace

Result<std::vector<TraceRow>> parse_trace(std::string_view text) {
  std::vector<TraceRow> rows;
  int64_t number = 0;
  Result<TraceRow> (*read)(std::string_view) = nullptr;
  while (!text.empty()) {
    ++number;
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    if (rows.size() == kMaxTraceRows) return Err(Status::OutOfRange("line {}: more than {} requests", number, kMaxTraceRows));
    if (read == nullptr) {
      read = reader_for(line);
      if (line == kAzureHeading) continue;
    }
    auto row = read(line);
    if (!row) return Err(row.error().with_context(fmt::format("line {}", number)));
    rows.push_back(std::move(*row));
  }
  if (rows.empty()) return Err(Status::InvalidArgument("no requests"));
  if (read == read_azure_row) {
    // Rows are in order but for a few; the earliest is the start.
    const double start = std::min_element(rows.begin(), rows.end(), [](const TraceRow& a, const TraceRow& b) {
                           return a.arrival < b.arrival;
                         })->arrival;
    for (TraceRow& row : rows) row.arrival -= start;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].arrival > kMaxArrival)
        return Err(Status::OutOfRange("TIMESTAMP: of request {} is {:.0f} s after the first, must be at most {}", i + 1,
                                      rows[i].arrival, kMaxArrival));
    }
  }
  return rows;
}

Result<std::vector<TraceRow>> load_trace(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const std::string text, cli::read_input(path, kMaxTraceBytes));
  auto rows = parse_trace(text);
  if (!rows) return Err(rows.error().with_context(path == "-" ? "standard input" : path));
  return rows;
}

}  // namespace deepinfer::bench
