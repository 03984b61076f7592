#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"

namespace deepinfer::cli {

/// What a client of Chat Completions needs: plain HTTP, one request at a time, a connection each.
class ChatClient {
 public:
  /// `url`: http://HOST[:PORT], with or without /v1.
  static Result<ChatClient> Create(const std::string& url, std::string api_key);

  /// The first model that the server lists.
  Result<std::string> first_model() const;
  /// Streams an answer; `on_chunk` sees every chunk and ends it early by saying false. An error is what the server said.
  Status stream(const nlohmann::ordered_json& request, const std::function<bool(const nlohmann::ordered_json&)>& on_chunk) const;

 private:
  Status exchange(const std::string& method, const std::string& path, const std::string& body,
                  const std::function<bool(std::string_view)>& on_body) const;

  std::string authority_, host_, port_, api_key_;
};

}  // namespace deepinfer::cli
