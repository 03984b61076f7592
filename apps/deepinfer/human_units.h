#pragma once

#include <cstdint>
#include <string>

namespace deepinfer::cli {

/// "512 B", "1.50 MiB".
std::string human_bytes(int64_t bytes);
/// "0.50 s", "42 s", "12.5 min", "3.0 h", "2.5 d".
std::string human_seconds(double seconds);

}  // namespace deepinfer::cli
