#include "store_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "human_units.h"
#include "terminal.h"

namespace deepinfer::cache {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string grouped(int64_t number) {
  std::string out = std::to_string(number);
  for (int64_t at = static_cast<int64_t>(out.size()) - 3; at > 0; at -= 3) out.insert(static_cast<size_t>(at), 1, ',');
  return out;
}

Json to_json(const StoreUsage& usage) { return {{"pages", usage.pages}, {"bytes", usage.bytes}}; }

/// Upper bound of a bucket of kStoreAgeBounds; the last has none.
std::string bound_text(size_t bucket) {
  if (bucket == kStoreAgeBounds.size()) return fmt::format("> {}", cli::human_seconds(kStoreAgeBounds.back()));
  return fmt::format("< {}", cli::human_seconds(kStoreAgeBounds[bucket]));
}

StoreUsage sum(std::span<const StoreUsage> parts) {
  StoreUsage total;
  for (const StoreUsage& part : parts) {
    total.pages += part.pages;
    total.bytes += part.bytes;
  }
  return total;
}

std::string row(std::string_view name, const StoreUsage& usage) {
  return fmt::format("  {:<12} {:>12} {:>12}\n", name, grouped(usage.pages), cli::human_bytes(usage.bytes));
}

std::string format_generation(const std::string& fingerprint, const StoreReport::Generation& g) {
  std::string out = fmt::format("\nModel {}\n", fingerprint.substr(0, 16));
  if (g.idle_seconds >= 0) out += fmt::format("  last opened {} ago\n", cli::human_seconds(g.idle_seconds));
  out += fmt::format("  {:<12} {:>12} {:>12}\n", "", "pages", "bytes");
  for (size_t c = 0; c < kCacheClassCount; ++c) {
    if (g.by_class[c].pages > 0) out += row(cache_class_name(static_cast<CacheClass>(c)), g.by_class[c]);
  }
  out += row("all", sum(g.by_class));
  out += row("exact", g.exact);
  if (g.bounded.pages > 0) out += row("bounded", g.bounded);
  if (g.expired.pages > 0) out += row("expired", g.expired);
  out += fmt::format("  {:<12} {:>12} {:>12}\n", "seconds", "since write", "to expiry");
  for (size_t b = 0; b < g.by_age.size(); ++b) {
    if (g.by_age[b].pages == 0 && g.by_ttl_left[b].pages == 0) continue;
    out += fmt::format("  {:<12} {:>12} {:>12}\n", bound_text(b), grouped(g.by_age[b].pages), grouped(g.by_ttl_left[b].pages));
  }
  return out;
}

Json histogram(const std::array<StoreUsage, kStoreAgeBounds.size() + 1>& buckets) {
  Json out = Json::array();
  for (size_t b = 0; b < buckets.size(); ++b) {
    Json entry = {{"below_seconds", b < kStoreAgeBounds.size() ? Json(kStoreAgeBounds[b]) : Json(nullptr)}};
    entry.update(to_json(buckets[b]));
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace

std::string usage_text(const StoreUsage& usage) {
  return fmt::format("{} {}, {}", grouped(usage.pages), usage.pages == 1 ? "page" : "pages", cli::human_bytes(usage.bytes));
}

std::string format_report(const std::string& directory, const StoreReport& report) {
  std::string out =
      fmt::format("{}: {} store, {} of files{}\n", cli::one_line(directory), report.kind, cli::human_bytes(report.file_bytes),
                  report.capacity_bytes > 0 ? fmt::format(" of {}", cli::human_bytes(report.capacity_bytes)) : "");
  if (report.generations.empty()) out += "No pages.\n";
  for (const auto& [fingerprint, generation] : report.generations) out += format_generation(fingerprint, generation);
  if (report.unreadable.pages > 0) out += fmt::format("\nUnreadable: {} (see cache verify)\n", usage_text(report.unreadable));
  if (report.temporary.pages > 0) out += fmt::format("\nBeing written or left behind: {}\n", usage_text(report.temporary));
  if (report.foreign.pages > 0)
    out += fmt::format("\nFiles that are none of the store's: {}, {}\n", report.foreign.pages,
                       cli::human_bytes(report.foreign.bytes));
  return out;
}

std::string report_json(const std::string& directory, const StoreReport& report) {
  Json generations = Json::array();
  for (const auto& [fingerprint, g] : report.generations) {
    Json classes = Json::object();
    for (size_t c = 0; c < kCacheClassCount; ++c)
      classes[std::string(cache_class_name(static_cast<CacheClass>(c)))] = to_json(g.by_class[c]);
    generations.push_back({{"fingerprint", fingerprint},
                           {"idle_seconds", g.idle_seconds >= 0 ? Json(g.idle_seconds) : Json(nullptr)},
                           {"classes", std::move(classes)},
                           {"exact", to_json(g.exact)},
                           {"bounded", to_json(g.bounded)},
                           {"expired", to_json(g.expired)},
                           {"by_age", histogram(g.by_age)},
                           {"by_ttl_left", histogram(g.by_ttl_left)}});
  }
  return dump({{"store", directory},
               {"kind", report.kind},
               {"capacity_bytes", report.capacity_bytes > 0 ? Json(report.capacity_bytes) : Json(nullptr)},
               {"file_bytes", report.file_bytes},
               {"generations", std::move(generations)},
               {"unreadable", to_json(report.unreadable)},
               {"temporary", to_json(report.temporary)},
               {"foreign", to_json(report.foreign)}});
}

StoreUsage damaged(const StoreVerification& verification) {
  const auto none = static_cast<size_t>(KvStoreMiss::kNone);
  const StoreUsage all = sum(verification.by_reason);
  return {.pages = all.pages - verification.by_reason[none].pages, .bytes = all.bytes - verification.by_reason[none].bytes};
}

std::string format_verification(const std::string& directory, const StoreVerification& v) {
  std::string out = fmt::format("{}: {} checked\n", cli::one_line(directory), usage_text(v.checked));
  for (size_t reason = 0; reason < kKvStoreMissCount; ++reason) {
    if (v.by_reason[reason].pages == 0) continue;
    const auto miss = static_cast<KvStoreMiss>(reason);
    out += row(miss == KvStoreMiss::kNone ? "right" : kv_store_miss_name(miss), v.by_reason[reason]);
  }
  for (const std::string& problem : v.problems) out += cli::one_line(problem) + "\n";
  const StoreUsage bad = damaged(v);
  if (bad.pages > static_cast<int64_t>(v.problems.size()))
    out += fmt::format("and {} more\n", bad.pages - static_cast<int64_t>(v.problems.size()));
  if (v.removed > 0) out += fmt::format("{} removed\n", grouped(v.removed));
  out += bad.pages == 0 ? "No damage.\n" : fmt::format("Damaged: {}.\n", usage_text(bad));
  return out;
}

std::string verification_json(const std::string& directory, const StoreVerification& v) {
  Json reasons = Json::object();
  for (size_t reason = 0; reason < kKvStoreMissCount; ++reason) {
    const auto miss = static_cast<KvStoreMiss>(reason);
    if (miss == KvStoreMiss::kNone || v.by_reason[reason].pages > 0)
      reasons[miss == KvStoreMiss::kNone ? "right" : std::string(kv_store_miss_name(miss))] = to_json(v.by_reason[reason]);
  }
  return dump({{"store", directory},
               {"checked", to_json(v.checked)},
               {"by_reason", std::move(reasons)},
               {"damaged", to_json(damaged(v))},
               {"removed", v.removed},
               {"problems", v.problems}});
}

std::string format_collection(const std::string& directory, const StoreCollection& c) {
  std::string out = fmt::format("{}: garbage collected\n", cli::one_line(directory));
  out += row("expired", c.expired) + row("evicted", c.evicted) + row("temporary", c.temporary) + row("kept", c.kept);
  if (c.entries_removed > 0) out += fmt::format("{} entries of the directory removed\n", c.entries_removed);
  if (c.entries_left > 0)
    out += fmt::format("{} entries left, as the directory went away: whoever believes them finds nothing\n", c.entries_left);
  if (c.generations > 0)
    out += fmt::format("{} {} of models that nobody opens any more\n", c.generations, c.generations == 1 ? "folder" : "folders");
  return out;
}

std::string collection_json(const std::string& directory, const StoreCollection& c) {
  return dump({{"store", directory},
               {"expired", to_json(c.expired)},
               {"evicted", to_json(c.evicted)},
               {"temporary", to_json(c.temporary)},
               {"generations", c.generations},
               {"entries_removed", c.entries_removed},
               {"entries_left", c.entries_left},
               {"kept", to_json(c.kept)}});
}

}  // namespace deepinfer::cache
