#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace deepinfer::server {

/// One line per event on standard error, as text or as JSON. It never carries prompts, answers or keys. Thread-safe.
class EventLog {
 public:
  enum class Format : uint8_t { kText, kJson, kOff };
  enum class Level : uint8_t { kDebug, kInfo, kWarning, kError };

  struct Field {
    Field(std::string_view n, std::string_view v);
    Field(std::string_view n, const char* v) : Field(n, std::string_view(v)) {}
    Field(std::string_view n, const std::string& v) : Field(n, std::string_view(v)) {}
    Field(std::string_view n, int64_t v) : name(n), json(std::to_string(v)) {}
    Field(std::string_view n, int v) : name(n), json(std::to_string(v)) {}
    Field(std::string_view n, double v);
    std::string name;
    std::string json;  ///< the value as JSON
  };

  explicit EventLog(Format format, Level least = Level::kInfo);
  ~EventLog();

  bool enabled(Level level) const { return format_ != Format::kOff && level >= least_; }
  void write(Level level, std::string_view event, const std::vector<Field>& fields) const;

 private:
  struct Sink;
  const Format format_;
  const Level least_;
  std::unique_ptr<Sink> sink_;
};

Result<EventLog::Format> parse_log_format(std::string_view text);
Result<EventLog::Level> parse_log_level(std::string_view text);

}  // namespace deepinfer::server
