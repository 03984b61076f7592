#include "html_page.h"

#include <fmt/format.h>

#include "svg_plot.h"

namespace deepinfer::bench {
namespace {

constexpr const char* kPageStyle = R"(
  :root { color-scheme: light dark; }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem;
    background: #ffffff; color: #1c1c1e; }
  table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
  .wide { overflow-x: auto; margin: 1.5rem 0; }
  th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #e3e3e8; white-space: nowrap; }
  dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
  dd { margin: 0; overflow-wrap: anywhere; }
  .text { text-align: left; }
  figure { margin: 1.5rem 0; }
  svg { max-width: 100%; height: auto; }
  @media (prefers-color-scheme: dark) {
    body { background: #17171a; color: #f1f1f4; }
    th, td { border-color: #34343a; }
  }
)";

}  // namespace

std::string html_page(std::string_view title, std::string_view body) {
  const std::string name = xml_escape(title);
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<h1>{}</h1>\n{}</body>\n</html>\n",
      name, kPageStyle, name, body);
}

}  // namespace deepinfer::bench
