#include "page_choice.h"

#include <algorithm>

#include "flag_values.h"

namespace deepinfer::cache {
namespace {

constexpr size_t kLeastDigits = 8;
constexpr double kMaxAge = 1e10;

}  // namespace

Result<std::string> parse_fingerprint_prefix(std::string_view text) {
  const bool good = text.size() >= kLeastDigits && text.size() <= 2 * std::tuple_size_v<KvFingerprint> &&
                    text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  if (!good) {
    return Err(Status::InvalidArgument("is \"{}\", must be {} to {} hexadecimal digits in lower case", text.substr(0, 80),
                                       kLeastDigits, 2 * std::tuple_size_v<KvFingerprint>));
  }
  return std::string(text);
}

void PageChoice::add_to(CLI::App& command) {
  cli::add_value(command, "--class", "Only these: chat, agent, pinned", "LIST", [this](const std::string& text) -> Status {
    DI_ASSIGN_OR_RETURN(const std::vector<std::string> names, cli::split_list(text));
    for (const std::string& name : names) {
      DI_ASSIGN_OR_RETURN(const CacheClass cache_class, parse_cache_class(name));
      classes.push_back(cache_class);
    }
    return Status::Ok();
  });
  cli::add_value(command, "--fingerprint", "Only of models whose fingerprints begin so (see cache stat)", "LIST",
                 [this](const std::string& text) -> Status {
                   DI_ASSIGN_OR_RETURN(const std::vector<std::string> parts, cli::split_list(text));
                   for (const std::string& part : parts) {
                     DI_ASSIGN_OR_RETURN(std::string prefix, parse_fingerprint_prefix(part));
                     fingerprints.push_back(std::move(prefix));
                   }
                   return Status::Ok();
                 });
  cli::add_duration(command, "--newer-than", newer_than, 0, kMaxAge, "Only what was written within this time: 6h, 3d");
  cli::add_duration(command, "--older-than", older_than, 0, kMaxAge, "Only what was written before that");
  command.add_flag("--exact", exact_only, "Only pages that no bounded replay came before");
  command.add_flag("--expired", expired, "Pages whose time is over, too");
}

bool PageChoice::has(const StoredPage& page, const PageHeader& header, double now) const {
  if (!classes.empty() && std::find(classes.begin(), classes.end(), page.cache_class) == classes.end()) return false;
  if (!fingerprints.empty()) {
    const std::string text = hex_text(header.fingerprint);
    if (std::none_of(fingerprints.begin(), fingerprints.end(), [&](const std::string& f) { return text.starts_with(f); }))
      return false;
  }
  const double age = now - header.created;
  return !(newer_than && age >= *newer_than) && !(older_than && age < *older_than) && (header.exact || !exact_only) &&
         (expired || page.expiry > now);
}

}  // namespace deepinfer::cache
