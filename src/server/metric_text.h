#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace deepinfer::server {

/// The lines that begin a family of the text exposition format.
inline void write_family(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

}  // namespace deepinfer::server
