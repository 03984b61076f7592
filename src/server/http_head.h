#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/http.h"

namespace deepinfer::server {

/// Limits of a request's head.
struct HeadLimits {
  int64_t max_headers = 100;
};

/// How the body of a request is delimited.
struct BodyFraming {
  bool chunked = false;
  int64_t length = 0;
};

/// The head of a request, as strictly as RFC 9112 lets a server be: what two parsers could read differently is refused.
struct RequestHead {
  HttpRequest request;  ///< without id, remote, body
  int version = 11;     ///< 10 or 11
  BodyFraming framing;
  bool keep_alive = true;
  bool expect_continue = false;

  int status = 0;     ///< what is wrong with it, as a status of HTTP; 0: nothing
  std::string fault;  ///< why
};

/// Whether a request can start with this: a method is a token, and empty lines before it are left out.
bool may_begin_request(char first);

/// `text` ends with the empty line. Method and path are filled in as far as they could be read, even when there is a fault.
RequestHead parse_head(std::string_view text, const HeadLimits& limits);

}  // namespace deepinfer::server
