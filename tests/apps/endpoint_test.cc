#include "serve/endpoint.h"

#include <gtest/gtest.h>

namespace deepinfer::bench {
namespace {

TEST(Endpoint, ReadsUrls) {
  struct Case {
    const char *url, *path, *wanted;  ///< scheme and authority|host|port|path
  };
  const Case cases[] = {
      {"http://h:81", "/v1/completions", "http://h:81|h|81|/v1/completions"},
      {"http://h", "/x", "http://h|h|80|/x"},
      {"https://h", "/x", "https://h|h|443|/x"},
      {"https://h:80/", "/x", "https://h:80|h|80|/x"},
      {"http://h/proxy/v1/", "/v1/completions", "http://h|h|80|/proxy/v1/completions"},
      {"http://h/v1", "/v1/chat/completions", "http://h|h|80|/v1/chat/completions"},
      {"http://[::1]:8000", "/x", "http://[::1]:8000|::1|8000|/x"},
      {"https://[fe80::2]", "/x", "https://[fe80::2]|fe80::2|443|/x"},
  };
  for (const Case& c : cases) {
    const auto e = Endpoint::Parse("--base-url", c.url, c.path);
    ASSERT_TRUE(e.has_value()) << c.url << ": " << e.error().message();
    EXPECT_EQ(e->url() + "|" + e->host + "|" + e->port + "|" + e->path, c.wanted);
  }
}

TEST(Endpoint, ErrorsNameFlagAndValue) {
  for (const char* url : {"h:81", "ftp://h", "http:/h", "http://", "http://:81", "http://h:", "http://h:x", "http://h:0",
                          "http://h:65536", "http://h:8 0", "http://a@h", "http://h?x", "http://h/#x", "http://h\r\nX: y",
                          "http://[::1", "http://[]:1", "http://[::1]x", "http://::1:80"}) {
    const auto e = Endpoint::Parse("--base-url", url, "/x");
    ASSERT_FALSE(e.has_value()) << url;
    EXPECT_EQ(e.error().message().find("--base-url is \""), 0u) << e.error().message();
    EXPECT_EQ(e.error().message().find('\n'), std::string::npos);
  }
  for (const char* path : {"", "v1", "/v1 x", "/v1\r\nX: y", "/x?y"}) {
    const auto e = Endpoint::Parse("--base-url", "http://h", path);
    ASSERT_FALSE(e.has_value()) << path;
    EXPECT_EQ(e.error().message().find("--endpoint is \""), 0u) << e.error().message();
  }
}

}  // namespace
}  // namespace deepinfer::bench
