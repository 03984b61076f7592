#include "base/status.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return Err(Status::InvalidArgument("x = {} is odd", x));
  return x / 2;
}

Result<int> quarter(int x) {
  DI_ASSIGN_OR_RETURN(const int h, half(x));
  DI_ASSIGN_OR_RETURN(const int q, half(h));
  return q;
}

Status check(int x) {
  DI_RETURN_IF_ERROR(quarter(x) ? Status::Ok() : quarter(x).error());
  return Status::Ok();
}

TEST(Status, MacrosPassErrorsOn) {
  EXPECT_EQ(quarter(12).value(), 3);
  ASSERT_FALSE(quarter(6).has_value());
  EXPECT_EQ(quarter(6).error().message(), "x = 3 is odd");
  EXPECT_TRUE(check(8).ok());
  EXPECT_EQ(check(6).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(check(6).with_context("file").message(), "file: x = 3 is odd");
}

}  // namespace
}  // namespace deepinfer
