#pragma once

#include <memory>

#include "cache/kv_tiers.h"
#include "cache/tiers/host_pool.h"
#include "ops/page_copies.h"

namespace deepinfer {

struct DeviceTiersOptions {
  int64_t pull_bytes = int64_t{256} << 20;  ///< of pinned memory, which pages pass on their way to the device
  int64_t write_bytes = int64_t{64} << 20;  ///< likewise from the device
  int64_t most_pages = int64_t{1} << 26;    ///< no use for more in either: the device's
  int64_t pull_threads = 4;                 ///< pulls that are under way at once; others wait for their turn

  /// Names the first field that is out of its range.
  Status validate(const KvPageShape& shape) const;
};

struct DeviceTiers {
  std::unique_ptr<KvTiers> tiers;
  int64_t pinned_bytes = 0;  ///< without those of a host pool
};

/// `below` for pages in a device's memory: what is pulled comes into pinned memory and goes on from there, group after group,
/// while the next one is still read; what is written back goes the other way. Pages are those of the backend of `copies`.
///  - `KvPull::wait` returns when the group is on its way, and makes the operators that are called from then on wait for it: it
///  is
///    for the backend's caller alone. A pull is `done` when the last copy is over.
///  - `write_back` returns before the page has been read; see KvTiers::copied. A page for which no pinned memory is free is
///  dropped.
/// `host`, if there is one, is the first tier of `below`, in pinned memory: its pages are copied from where they lie.
/// Pages that are given to either belong to operators before `copies->last_fence()`. The backend's caller makes the tiers.
Result<DeviceTiers> make_device_tiers(std::shared_ptr<KvTiers> below, PageCopies* copies, const DeviceTiersOptions& options,
                                      std::shared_ptr<HostPool> host = nullptr);

}  // namespace deepinfer
