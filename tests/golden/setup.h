#pragma once

#include <ostream>
#include <string>

namespace deepinfer::testing {

/// What golden values are compared with: a checkpoint on a backend.
struct GoldenSetup {
  const char* checkpoint;  ///< "nano" or "wide"
  const char* backend;

  std::string name() const { return std::string(checkpoint) + "_" + backend; }
  friend std::ostream& operator<<(std::ostream& out, const GoldenSetup& setup) { return out << setup.name(); }
};

}  // namespace deepinfer::testing
