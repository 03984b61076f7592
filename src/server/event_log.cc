#include "server/event_log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "base/json_line.h"

namespace deepinfer::server {
namespace {

constexpr const char* kLevels[] = {"debug", "info", "warning", "error"};

spdlog::level::level_enum to_spdlog(EventLog::Level level) {
  switch (level) {
    case EventLog::Level::kDebug:
      return spdlog::level::debug;
    case EventLog::Level::kInfo:
      return spdlog::level::info;
    case EventLog::Level::kWarning:
      return spdlog::level::warn;
    case EventLog::Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

struct EventLog::Sink {
  std::shared_ptr<spdlog::logger> logger;
};

EventLog::Field::Field(std::string_view n, std::string_view v) : name(n), json(json_quote(v)) {}
EventLog::Field::Field(std::string_view n, double v) : name(n), json(fmt::format("{:.6g}", v)) {}

EventLog::EventLog(Format format, Level least) : format_(format), least_(least), sink_(std::make_unique<Sink>()) {
  // Not registered: the logger is this object's alone.
  sink_->logger = std::make_shared<spdlog::logger>("server", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  sink_->logger->set_level(to_spdlog(least));
  sink_->logger->flush_on(spdlog::level::warn);
  if (format == Format::kJson) {
    sink_->logger->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ",%v})", spdlog::pattern_time_type::utc);
  } else {
    sink_->logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
  }
}

EventLog::~EventLog() { sink_->logger->flush(); }

void EventLog::write(Level level, std::string_view event, const std::vector<Field>& fields) const {
  if (!enabled(level)) return;
  const char* const name = kLevels[static_cast<size_t>(level)];
  std::string line;
  if (format_ == Format::kJson) {
    line = fmt::format(R"("level":"{}","event":{})", name, json_quote(event));
    for (const Field& f : fields) line += fmt::format(",{}:{}", json_quote(f.name), f.json);
  } else {
    line = fmt::format("{} {}", name, event);
    for (const Field& f : fields) line += fmt::format(" {}={}", f.name, f.json);
  }
  sink_->logger->log(to_spdlog(level), "{}", line);
}

Result<EventLog::Format> parse_log_format(std::string_view text) {
  if (text == "text") return EventLog::Format::kText;
  if (text == "json") return EventLog::Format::kJson;
  if (text == "off") return EventLog::Format::kOff;
  return Err(Status::InvalidArgument("is \"{}\", must be text, json or off", text));
}

Result<EventLog::Level> parse_log_level(std::string_view text) {
  for (size_t i = 0; i < std::size(kLevels); ++i) {
    if (text == kLevels[i]) return static_cast<EventLog::Level>(i);
  }
  return Err(Status::InvalidArgument("is \"{}\", must be debug, info, warning or error", text));
}

}  // namespace deepinfer::server
