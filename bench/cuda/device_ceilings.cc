#include "cuda/device_ceilings.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "common/ceilings.h"

namespace deepinfer::bench {

DeviceCeilings::DeviceCeilings(DeviceMemory& memory, std::string device, double tflops)
    : device_(std::move(device)), flops_rate_(tflops * 1e12) {
  constexpr int64_t kBytes = int64_t{4} << 30;
  if (memory.is_host()) return;
  void* from = memory.allocate(kBytes);
  void* to = memory.allocate(kBytes);
  memory.fill(from, 0x5a, kBytes);
  // Not as a graph, in which a copy is another engine's work.
  std::vector<double> rounds;
  memory.copy(to, from, kBytes);
  for (int round = 0; round < 9; ++round) {
    memory.synchronize();
    const double start = now();
    for (int i = 0; i < 4; ++i) memory.copy(to, from, kBytes);
    memory.synchronize();
    rounds.push_back((now() - start) / 4);
  }
  memory.free(from);
  memory.free(to);
  std::sort(rounds.begin(), rounds.end());
  copy_rate_ = 2.0 * kBytes / rounds[rounds.size() / 2];
  print_bench_line(stdout, "copy", copy_rate_ * 1e-9, "GB/s", std::nullopt, {{"device", device_}, {"bytes", "read and written"}});
}

double DeviceCeilings::floor_us(double bytes, double flops) const {
  const double byte_us = copy_rate_ > 0 ? bytes / copy_rate_ * 1e6 : 0;
  return std::max(byte_us, flops_rate_ > 0 ? flops / flops_rate_ * 1e6 : 0);
}

void DeviceCeilings::print(const std::string& name, double us, double bytes, double flops, BenchConditions conditions) const {
  conditions.insert(conditions.begin(), {"device", device_});
  const auto text = [](double v) { return fmt::format("{:.6g}", v); };
  conditions.push_back({"us", text(us)});
  conditions.push_back({"floor_us", text(floor_us(bytes, flops))});
  conditions.push_back({"bytes", text(bytes)});
  conditions.push_back({"flops", text(flops)});
  if (floor_us(bytes, flops) > floor_us(bytes, 0)) {
    print_bench_line(stdout, name, flops / us * 1e-6, "TFLOP/s", flops_rate_ * 1e-12, conditions);
  } else {
    print_bench_line(stdout, name, bytes / us * 1e-3, "GB/s", copy_rate_ * 1e-9, conditions);
  }
}

}  // namespace deepinfer::bench
