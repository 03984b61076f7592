#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ops/cpu/cpu_backend.h"
#include "ops/ops.h"

namespace deepinfer::testing {

/// A backend with a pool of its own.
struct OwnedBackend {
  std::string name;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Backend> backend;
};

/// The CPU backend once per kernel table that this processor can run.
inline std::vector<OwnedBackend> cpu_backends(int threads) {
  std::vector<OwnedBackend> all;
  for (const cpu::CpuKernels* kernels : cpu::cpu_kernels()) {
    auto pool = std::make_unique<ThreadPool>(threads);
    auto backend = std::make_unique<CpuBackend>(pool.get(), *kernels);
    all.push_back({backend->name(), std::move(pool), std::move(backend)});
  }
  return all;
}

inline OwnedBackend reference_backend(int threads) {
  auto pool = std::make_unique<ThreadPool>(threads);
  auto backend = make_reference_backend(pool.get());
  return {"reference", std::move(pool), std::move(backend)};
}

/// The same, the reference first.
inline std::vector<OwnedBackend> all_backends(int threads) {
  std::vector<OwnedBackend> all;
  all.push_back(reference_backend(threads));
  for (OwnedBackend& b : cpu_backends(threads)) all.push_back(std::move(b));
  return all;
}

}  // namespace deepinfer::testing
