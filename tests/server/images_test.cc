// Images are not accepted yet. Whatever a request says about them, it gets a 400, and nothing is fetched, opened or decoded for
// it (CASES 29).

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>

#include "server/test_server.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

using testing::call;
using testing::chat_body;
using testing::HttpReply;
using testing::TestServer;
using Json = nlohmann::json;

/// A listener of the loopback interface that never accepts: whoever connects is seen in its queue.
class Trap {
 public:
  Trap() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd_, 16) != 0)
      throw std::runtime_error("no listener");
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~Trap() { ::close(fd_); }
  Trap(const Trap&) = delete;
  int port() const { return port_; }
  bool touched(int milliseconds) const {
    pollfd p{fd_, POLLIN, 0};
    return ::poll(&p, 1, milliseconds) > 0;
  }

 private:
  int fd_;
  int port_ = 0;
};

/// A file that tells when anybody opens it.
class WatchedFile {
 public:
  WatchedFile() : path_(testing::make_temp_dir("image") + "/picture.png"), watch_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    std::ofstream(path_) << "\x89PNG\r\n\x1a\n";
    if (::inotify_add_watch(watch_, path_.c_str(), IN_OPEN | IN_ACCESS) < 0) throw std::runtime_error("cannot watch");
  }
  ~WatchedFile() { ::close(watch_); }
  WatchedFile(const WatchedFile&) = delete;
  const std::string& path() const { return path_; }
  bool touched(int milliseconds) const {
    pollfd p{watch_, POLLIN, 0};
    return ::poll(&p, 1, milliseconds) > 0;
  }

 private:
  std::string path_;
  int watch_;
};

/// Every place where the formats take an image: path and body.
std::vector<std::pair<std::string, Json>> requests_with(const std::string& url) {
  const auto user = [](const Json& content) { return Json::array({{{"role", "user"}, {"content", content}}}); };
  const Json chat =
      Json::array({{{"type", "text"}, {"text", "What is it?"}}, {{"type", "image_url"}, {"image_url", {{"url", url}}}}});
  const Json file = Json::array({{{"type", "file"}, {"file", {{"file_data", url}}}}});
  const Json source = Json::array({{{"type", "image"}, {"source", {{"type", "url"}, {"url", url}}}}});
  const Json base64 =
      Json::array({{{"type", "image"}, {"source", {{"type", "base64"}, {"media_type", "image/png"}, {"data", url}}}}});
  const Json result = Json::array({{{"type", "tool_result"}, {"tool_use_id", "t"}, {"content", source}}});
  const Json tool_history = Json::array(
      {{{"role", "user"}, {"content", "q"}},
       {{"role", "assistant"}, {"content", {{{"type", "tool_use"}, {"id", "t"}, {"name", "f"}, {"input", Json::object()}}}}},
       {{"role", "user"}, {"content", result}}});
  const Json input = Json::array({{{"role", "user"}, {"content", {{{"type", "input_image"}, {"image_url", url}}}}}});
  const Json messages = {{"model", "fake"}, {"max_tokens", 5}};
  const auto with = [](Json base, const char* field, const Json& value) {
    base[field] = value;
    return base;
  };
  return {{"/v1/chat/completions", with({{"model", "fake"}}, "messages", user(chat))},
          {"/v1/chat/completions", with({{"model", "fake"}, {"stream", true}}, "messages", user(chat))},
          {"/v1/chat/completions", with({{"model", "fake"}}, "messages", user(file))},
          {"/v1/messages", with(messages, "messages", user(source))},
          {"/v1/messages", with(messages, "messages", user(base64))},
          {"/v1/messages", with(messages, "messages", tool_history)},
          {"/v1/messages/count_tokens", with(messages, "messages", user(source))},
          {"/v1/responses", with({{"model", "fake"}}, "input", input)},
          {"/v1/responses/input_tokens", with({{"model", "fake"}}, "input", input)},
          {"/tokenize", with(Json::object(), "messages", user(chat))},
          {"/apply-template", with(Json::object(), "messages", user(chat))}};
}

