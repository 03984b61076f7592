// The long ones: prompts in which window, top-k and candidate blocks all choose, and many random schedules.

#include "invariance/invariance.h"
#include "invariance/schedules.h"

namespace deepinfer {
namespace {

using testing::expect_equal;
using testing::run_step;
using testing::Setting;
using testing::Subject;
using testing::Track;

class InvarianceSlow : public ::testing::TestWithParam<Setting> {
 protected:
  Subject subject_{GetParam(), 2};
  bool nano() const { return std::string(GetParam().checkpoint) == "nano"; }
};

TEST_P(InvarianceSlow, LongPrompt) {
  const int64_t length = nano() ? 1000 : 510;
  const auto ids = subject_.tokens(length, 20);
  Track whole(subject_);
  ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&whole, ids}}, 16));
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{64}, {100}, {333, 1, 90, 7}}) {
    SCOPED_TRACE(fmt::format("chunks of {}", fmt::join(sizes, ", ")));
    Track cut(subject_);
    int64_t at = 0;
    for (size_t i = 0; at < length; ++i) {
      const int64_t n = std::min(length - at, sizes[i % sizes.size()]);
      ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&cut, {ids.begin() + at, ids.begin() + at + n}}}, 16));
      at += n;
    }
    ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, cut, whole));
  }
  // The last stretch token by token, and again after a rollback.
  Track end(subject_);
  ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&end, {ids.begin(), ids.end() - 20}}}, 16));
  for (auto id = ids.end() - 20; id != ids.end(); ++id) ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&end, {*id}}}, 16));
  ASSERT_NO_FATAL_FAILURE(end.truncate(length - 15));
  for (auto id = ids.end() - 15; id != ids.end(); ++id) ASSERT_NO_FATAL_FAILURE(run_step(subject_, {{&end, {*id}}}, 16));
  ASSERT_NO_FATAL_FAILURE(expect_equal(subject_, end, whole));
}

TEST_P(InvarianceSlow, RandomSchedules) {
  const int seeds = nano() ? 6 : std::string(GetParam().checkpoint) == "many" ? 6 : 20;
  for (int seed = 0; seed < seeds; ++seed) {
    ASSERT_NO_FATAL_FAILURE(
        testing::run_random_schedule(subject_, static_cast<uint64_t>(500 + seed), nano() ? 40 : 60, 8, nano() ? 400 : 500));
  }
}

INSTANTIATE_TEST_SUITE_P(All, InvarianceSlow,
                         ::testing::Values(Setting{"nano", "cpu"}, Setting{"micro", "cpu"}, Setting{"odd", "cpu"},
                                           Setting{"many", "cpu"}),
                         [](const auto& param) { return param.param.name(); });

// The reference is too slow for more than this.
TEST(InvarianceSlowReference, NanoBeyondThePool) {
  Subject subject({"nano", "reference"}, 2);
  const auto ids = subject.tokens(200, 21);
  Track whole(subject);
  ASSERT_NO_FATAL_FAILURE(run_step(subject, {{&whole, ids}}, 16));
  Track cut(subject);
  for (int64_t at = 0; at < 200; at += 67) {
    ASSERT_NO_FATAL_FAILURE(run_step(subject, {{&cut, {ids.begin() + at, ids.begin() + std::min<int64_t>(200, at + 67)}}}, 16));
  }
  ASSERT_NO_FATAL_FAILURE(expect_equal(subject, cut, whole));
}

}  // namespace
}  // namespace deepinfer
