#include "cache/kv_store.h"

#include <array>
#include <numeric>

namespace deepinfer {
namespace {
constexpr std::array<std::string_view, kKvStoreMissCount> kMissNames = {
    "none", "not_stored", "expired", "inexact", "format", "fingerprint", "corrupt", "unavailable", "slow", "cancelled"};
}  // namespace

int64_t KvPageShape::page_bytes() const { return std::accumulate(group_bytes.begin(), group_bytes.end(), int64_t{0}); }

int64_t KvPageShape::group_offset(int64_t group) const {
  DI_CHECK(group >= 0 && group <= static_cast<int64_t>(group_bytes.size()), "group {} of {}", group, group_bytes.size());
  return std::accumulate(group_bytes.begin(), group_bytes.begin() + group, int64_t{0});
}

std::string_view kv_store_miss_name(KvStoreMiss miss) { return kMissNames[static_cast<size_t>(miss)]; }

}  // namespace deepinfer
