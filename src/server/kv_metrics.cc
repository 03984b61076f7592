#include "server/kv_metrics.h"

#include <fmt/format.h>

#include <array>

#include "server/metric_text.h"

namespace deepinfer::server {
namespace {

constexpr std::array<std::string_view, 3> kClasses = {"chat", "agent", "pinned"};

class TierWriter {
 public:
  TierWriter(std::string& out, const KvTiersStats& stats, std::string_view label) : out_(out), stats_(stats), label_(label) {}

  /// One sample.
  template <typename T>
  void one(std::string_view name, std::string_view type, std::string_view help, T value) {
    write_family(out_, name, type, help);
    out_ += fmt::format("{}{{{}}} {}\n", name, label_, value);
  }
  /// One sample for each tier.
  template <typename Field>
  void each(std::string_view name, std::string_view type, std::string_view help, Field KvTierStats::*field) {
    write_family(out_, name, type, help);
    for (const KvTierStats& tier : stats_.tiers)
      out_ += fmt::format("{}{{{},tier=\"{}\"}} {}\n", name, label_, tier.name, static_cast<double>(tier.*field));
  }
  /// One sample for each tier and reason that there was.
  void reasons(std::string_view name, std::string_view help, KvTierStats::PerMiss KvTierStats::*field) {
    write_family(out_, name, "counter", help);
    for (const KvTierStats& tier : stats_.tiers) {
      for (size_t i = 1; i < kKvStoreMissCount; ++i) {
        out_ += fmt::format("{}{{{},tier=\"{}\",reason=\"{}\"}} {}\n", name, label_, tier.name,
                            kv_store_miss_name(static_cast<KvStoreMiss>(i)), (tier.*field)[i]);
      }
    }
  }

