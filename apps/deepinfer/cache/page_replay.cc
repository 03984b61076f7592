#include "page_replay.h"

#include <algorithm>
#include <boost/unordered/unordered_flat_map.hpp>
#include <cmath>
#include <set>

namespace deepinfer::cache {
namespace {

class ReplayedCache {
 public:
  ReplayedCache(const ReplayOptions& options, ReplayResult& result) : options_(options), result_(result) {}

  void serve(const PageRequest& request) {
    expire(request.time);
    ReplayCounts& counts = of(request.cache_class);
    size_t hit = 0;
    while (hit < request.pages.size() && pages_.contains(request.pages[hit])) ++hit;
    ++counts.requests;
    counts.requests_hit += hit > 0;
    counts.prompt_tokens += request.prompt_tokens;
    counts.pages += static_cast<int64_t>(request.pages.size());
    counts.hit_pages += static_cast<int64_t>(hit);
    for (size_t i = 0; i < request.pages.size(); ++i) use(request, i);
    result_.most_pages = std::max(result_.most_pages, static_cast<int64_t>(pages_.size()));
  }

  /// What is still there has been held until `now`.
  void end(double now) {
    expire(now);
    for (const auto& [page, held] : pages_) of(held.cache_class).page_seconds += now - held.since;
  }

 private:
  /// In the order in which they go.
  struct Place {
    double expiry = 0;
    double last_use = 0;  ///< tells pages that never expire apart
    int64_t from_the_end = 0;
    uint64_t page = 0;

    auto operator<=>(const Place&) const = default;
  };
  struct Held {
    Place place;
    CacheClass cache_class = CacheClass::kChat;
    double since = 0;
  };

  ReplayCounts& of(CacheClass c) { return result_.by_class[static_cast<size_t>(c)]; }

  void drop(std::set<Place>::iterator at, double when) {
    const auto held = pages_.find(at->page);
    of(held->second.cache_class).page_seconds += when - held->second.since;
    pages_.erase(held);
    order_.erase(at);
  }

  void expire(double now) {
    while (!order_.empty() && order_.begin()->expiry < now) {
      ++of(pages_.at(order_.begin()->page).cache_class).expired;
      drop(order_.begin(), order_.begin()->expiry);
    }
  }

  void use(const PageRequest& request, size_t index) {
    const uint64_t page = request.pages[index];
    CacheClass cache_class = request.cache_class;
    double since = request.time;
    if (const auto at = pages_.find(page); at != pages_.end()) {
      cache_class = std::max(cache_class, at->second.cache_class);
      since = at->second.since;
      order_.erase(at->second.place);
    } else {
      make_room(request.time);
    }
    const double ttl = options_.ttl_seconds[static_cast<size_t>(cache_class)];
    if (!(ttl > 0)) {
      pages_.erase(page);
      return;
    }
    const Place place{
        .expiry = request.time + ttl, .last_use = request.time, .from_the_end = -static_cast<int64_t>(index), .page = page};
    order_.insert(place);
    pages_[page] = {.place = place, .cache_class = cache_class, .since = since};
  }

  void make_room(double now) {
    if (options_.capacity_pages == 0 || static_cast<int64_t>(pages_.size()) < options_.capacity_pages) return;
    ++of(pages_.at(order_.begin()->page).cache_class).evicted;
    drop(order_.begin(), now);
  }

  const ReplayOptions& options_;
  ReplayResult& result_;
  std::set<Place> order_;
  boost::unordered_flat_map<uint64_t, Held> pages_;
};

}  // namespace

ReplayCounts ReplayResult::total() const {
  ReplayCounts sum;
  for (const ReplayCounts& c : by_class) {
    sum.requests += c.requests;
    sum.requests_hit += c.requests_hit;
    sum.prompt_tokens += c.prompt_tokens;
    sum.pages += c.pages;
    sum.hit_pages += c.hit_pages;
    sum.expired += c.expired;
    sum.evicted += c.evicted;
    sum.page_seconds += c.page_seconds;
  }
  return sum;
}

ReplayResult replay(const PageTrace& trace, const ReplayOptions& options) {
  ReplayResult result;
  ReplayedCache cache(options, result);
  for (const PageRequest& request : trace.requests) cache.serve(request);
  if (!trace.requests.empty()) cache.end(trace.requests.back().time);
  return result;
}

}  // namespace deepinfer::cache
