#pragma once

#include <span>
#include <string>

#include "cache/tiers/shared_layout.h"

namespace deepinfer {

/// Makes the folder of a generation if need be, and its stamp: it is in use. Unless it is a `new_store`, a missing store is not
/// made: it is one that isn't mounted now, and what lies under its mount point is none of ours.
Status open_generation(const SharedLayout& layout, const std::string& generation, bool new_store);

/// Writes a record under a temporary name, then gives it its own. Makes the folders on the way.
Status store_page_file(const SharedLayout& layout, const std::string& generation, const PageName& page,
                       std::span<const uint8_t> record, const PageTime& time, UniqueNames& names);

/// 0 or errno.
int set_page_time(const std::string& path, const PageTime& time);
/// Negative: errno says why. A FIFO or a link that somebody put there neither blocks nor leads elsewhere.
int open_page_file(const std::string& path);

}  // namespace deepinfer
