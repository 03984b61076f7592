#pragma once

#include <span>
#include <string_view>

namespace deepinfer::server {

/// A file of the web app, in the program's read-only data.
struct WebFile {
  std::string_view path;  ///< "/" for the page, "/assets/NAME" for what it loads
  std::string_view content_type;
  std::string_view etag;  ///< with its quotes
  std::string_view body;
  std::string_view gzip;  ///< the same, compressed; empty: only as it is
};

/// Of web/, generated at build time. Without the app it is one plain page at "/" that says how to get it.
std::span<const WebFile> web_files();
/// Whether it is the app, or that page.
bool web_app_built();

}  // namespace deepinfer::server
