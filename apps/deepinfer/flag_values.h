#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::cli {

/// A whole number in decimal from `low` to `high`; the error says what it is and must be, without a name.
Result<int64_t> parse_whole(std::string_view text, int64_t low, int64_t high);

/// A finite number from `low` to `high`; "inf" is allowed where `high` is infinite.
Result<double> parse_real(std::string_view text, double low, double high);

/// Bytes: "4GiB", "512 MiB", "1.5GB", "100k" or plain bytes. KiB, MiB, GiB, TiB (or K, M, G, T) are powers of 1024, KB, MB, GB,
/// TB of 1000. Case does not matter.
Result<int64_t> parse_size(std::string_view text, int64_t low, int64_t high);

/// Seconds: "90", "90s", "10m", "6h", "3d", "2w", or "1.5h".
Result<double> parse_duration(std::string_view text, double low, double high);

/// The parts between commas, which must not be empty.
Result<std::vector<std::string>> split_list(std::string_view text);

// Flags with a range. The library's own checks let NaN pass, read "010" as eight and do not name the limit of what is too large;
// these do: "--flag: is VALUE, must be from LOW to HIGH". What is not given leaves the target alone.

/// `read` gets the text of the flag; its error becomes one of the flag.
CLI::Option* add_value(CLI::App& command, const std::string& names, const std::string& description, const char* type,
                       std::function<Status(const std::string&)> read);

template <typename Target>  // int64_t, int, or an optional of them
CLI::Option* add_whole(CLI::App& command, const std::string& names, Target& target, int64_t low, int64_t high,
                       const std::string& description, const char* type = "N") {
  return add_value(command, names, description, type, [&target, low, high](const std::string& text) -> Status {
    DI_ASSIGN_OR_RETURN(target, parse_whole(text, low, high));
    return Status::Ok();
  });
}

template <typename Target>  // double, float, or an optional of them
CLI::Option* add_real(CLI::App& command, const std::string& names, Target& target, double low, double high,
                      const std::string& description, const char* type = "X") {
  return add_value(command, names, description, type, [&target, low, high](const std::string& text) -> Status {
    DI_ASSIGN_OR_RETURN(target, parse_real(text, low, high));
    return Status::Ok();
  });
}

template <typename Target>
CLI::Option* add_size(CLI::App& command, const std::string& names, Target& target, int64_t low, int64_t high,
                      const std::string& description) {
  return add_value(command, names, description, "SIZE", [&target, low, high](const std::string& text) -> Status {
    DI_ASSIGN_OR_RETURN(target, parse_size(text, low, high));
    return Status::Ok();
  });
}

template <typename Target>  // double, or an optional of it; seconds
CLI::Option* add_duration(CLI::App& command, const std::string& names, Target& target, double low, double high,
                          const std::string& description) {
  return add_value(command, names, description, "TIME", [&target, low, high](const std::string& text) -> Status {
    DI_ASSIGN_OR_RETURN(target, parse_duration(text, low, high));
    return Status::Ok();
  });
}

/// One of `choices`.
CLI::Option* add_choice(CLI::App& command, const std::string& names, std::optional<std::string>& target,
                        std::vector<std::string> choices, const std::string& description);

/// Lists for sweeps: "1,4,16".
CLI::Option* add_whole_list(CLI::App& command, const std::string& names, std::vector<int64_t>& target, int64_t low, int64_t high,
                            const std::string& description);
CLI::Option* add_real_list(CLI::App& command, const std::string& names, std::vector<double>& target, double low, double high,
                           const std::string& description);

}  // namespace deepinfer::cli
