// Copies of pages between the host and a device, as KV tiers make them, against one copy of as many bytes: by the size of a
// piece, and whether the pages are neighbours on the device. Without a GPU: the host's plain copies.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "base/json_line.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_device.h"
#include "ops/page_copies.h"

namespace deepinfer::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Setting {
  std::string device = "auto";
  int64_t page_bytes = 890 * 128;  ///< the release's
  int64_t groups = 4;              ///< of a page, as many as KV sources
  int64_t pages = 1024;
  int repeats = 9;
};

class Copies {
 public:
  Copies(DeviceMemory& memory, const Setting& setting)
      : memory_(memory),
        copies_(page_copies(memory)),
        setting_(setting),
        stride_((setting.page_bytes + 63) / 64 * 64),
        device_(static_cast<uint8_t*>(memory.allocate(stride_ * setting.pages))),
        host_(copies_.allocate_pinned(stride_ * setting.pages)) {
    copies_.fence();
    for (int64_t i = 0; i < stride_ * setting.pages; ++i) host_.get()[i] = static_cast<uint8_t>(i * 2654435761 >> 9);
  }
  ~Copies() { memory_.free(device_); }

  /// Median bytes a second of copying `bytes` from `offset` on of every page.
  double rate(bool up, bool neighbours, int64_t offset, int64_t bytes) const {
    std::vector<int64_t> places(static_cast<size_t>(setting_.pages));
    for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int64_t>(i);
    if (!neighbours) std::shuffle(places.begin(), places.end(), std::minstd_rand(1));
    std::vector<CopyPiece> pieces;
    for (size_t i = 0; i < places.size(); ++i) {
      pieces.push_back({.device = device_ + places[i] * stride_ + offset,
                        .host = host_.get() + static_cast<int64_t>(i) * stride_ + offset,
                        .bytes = bytes});
    }
    return median(up, pieces);
  }
  double one_copy(bool up) const {
    const CopyPiece piece{device_, host_.get(), stride_ * setting_.pages};
    return median(up, {&piece, 1});
  }
  /// What was copied there and back is what it was.
  bool right() {
    const std::vector<uint8_t> want(host_.get(), host_.get() + stride_ * setting_.pages);
    one_copy(true);
    std::fill_n(host_.get(), want.size(), 0);
    one_copy(false);
    return std::equal(want.begin(), want.end(), host_.get());
  }

 private:
  double median(bool up, std::span<const CopyPiece> pieces) const {
    int64_t bytes = 0;
    for (const CopyPiece& piece : pieces) bytes += piece.bytes;
    std::vector<double> rates;
    for (int i = 0; i <= setting_.repeats; ++i) {
      const auto begin = Clock::now();
      const PageCopies::Fence fence = copies_.last_fence();
      copies_.wait(up ? copies_.to_device(pieces, fence) : copies_.to_host(pieces, fence));
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      if (i > 0) rates.push_back(static_cast<double>(bytes) / seconds);
    }
    std::nth_element(rates.begin(), rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2), rates.end());
    return rates[rates.size() / 2];
  }

  DeviceMemory& memory_;
  PageCopies& copies_;
  const Setting setting_;
  const int64_t stride_;
  uint8_t* device_;
  PinnedMemory host_;
};

int run(const Setting& setting) {
  ThreadPool pool(1);
  std::unique_ptr<Backend> backend = make_cpu_backend(&pool);
  if (const auto devices = cuda_devices(); devices && setting.device != "cpu") {
    backend = *make_cuda_backend(devices->front().index);
  } else if (setting.device == "cuda") {
    std::fprintf(stderr, "%s\n", devices.error().message().c_str());
    return 1;
  }
  Copies copies(backend->memory(), setting);
  if (!copies.right()) {
    std::fprintf(stderr, "the copies are wrong\n");
    return 1;
  }
  for (const bool up : {true, false}) {
    const double ceiling = copies.one_copy(up);
    const int64_t group = setting.page_bytes / setting.groups;
    for (const int64_t bytes : {setting.page_bytes, group}) {
      for (const bool neighbours : {true, false}) {
        print_bench_line(stdout, "page_copies", copies.rate(up, neighbours, setting.page_bytes - bytes, bytes) * 1e-9, "GB/s",
                         ceiling * 1e-9,
                         {{"backend", backend->name()},
                          {"way", up ? "to_device" : "to_host"},
                          {"piece_bytes", std::to_string(bytes)},
                          {"pieces", std::to_string(setting.pages)},
                          {"neighbours", neighbours ? "yes" : "no"}});
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace deepinfer::bench

int main(int argc, char** argv) {
  deepinfer::bench::Setting setting;
  CLI::App app("Copies of KV pages between the host and a device");
  app.add_option("--device", setting.device)->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--page-bytes", setting.page_bytes)->check(CLI::Range(int64_t{64}, int64_t{1} << 30));
  app.add_option("--groups", setting.groups)->check(CLI::Range(1, 64));
  app.add_option("--pages", setting.pages)->check(CLI::Range(1, 1 << 16));
  app.add_option("--repeats", setting.repeats)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  return deepinfer::bench::run(setting);
}