void expect_refused(TestServer& server, const std::string& url) {
  for (const auto& [path, body] : requests_with(url)) {
    const HttpReply reply = call(server.port(), "POST", path, body.dump());
    EXPECT_EQ(reply.status, 400) << path << " " << url.substr(0, 80) << "\n" << reply.body.substr(0, 300);
    EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error") << path;
    EXPECT_EQ(reply.json().contains("type"), path.starts_with("/v1/messages")) << path;
    EXPECT_LT(reply.body.size(), 1000U) << "what was sent does not come back";
  }
}

TEST(Images, PrivateAddressesAreNeverConnectedTo) {
  TestServer server;
  const Trap trap;
  for (const char* form :
       {"http://127.0.0.1:{}/a.png", "HTTP://127.0.0.1:{}/", "https://127.0.0.1:{}/a.png", "http://localhost:{}/a.png",
        "http://user:pass@127.0.0.1:{}/", "http://2130706433:{}/", "http://0x7f.1:{}/", "http://[::ffff:127.0.0.1]:{}/",
        "ftp://127.0.0.1:{}/a.png", "gopher://127.0.0.1:{}/_GET", "//127.0.0.1:{}/a.png"})
    expect_refused(server, fmt::format(fmt::runtime(form), trap.port()));
  for (const char* url : {"http://169.254.169.254/latest/meta-data/", "http://10.0.0.1/", "http://192.168.0.1/",
                          "http://[fd00::1]/", "http://0.0.0.0/", "http://example.invalid/a.png", "http", "http://", ""})
    expect_refused(server, url);
  EXPECT_FALSE(trap.touched(200));
  EXPECT_EQ(call(server.port(), "POST", "/v1/chat/completions", chat_body("hi")).status, 200);
}

TEST(Images, FilesAreNeverOpened) {
  TestServer server;
  const WatchedFile file;
  for (const std::string& form : {"file://" + file.path(), "FILE://" + file.path(), "file:" + file.path(), file.path(),
                                  "data:image/png,@" + file.path(), "file://localhost" + file.path()})
    expect_refused(server, form);
  EXPECT_FALSE(file.touched(100));
}

TEST(Images, DataIsNeverDecoded) {
  // A PNG that announces 178,956,971 x 65,535 pixels, base64 that is none, and more of it than any picture has.
  const std::string bomb = "iVBORw0KGgoAAAANSUhEUgqqqqsAAP//CAYAAAA=";
  TestServer server;
  for (const std::string& url :
       {"data:image/png;base64," + bomb, std::string("data:image/png;base64,@@@@"), std::string("data:image/png;base64,"),
        std::string("data:;base64,AAAA"), std::string("data:text/html;base64,PGI+"),
        "data:image/png;base64," + std::string(8'000'000, 'A')})
    expect_refused(server, url);
  // Against the limit of a body it is not taken in at all.
  testing::TestServerOptions options;
  options.server.max_body_bytes = 1'000'000;
  TestServer small(options);
  for (const auto& [path, body] : requests_with("data:image/png;base64," + std::string(2'000'000, 'A')))
    EXPECT_EQ(call(small.port(), "POST", path, body.dump()).status, 413) << path;
}

TEST(Images, ManyOfThemAreRefusedByTheirNumber) {
  TestServer server;
  Json content = Json::array();
  for (int i = 0; i < 1025; ++i) content.push_back({{"type", "image_url"}, {"image_url", {{"url", "http://127.0.0.1/"}}}});
  const Json body = {{"model", "fake"}, {"messages", {{{"role", "user"}, {"content", content}}}}};
  const HttpReply reply = call(server.port(), "POST", "/v1/chat/completions", body.dump());
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("1024"), std::string::npos) << reply.body;
}

}  // namespace
}  // namespace deepinfer
