// The dashboard: files of the program itself, open to everybody. Their data come from the API, with a key where one is needed.

#include <algorithm>

#include "server/application.h"
#include "server/web_files.h"

namespace deepinfer::server {
namespace {

/// Nothing from elsewhere, no inline code, no frames: what a model writes can run nothing here, whatever the page does with it.
constexpr std::string_view kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

bool takes_gzip(const HttpRequest& request) {
  return std::any_of(request.headers.begin(), request.headers.end(), [](const Header& h) {
    return equal_ignoring_case(h.first, "accept-encoding") && list_has(h.second, "gzip");
  });
}

bool has_it(const HttpRequest& request, std::string_view etag) {
  const std::string_view known = request.header("if-none-match");
  return known == "*" || list_has(known, etag);
}

Reply serve_file(const HttpRequest& request, const WebFile& file) {
  const bool page = file.path == "/";
  Reply reply;
  reply.headers = {{"ETag", std::string(file.etag)},
                   // Names of assets change with their content; the page names them, and is asked for each time.
                   {"Cache-Control", page ? "no-cache" : "public, max-age=31536000, immutable"},
                   {"X-Content-Type-Options", "nosniff"},
                   {"Referrer-Policy", "no-referrer"},
                   {"Cross-Origin-Opener-Policy", "same-origin"},
                   {"Cross-Origin-Resource-Policy", "same-origin"},
                   {"Content-Security-Policy", std::string(kContentSecurityPolicy)}};
  if (!file.gzip.empty()) reply.headers.emplace_back("Vary", "Accept-Encoding");
  if (has_it(request, file.etag)) {
    reply.status = 304;
    reply.content_type = "";
    return reply;
  }
  reply.content_type = std::string(file.content_type);
  if (!file.gzip.empty() && takes_gzip(request)) {
    reply.headers.emplace_back("Content-Encoding", "gzip");
    reply.body = std::string(file.gzip);
  } else {
    reply.body = std::string(file.body);
  }
  return reply;
}

}  // namespace

Outcome Application::web_file(const HttpRequest& request, const std::string&) {
  for (const WebFile& file : web_files()) {
    if (file.path == request.path) return serve_file(request, file);
  }
  return to_reply(Api::kChat, ApiError::Http(404, fmt::format("there is nothing at {}", request.path)));
}

}  // namespace deepinfer::server
