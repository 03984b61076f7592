// Checks of the stored values. One pass over the bytes, at memory speed: the loops below are vectorised by the compiler.

#include <algorithm>
#include <bit>
#include <cstring>

#include "checkpoint/checkpoint_files.h"

namespace deepinfer::internal {
namespace {

constexpr int64_t kChunk = int64_t{16} << 20;
constexpr int64_t kMaxScannedExpertScales = int64_t{2} << 30;
// A dense FP8 tile scale outside 2^+-60 would leave the range in which a product of a code and its scale is exact in bf16.
constexpr uint8_t kTileScaleLow = 127 - 60;
constexpr uint8_t kTileScaleHigh = 127 + 60;

enum class Check { kNone, kTileScale, kScale, kE4m3, kBf16, kF32 };

Check check_of(const CatalogueEntry& entry, VerifyLevel level, bool many_scales) {
  if (level == VerifyLevel::kHeaders) return Check::kNone;
  if (entry.dtype == DType::kF8E8M0) {
    const bool tiles = entry.group != "experts" && entry.group != "draft_experts" && entry.group != "engram_table";
    if (tiles) return Check::kTileScale;
    return many_scales && level == VerifyLevel::kScales ? Check::kNone : Check::kScale;
  }
  if (level != VerifyLevel::kFull) return Check::kNone;
  switch (entry.dtype) {
    case DType::kF8E4M3:
      return Check::kE4m3;
    case DType::kBF16:
      return Check::kBf16;
    case DType::kF32:
      return Check::kF32;
    default:
      return Check::kNone;  // every FP4 code is a number
  }
}

/// Whether a chunk holds a bad value; `first_bad` then finds it.
bool any_bad(Check check, const std::byte* data, int64_t bytes) {
  const auto* p = reinterpret_cast<const uint8_t*>(data);
  switch (check) {
    case Check::kNone:
      return false;
    case Check::kScale:
      return std::memchr(p, 0xff, static_cast<size_t>(bytes)) != nullptr;
    case Check::kTileScale: {
      uint8_t low = 255, high = 0;
      for (int64_t i = 0; i < bytes; ++i) {
        low = std::min(low, p[i]);
        high = std::max(high, p[i]);
      }
      return bytes > 0 && (low < kTileScaleLow || high > kTileScaleHigh);
    }
    case Check::kE4m3: {
      uint8_t top = 0;
      for (int64_t i = 0; i < bytes; ++i) top = std::max(top, static_cast<uint8_t>(p[i] & 0x7f));
      return top == 0x7f;
    }
    case Check::kBf16: {
      uint16_t top = 0;
      for (int64_t i = 0; i + 2 <= bytes; i += 2) {
        uint16_t x;
        std::memcpy(&x, p + i, 2);  // the file need not be aligned
        top = std::max(top, static_cast<uint16_t>(x & 0x7fff));
      }
      return top >= 0x7f80;
    }
    case Check::kF32: {
      uint32_t top = 0;
      for (int64_t i = 0; i + 4 <= bytes; i += 4) {
        uint32_t x;
        std::memcpy(&x, p + i, 4);
        top = std::max(top, x & 0x7fffffffu);
      }
      return top >= 0x7f800000u;
    }
  }
  return false;
}

int64_t unit_of(Check check) { return check == Check::kBf16 ? 2 : check == Check::kF32 ? 4 : 1; }

Status describe(Check check, const std::string& path, const std::string& name, const std::byte* data, int64_t element) {
  const auto byte = std::to_integer<int>(data[0]);
  if (check == Check::kTileScale && byte != 0xff) {
    return Status::OutOfRange(
        "{}: tensor {}: the scale byte at element {} is {}, it must lie in [{}, {}] (2^-60 to 2^60), or the products of bf16 "
        "arithmetic would no longer be exact",
        path, name, element, byte, kTileScaleLow, kTileScaleHigh);
  }
  if (check == Check::kTileScale || check == Check::kScale) {
    return Status::DataLoss("{}: tensor {}: the scale byte at element {} is 255, which is NaN", path, name, element);
  }
  return Status::DataLoss("{}: tensor {}: element {} is not a finite number", path, name, element);
}

}  // namespace

void verify_values(const std::vector<CatalogueEntry>& catalogue, const CheckpointFiles& files, VerifyLevel level,
                   const std::function<void(int64_t, int64_t)>& progress, Problems& problems) {
  // Row scales of experts and Engram tables are read only while that takes a second, unless everything is asked for.
  int64_t row_scales = 0;
  for (const CatalogueEntry& e : catalogue) {
    if (e.dtype == DType::kF8E8M0 && check_of(e, level, false) == Check::kScale) row_scales += e.bytes();
  }
  const bool many = row_scales > kMaxScannedExpertScales;

  struct Job {
    const CatalogueEntry* entry;
    const FoundTensor* found;
    Check check;
  };
  std::vector<Job> jobs;
  int64_t total = 0;
  for (const CatalogueEntry& e : catalogue) {
    const Check check = check_of(e, level, many);
    const auto at = files.tensors.find(e.name);
    if (check == Check::kNone || at == files.tensors.end() || at->second.view.dtype != e.dtype) continue;
    jobs.push_back({&e, &at->second, check});
    total += at->second.view.bytes;
  }
  int64_t done = 0;
  int64_t reported = 0;
  for (const Job& job : jobs) {
    const TensorView& view = job.found->view;
    bool bad_found = false;
    for (int64_t at = 0; at < view.bytes && !bad_found; at += kChunk) {
      const int64_t n = std::min(kChunk, view.bytes - at);
      if (any_bad(job.check, view.data + at, n)) {
        const int64_t unit = unit_of(job.check);
        int64_t i = 0;
        while (!any_bad(job.check, view.data + at + i, unit)) i += unit;
        bad_found = true;
        const std::string& path = files.files[job.found->file].path();
        if (!problems.add(describe(job.check, path, job.entry->name, view.data + at + i, (at + i) / unit))) return;
      }
      // Small tensors would flood the callback.
      if (progress && done + at + n - reported >= kChunk) {
        reported = done + at + n;
        progress(reported, total);
      }
    }
    done += view.bytes;
  }
  if (progress && total > 0) progress(total, total);
}

}  // namespace deepinfer::internal
