#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace deepinfer::server {

/// Which pages of other origins a browser lets use the API. Without origins nothing is sent, and browsers refuse.
class Cors {
 public:
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  /// Whether the request asks, before another one, what is allowed: OPTIONS with Origin and Access-Control-Request-Method.
  static bool is_preflight(const HttpRequest& request);
  Reply preflight(const HttpRequest& request) const;
  /// Adds what the reply to `request` needs.
  void add_to(const HttpRequest& request, std::vector<Header>& headers) const;

 private:
  bool allowed(std::string_view origin) const;

  std::vector<std::string> origins_;
};

}  // namespace deepinfer::server
