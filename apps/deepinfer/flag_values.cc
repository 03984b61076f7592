#include "flag_values.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace deepinfer::cli {
namespace {

constexpr size_t kMaxListLength = 64;
constexpr size_t kShownCharacters = 40;

/// What was given, short enough for one line.
std::string shown(std::string_view text) {
  if (text.size() <= kShownCharacters) return std::string(text);
  return std::string(text.substr(0, kShownCharacters)) + "...";
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr Unit kUnits[] = {
    {"", 1},     {"b", 1},          {"k", 1024},         {"kib", 1024}, {"kb", 1e3},       {"m", 1048576},      {"mib", 1048576},
    {"mb", 1e6}, {"g", 1ull << 30}, {"gib", 1ull << 30}, {"gb", 1e9},   {"t", 1ull << 40}, {"tib", 1ull << 40}, {"tb", 1e12},
};

template <typename T>
CLI::Option* add_list(CLI::App& command, const std::string& names, std::vector<T>& target, const std::string& description,
                      std::function<Result<T>(const std::string&)> parse) {
  return add_value(command, names, description, "LIST", [&target, parse = std::move(parse)](const std::string& text) -> Status {
    DI_ASSIGN_OR_RETURN(const std::vector<std::string> parts, split_list(text));
    std::vector<T> values;
    for (const std::string& part : parts) {
      DI_ASSIGN_OR_RETURN(const T value, parse(part));
      if (std::find(values.begin(), values.end(), value) != values.end())
        return Status::InvalidArgument("has {} twice", shown(part));
      values.push_back(value);
    }
    target = std::move(values);
    return Status::Ok();
  });
}

}  // namespace

Result<int64_t> parse_whole(std::string_view text, int64_t low, int64_t high) {
  int64_t value = 0;
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (!is_digits(digits) || (error != std::errc() && error != std::errc::result_out_of_range)) {
    return Err(Status::InvalidArgument("is \"{}\", must be a whole number from {} to {}", shown(text), low, high));
  }
  if (error != std::errc() || value < low || value > high)
    return Err(Status::OutOfRange("is {}, must be from {} to {}", shown(text), low, high));
  return value;
}

Result<double> parse_real(std::string_view text, double low, double high) {
  double value = 0;
  const char* const stop = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), stop, value);
  const auto limits = [&] { return std::isinf(high) ? fmt::format("{} or more", low) : fmt::format("from {} to {}", low, high); };
  if (text.empty() || end != stop || (error != std::errc() && error != std::errc::result_out_of_range))
    return Err(Status::InvalidArgument("is \"{}\", must be a number, {}", shown(text), limits()));
  if (error != std::errc() || !(value >= low && value <= high))
    return Err(Status::OutOfRange("is {}, must be {}", shown(text), limits()));
  return value;
}

Result<int64_t> parse_size(std::string_view text, int64_t low, int64_t high) {
  const auto wrong = [&](const char* reason) {
    return Err(Status::InvalidArgument("is \"{}\", {}: a number of bytes, or with KiB, MiB, GiB or TiB", shown(text), reason));
  };
  const size_t split = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view number = text.substr(0, split);
  std::string unit;
  for (const char c : text.substr(split)) {
    if (c != ' ' || !unit.empty()) unit += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  const auto* const known = std::find_if(std::begin(kUnits), std::end(kUnits), [&](const Unit& u) { return u.name == unit; });
  if (number.empty()) return wrong("must be a size");
  if (known == std::end(kUnits)) return wrong("unknown unit");
  int64_t bytes = 0;
  if (is_digits(number) && known->bytes == 1) {  // exact beyond 2^53
    const auto error = std::from_chars(number.data(), number.data() + number.size(), bytes).ec;
    if (error != std::errc()) bytes = INT64_MAX;
  } else {
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error == std::errc::invalid_argument || end != number.data() + number.size()) return wrong("must be a size");
    const double product = error == std::errc() ? value * known->bytes : HUGE_VAL;
    bytes = product >= 9.2e18 ? INT64_MAX : static_cast<int64_t>(product);
  }
  if (bytes < low || bytes > high)
    return Err(Status::OutOfRange("is {} ({} bytes), must be from {} to {} bytes", shown(text), bytes, low, high));
  return bytes;
}

Result<double> parse_duration(std::string_view text, double low, double high) {
  constexpr std::pair<char, double> kSeconds[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}, {'w', 7 * 86400.0}};
  double unit = 1;
  std::string_view number = text;
  for (const auto& [letter, seconds] : kSeconds) {
    if (!text.ends_with(letter)) continue;
    unit = seconds;
    number.remove_suffix(1);
  }
  const bool plain = !number.empty() && number.find_first_not_of("0123456789.") == std::string_view::npos;
  const auto value = plain ? parse_real(number, 0, HUGE_VAL) : Result<double>(Err(Status::InvalidArgument("no number")));
  if (!value || !std::isfinite(*value))
    return Err(Status::InvalidArgument("is \"{}\", must be a time: seconds, or a number with s, m, h, d or w", shown(text)));
  if (!(*value * unit >= low && *value * unit <= high))
    return Err(Status::OutOfRange("is {}, must be from {} to {} seconds", shown(text), low, high));
  return *value * unit;
}

Result<std::vector<std::string>> split_list(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    if (end == at) return Err(Status::InvalidArgument("is \"{}\", must be values with commas between them", shown(text)));
    parts.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (parts.size() > kMaxListLength)
    return Err(Status::OutOfRange("has {} values, must have at most {}", parts.size(), kMaxListLength));
  return parts;
}

CLI::Option* add_value(CLI::App& command, const std::string& names, const std::string& description, const char* type,
                       std::function<Status(const std::string&)> read) {
  // The name in an error is the long one, or all of them: which one was typed is not known here.
  std::string name;
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    const std::string one = names.substr(at, end - at);
    if (one.starts_with("--")) name += (name.empty() ? "" : "/") + one;
    at = end + 1;
  }
  if (name.empty()) name = names;
  const auto take = [name, read = std::move(read)](const std::string& text) {
    const Status status = read(text);
    if (!status.ok()) throw CLI::ValidationError(name, status.message());
  };
  return command.add_option_function<std::string>(names, take, description)->type_name(type);
}

CLI::Option* add_choice(CLI::App& command, const std::string& names, std::optional<std::string>& target,
                        std::vector<std::string> choices, const std::string& description) {
  return add_value(command, names, description, "NAME",
                   [&target, choices = std::move(choices)](const std::string& text) -> Status {
                     if (std::find(choices.begin(), choices.end(), text) == choices.end())
                       return Status::InvalidArgument("is \"{}\", must be one of {}", shown(text), fmt::join(choices, ", "));
                     target = text;
                     return Status::Ok();
                   });
}

CLI::Option* add_whole_list(CLI::App& command, const std::string& names, std::vector<int64_t>& target, int64_t low, int64_t high,
                            const std::string& description) {
  return add_list<int64_t>(command, names, target, description,
                           [low, high](const std::string& text) { return parse_whole(text, low, high); });
}

CLI::Option* add_real_list(CLI::App& command, const std::string& names, std::vector<double>& target, double low, double high,
                           const std::string& description) {
  return add_list<double>(command, names, target, description,
                          [low, high](const std::string& text) { return parse_real(text, low, high); });
}

}  // namespace deepinfer::cli
