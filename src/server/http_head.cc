#include "server/http_head.h"

#include <fmt/format.h>

#include <charconv>

namespace deepinfer::server {
namespace {

bool is_token_char(char c) {
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (!is_token_char(c)) return false;
  }
  return true;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// Sets the fault once; false, so that callers can return it.
template <typename... Args>
bool refuse(RequestHead& head, int status, fmt::format_string<Args...> format, Args&&... args) {
  head.status = status;
  head.fault = fmt::format(format, std::forward<Args>(args)...);
  return false;
}

bool parse_request_line(std::string_view line, RequestHead& head) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return refuse(head, 400, "the request line is not METHOD TARGET VERSION");
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_token(method) || method.size() > 32) return refuse(head, 400, "the method is not a token of at most 32 characters");
  head.request.method = method;
  for (const char c : target) {
    if (c <= ' ' || c >= 0x7f) return refuse(head, 400, "the target has a character that must be escaped");
  }
  if (target.empty() || (target.front() != '/' && target != "*")) return refuse(head, 400, "the target must be a path");
  head.request.target = target;
  head.request.path = target.substr(0, target.find_first_of("?#"));
  if (version == "HTTP/1.1") {
    head.version = 11;
  } else if (version == "HTTP/1.0") {
    head.version = 10;
  } else if (version.starts_with("HTTP/")) {
    return refuse(head, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  } else {
    return refuse(head, 400, "the request line has no version");
  }
  return true;
}

bool parse_field(std::string_view line, RequestHead& head) {
  // A line that starts with white space continues the one before (obs-fold), which parsers read in different ways.
  if (line.front() == ' ' || line.front() == '\t') return refuse(head, 400, "a header is folded over lines");
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return refuse(head, 400, "a header has no colon");
  const std::string_view name = line.substr(0, colon);
  if (!is_token(name)) return refuse(head, 400, "a header's name is not a token");
  const std::string_view value = trim(line.substr(colon + 1));
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < ' ' && c != '\t') || byte == 0x7f) return refuse(head, 400, "header {} has a control character", name);
  }
  head.request.headers.emplace_back(name, value);
  return true;
}

bool find_framing(RequestHead& head) {
  const HttpRequest& r = head.request;
  const int64_t lengths = r.count("content-length");
  const int64_t encodings = r.count("transfer-encoding");
  if (lengths > 0 && encodings > 0) return refuse(head, 400, "Content-Length and Transfer-Encoding exclude each other");
  if (lengths > 1) return refuse(head, 400, "Content-Length is given {} times", lengths);
  if (encodings > 1) return refuse(head, 400, "Transfer-Encoding is given {} times", encodings);
  if (encodings == 1) {
    if (head.version == 10) return refuse(head, 400, "HTTP/1.0 has no Transfer-Encoding");
    if (!equal_ignoring_case(r.header("transfer-encoding"), "chunked"))
      return refuse(head, 501, "Transfer-Encoding must be chunked, and nothing else");
    head.framing.chunked = true;
  }
  if (lengths == 1) {
    const std::string_view text = r.header("content-length");
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), head.framing.length);
    if (error != std::errc() || end != text.data() + text.size() || text.front() < '0' || text.front() > '9')
      return refuse(head, error == std::errc::result_out_of_range ? 413 : 400, "Content-Length is not a number of bytes");
  }
  return true;
}

bool find_rest(RequestHead& head) {
  const HttpRequest& r = head.request;
  if (head.version == 11 && r.count("host") != 1)
    return refuse(head, 400, "there must be one Host header, there are {}", r.count("host"));
  const std::string_view connection = r.header("connection");
  head.keep_alive = head.version == 11 ? !list_has(connection, "close") : list_has(connection, "keep-alive");
  if (const std::string_view expect = r.header("expect"); !expect.empty()) {
    if (!equal_ignoring_case(expect, "100-continue")) return refuse(head, 417, "Expect must be 100-continue");
    head.expect_continue = head.version == 11;
  }
  return true;
}

}  // namespace

bool may_begin_request(char first) { return is_token_char(first) || first == '\r' || first == '\n'; }

RequestHead parse_head(std::string_view text, const HeadLimits& limits) {
  RequestHead head;
  bool first = true;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos || end == 0 || text[end - 1] != '\r') {
      refuse(head, 400, "a line of the head does not end with CR LF");
      return head;
    }
    const std::string_view line = text.substr(0, end - 1);
    text.remove_prefix(end + 1);
    if (line.find('\r') != std::string_view::npos || line.find('\0') != std::string_view::npos) {
      refuse(head, 400, "a line of the head has CR or NUL in it");
      return head;
    }
    if (first) {
      first = false;
      if (!parse_request_line(line, head)) return head;
      continue;
    }
    if (line.empty()) break;
    if (static_cast<int64_t>(head.request.headers.size()) >= limits.max_headers) {
      refuse(head, 431, "more than {} headers", limits.max_headers);
      return head;
    }
    if (!parse_field(line, head)) return head;
  }
  if (find_framing(head)) find_rest(head);
  return head;
}

}  // namespace deepinfer::server
