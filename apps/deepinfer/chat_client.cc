#include "chat_client.h"

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

namespace deepinfer::cli {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxErrorBytes = 1 << 20;

/// The message of an error body, or the body itself.
std::string error_message(const std::string& body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("error") && json["error"].is_object()) return json["error"].value("message", body);
  return body.substr(0, 500);
}

}  // namespace

Result<ChatClient> ChatClient::Create(const std::string& url, std::string api_key) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return Err(Status::InvalidArgument("--url is \"{}\", must be http://HOST[:PORT]", url));
  std::string place = url.substr(kScheme.size());
  place = place.substr(0, place.find('/'));
  ChatClient client;
  const size_t bracket = place.starts_with('[') ? place.find(']') : std::string::npos;  // of an IPv6 address
  const size_t colon = place.find(':', bracket == std::string::npos ? 0 : bracket);
  client.authority_ = place;
  client.host_ = bracket == std::string::npos ? place.substr(0, colon) : place.substr(1, bracket - 1);
  client.port_ = colon == std::string::npos ? "80" : place.substr(colon + 1);
  if (client.host_.empty() || client.port_.empty())
    return Err(Status::InvalidArgument("--url is \"{}\", must be http://HOST[:PORT]", url));
  client.api_key_ = std::move(api_key);
  return client;
}

Status ChatClient::exchange(const std::string& method, const std::string& path, const std::string& body,
                            const std::function<bool(std::string_view)>& on_body) const {
  const auto failed = [&](const boost::system::error_code& error) {
    return Status::FailedPrecondition("http://{}: {}", authority_, error.message());
  };
  boost::system::error_code error;
  asio::io_context context;
  tcp::resolver resolver(context);
  const auto endpoints = resolver.resolve(host_, port_, error);
  if (error) return failed(error);
  tcp::socket socket(context);
  asio::connect(socket, endpoints, error);
  if (error) return failed(error);

  http::request<http::string_body> request(http::string_to_verb(method), path, 11);
  request.set(http::field::host, authority_);
  request.set(http::field::connection, "close");
  if (!api_key_.empty()) request.set(http::field::authorization, "Bearer " + api_key_);
  if (!body.empty()) request.set(http::field::content_type, "application/json");
  request.body() = body;
  request.prepare_payload();
  http::write(socket, request, error);
  if (error) return failed(error);

  boost::beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  http::read_header(socket, buffer, parser, error);
  if (error) return failed(error);
  const bool fine = parser.get().result_int() == 200;
  std::string refusal;
  std::array<char, 16384> piece{};
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    http::read_some(socket, buffer, parser, error);
    if (error == http::error::need_buffer) error = {};
    if (error) return failed(error);
    const std::string_view got(piece.data(), piece.size() - parser.get().body().size);
    if (!fine) {
      if (refusal.size() < kMaxErrorBytes) refusal += got;
    } else if (!got.empty() && !on_body(got)) {
      return Status::Ok();
    }
  }
  if (!fine) return Status::FailedPrecondition("the server answered {}: {}", parser.get().result_int(), error_message(refusal));
  return Status::Ok();
}

Result<std::string> ChatClient::first_model() const {
  std::string body;
  DI_RETURN_IF_ERROR(exchange("GET", "/v1/models", "", [&](std::string_view piece) {
    body += piece;
    return true;
  }));
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto name = Json::json_pointer("/data/0/id");
  if (!json.is_object() || !json.contains(name) || !json[name].is_string())
    return Err(Status::FailedPrecondition("http://{}: /v1/models lists no model", authority_));
  return json[name].get<std::string>();
}

Status ChatClient::stream(const Json& request, const std::function<bool(const Json&)>& on_chunk) const {
  std::string pending;
  Status failure;
  const auto on_body = [&](std::string_view piece) {
    pending += piece;
    size_t at = 0;
    for (size_t end = 0; (end = pending.find('\n', at)) != std::string::npos; at = end + 1) {
      const std::string_view line = std::string_view(pending).substr(at, end - at);
      if (!line.starts_with("data: ") || line == "data: [DONE]") continue;
      const Json chunk = Json::parse(line.substr(6), nullptr, /*allow_exceptions=*/false);
      if (!chunk.is_object()) continue;
      if (chunk.contains("error")) {
        failure = Status::Internal("the answer broke off: {}", error_message(chunk.dump()));
        return false;
      }
      if (!on_chunk(chunk)) return false;
    }
    pending.erase(0, at);
    return true;
  };
  const std::string body = request.dump(-1, ' ', false, Json::error_handler_t::replace);
  DI_RETURN_IF_ERROR(exchange("POST", "/v1/chat/completions", body, on_body));
  return failure;
}

}  // namespace deepinfer::cli