 private:
  std::string& out_;
  const KvTiersStats& stats_;
  std::string_view label_;
};

void write_tiers(std::string& out, const EngineStats& s, std::string_view label) {
  const KvTiersStats& t = s.tiers;
  TierWriter w(out, t, label);
  w.one("deepinfer:kv_tier_lookups_total", "counter", "Prompts that were looked up in the tiers.", t.matches);
  w.one("deepinfer:kv_tier_lookups_late_total", "counter", "Look-ups that their time limit ended.", t.matches_late);
  w.one("deepinfer:kv_pulls_total", "counter", "Prefixes that were fetched from the tiers.", t.pulls);
  w.one("deepinfer:kv_pulls_failed_total", "counter", "Prefixes of which some page did not come; it was computed.",
        t.pulls_failed);
  w.one("deepinfer:kv_pulls_late_total", "counter", "Prefixes that were given up for being slow.", t.pulls_late);
  w.one("deepinfer:kv_pulls_refused_total", "counter", "Prefixes that were computed, as fetching them would have taken longer.",
        s.pulls_refused);
  w.one("deepinfer:kv_pull_wait_seconds_total", "counter", "Time that steps waited for pages on their way.", s.pull_wait_seconds);
  w.one("deepinfer:kv_pages_promoted_total", "counter", "Pages that were kept in a faster tier, too, after they were read.",
        t.pages_promoted);
  w.one("deepinfer:kv_pages_write_queue", "gauge", "Pages that wait to be written to a tier.", t.pages_queued);
  w.one("deepinfer:kv_pages_retained_total", "counter", "Pages that were given to the tiers to keep.", t.pages_retained);
  w.one("deepinfer:kv_pages_filtered_total", "counter", "Pages that no tier keeps, by their class.", t.pages_filtered);
  w.each("deepinfer:kv_tier_pages_matched_total", "counter", "Pages that a tier was found to have.", &KvTierStats::matched_pages);
  w.reasons("deepinfer:kv_tier_lookup_misses_total", "Look-ups that ended before their last page, by why.",
            &KvTierStats::match_misses);
  w.each("deepinfer:kv_tier_pages_read_total", "counter", "Pages that were read whole.", &KvTierStats::pages_read);
  w.each("deepinfer:kv_tier_read_bytes_total", "counter", "Bytes read.", &KvTierStats::bytes_read);
  w.each("deepinfer:kv_tier_read_seconds_total", "counter", "Time of threads in reads; several read at once.",
         &KvTierStats::read_seconds);
  w.reasons("deepinfer:kv_tier_read_misses_total", "Parts of pages that could not be read, by why.", &KvTierStats::read_misses);
  w.each("deepinfer:kv_tier_pages_written_total", "counter", "Pages written.", &KvTierStats::pages_written);
  w.each("deepinfer:kv_tier_written_bytes_total", "counter", "Bytes written.", &KvTierStats::bytes_written);
  w.each("deepinfer:kv_tier_pages_touched_total", "counter", "Pages whose time to live began anew.", &KvTierStats::pages_touched);
  w.each("deepinfer:kv_tier_pages_dropped_total", "counter", "Pages not written: the queue was full or the tier out of order.",
         &KvTierStats::pages_dropped);
  w.each("deepinfer:kv_tier_write_errors_total", "counter", "Batches of pages that could not be written.",
         &KvTierStats::write_errors);
  w.each("deepinfer:kv_tier_outages_total", "counter", "How often a tier was set aside because it failed or hung.",
         &KvTierStats::outages);
  w.each("deepinfer:kv_tier_available", "gauge", "1 while the tier is used, 0 while it is set aside.", &KvTierStats::available);
  w.each("deepinfer:kv_tier_bytes_per_second", "gauge", "Measured rate of reads; 0: none yet.", &KvTierStats::bytes_per_second);
  w.each("deepinfer:kv_tier_latency_seconds", "gauge", "Measured time until the first bytes of a read are there.",
         &KvTierStats::latency_seconds);
}

/// Two buckets a decade of those that are recorded, whose edges are exact.
void write_revisits(std::string& out, const IntervalsByClass& revisits, std::string_view label) {
  constexpr size_t kStep = RevisitIntervals::kBinsPerDecade / 2;
  constexpr std::string_view kUses = "deepinfer:kv_page_uses_total", kIntervals = "deepinfer:kv_revisit_interval_seconds";
  write_family(out, kUses, "counter",
               "Uses of full pages by prompts, by the prompt's class; estimated where only a sample is followed.");
  for (size_t i = 0; i < kClasses.size(); ++i)
    out += fmt::format("{}{{{},class=\"{}\"}} {}\n", kUses, label, kClasses[i], revisits[i].uses);
  write_family(out, kIntervals, "histogram", "Between two uses of a page by prompts, by the class of the first; likewise.");
  for (size_t i = 0; i < kClasses.size(); ++i) {
    const RevisitIntervals& r = revisits[i];
    int64_t below = 0;
    for (size_t bin = 0; bin < RevisitIntervals::kBins; ++bin) {
      below += r.ended[bin];
      if (bin % kStep != 0 || bin + 1 == RevisitIntervals::kBins) continue;
      out += fmt::format("{}_bucket{{{},class=\"{}\",le=\"{:.6g}\"}} {}\n", kIntervals, label, kClasses[i],
                         RevisitIntervals::edge(bin), below);
    }
    out += fmt::format(
        "{0}_bucket{{{1},class=\"{2}\",le=\"+Inf\"}} {3}\n{0}_sum{{{1},class=\"{2}\"}} {4}\n{0}_count{{{1},class=\"{2}\"}} {3}\n",
        kIntervals, label, kClasses[i], below, r.ended_seconds);
  }
}

}  // namespace

void write_kv_metrics(std::string& out, const EngineStats& s, const IntervalsByClass& revisits, std::string_view label) {
  constexpr std::string_view kByClass = "deepinfer:kv_pages_by_class", kByTier = "deepinfer:kv_pages_by_tier";
  write_family(out, kByClass, "gauge", "Pages that only the prefix cache holds, by how long they are to be kept.");
  for (size_t i = 0; i < kClasses.size(); ++i)
    out += fmt::format("{}{{{},class=\"{}\"}} {}\n", kByClass, label, kClasses[i], s.pages_by_class[i]);
  write_family(out, kByTier, "gauge", "Pages by where they lie: on the device in use or cached, in host memory, in stores.");
  out += fmt::format("{}{{{},tier=\"device\"}} {}\n", kByTier, label, s.pages_total - s.pages_free);
  for (const KvTierStats& tier : s.tiers.tiers) {
    if (tier.pages >= 0) out += fmt::format("{}{{{},tier=\"{}\"}} {}\n", kByTier, label, tier.name, tier.pages);
  }
  write_revisits(out, revisits, label);
  if (!s.tiers.tiers.empty()) write_tiers(out, s, label);
}

}  // namespace deepinfer::server
