#include "table_format.h"

#include <fmt/format.h>

#include <cmath>

#include "bench_result.h"

namespace deepinfer::bench {

std::string TableFormat::title(const std::string& text) const { return fmt::format("{:=^{}}\n", text, width_); }

std::string TableFormat::section(const std::string& text) const { return fmt::format("{:-^{}}\n", text, width_); }

std::string TableFormat::end() const { return std::string(static_cast<size_t>(width_), '=') + "\n"; }

std::string TableFormat::line(const std::string& label, const std::string& value) const {
  return fmt::format("{:<{}} {:<10}\n", label + ":", label_width_, value);
}

std::string TableFormat::line(const std::string& label, double value, int digits) const {
  return line(label, std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "-");
}

std::string TableFormat::distribution(const std::string& text, const std::string& name, const Distribution& d,
                                      bool detailed) const {
  std::string out = section(text);
  out += line("Mean " + name + " (ms)", d.mean);
  out += line("Median " + name + " (ms)", d.median);
  if (detailed) out += line("P95 " + name + " (ms)", d.p95);
  out += line("P99 " + name + " (ms)", d.p99);
  if (detailed) out += line("Max " + name + " (ms)", d.max);
  return out;
}

}  // namespace deepinfer::bench
