#pragma once

// Requests and replies as the routes see them: plain values, no sockets.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::server {

using Header = std::pair<std::string, std::string>;

struct HttpRequest {
  std::string method;
  std::string target;           ///< as received
  std::string path;             ///< the target without its query
  std::vector<Header> headers;  ///< in order; names as received
  std::string body;
  std::string id;      ///< x-request-id, taken over or made
  std::string remote;  ///< address and port of the peer
  int64_t key = -1;    ///< which API key; -1: none is needed

  /// The first header of that name, in any case; empty if there is none.
  std::string_view header(std::string_view name) const;
  int64_t count(std::string_view name) const;
};

struct Reply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<Header> headers = {};
  bool close = false;  ///< the connection ends after this reply

  static Reply Json(std::string body) { return {.body = std::move(body)}; }
  static Reply Text(std::string body) { return {.content_type = "text/plain; charset=utf-8", .body = std::move(body)}; }
};

/// "OK", "Not Found", ...
std::string_view reason_phrase(int status);

/// Equal but for the case of ASCII letters.
bool equal_ignoring_case(std::string_view a, std::string_view b);

using QueryParameters = std::vector<std::pair<std::string, std::string>>;
/// Names and values of the target's query, %XX and + decoded; nothing if it is malformed. Without a query: none.
std::optional<QueryParameters> query_parameters(std::string_view target);

/// Whether `list`, as of a Connection header, has the word.
bool list_has(std::string_view list, std::string_view word);

}  // namespace deepinfer::server
