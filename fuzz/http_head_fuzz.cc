// The head of an HTTP request: what is accepted has one meaning.

#include <cstdlib>
#include <string>

#include "server/http_head.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using deepinfer::server::RequestHead;
  const RequestHead head = deepinfer::server::parse_head({reinterpret_cast<const char*>(data), size}, {.max_headers = 50});
  if (head.status != 0) {
    if (head.status < 400 || head.status > 599 || head.fault.empty()) std::abort();
    if (head.fault.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  const auto& r = head.request;
  if (r.method.empty() || r.path.empty() || head.framing.length < 0 || r.headers.size() > 50) std::abort();
  if (head.framing.chunked && (head.framing.length != 0 || r.count("content-length") != 0)) std::abort();
  if (r.count("content-length") > 1 || r.count("transfer-encoding") > 1) std::abort();
  for (const auto& [name, value] : r.headers) {
    for (const std::string& text : {name, value}) {
      if (text.find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos) std::abort();
    }
    if (name.empty() || name.find_first_of(" \t:") != std::string::npos) std::abort();
  }
  return 0;
}
