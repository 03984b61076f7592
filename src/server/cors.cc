#include "server/cors.h"

#include <algorithm>

namespace deepinfer::server {

bool Cors::is_preflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && !request.header("origin").empty() &&
         !request.header("access-control-request-method").empty();
}

bool Cors::allowed(std::string_view origin) const {
  return std::any_of(origins_.begin(), origins_.end(), [&](const std::string& o) { return o == "*" || o == origin; });
}

void Cors::add_to(const HttpRequest& request, std::vector<Header>& headers) const {
  if (origins_.empty()) return;
  headers.emplace_back("Vary", "Origin");
  const std::string_view origin = request.header("origin");
  if (origin.empty() || !allowed(origin)) return;
  headers.emplace_back("Access-Control-Allow-Origin", origin);
  headers.emplace_back("Access-Control-Expose-Headers", "x-request-id, request-id, retry-after, x-unenforced-keywords");
}

Reply Cors::preflight(const HttpRequest& request) const {
  Reply reply{.status = 204, .content_type = ""};
  if (!allowed(request.header("origin"))) {
    reply.status = 403;
    return reply;
  }
  reply.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  const std::string_view wanted = request.header("access-control-request-headers");
  if (!wanted.empty()) reply.headers.emplace_back("Access-Control-Allow-Headers", wanted);
  reply.headers.emplace_back("Access-Control-Max-Age", "600");
  return reply;
}

}  // namespace deepinfer::server
