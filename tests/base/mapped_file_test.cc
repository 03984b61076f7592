#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "testing/paths.h"

namespace deepinfer {
namespace {

class MappedFileTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  std::string directory_ = testing::make_temp_dir("mapped-file");
};

TEST_F(MappedFileTest, MapsTheBytes) {
  std::ofstream(path("a")) << "hello";
  auto file = MappedFile::Open(path("a"));
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->size(), 5);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->data()), 5), "hello");
  EXPECT_EQ(read_text_file(path("a"), 5).value(), "hello");
}

TEST_F(MappedFileTest, EmptyFile) {
  std::ofstream(path("empty"));
  auto file = MappedFile::Open(path("empty"));
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->size(), 0);
}

TEST_F(MappedFileTest, RefusesWhatIsNoRegularFile) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  for (const std::string& p : {path("pipe"), directory_, std::string("/dev/null")}) {
    EXPECT_NE(MappedFile::Open(p).error().message().find("not a regular file"), std::string::npos) << p;
    EXPECT_NE(read_text_file(p, 100).error().message().find("not a regular file"), std::string::npos) << p;
  }
  EXPECT_EQ(MappedFile::Open(path("absent")).error().code(), StatusCode::kNotFound);
}

TEST_F(MappedFileTest, TextLimit) {
  std::ofstream(path("a")) << "hello";
  const auto text = read_text_file(path("a"), 4);
  ASSERT_FALSE(text.has_value());
  EXPECT_NE(text.error().message().find("5 bytes, the limit is 4"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
