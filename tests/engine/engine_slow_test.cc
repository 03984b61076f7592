// What takes minutes: many schedules, many requests.

#include <gtest/gtest.h>
#include <malloc.h>

#include "deepinfer/engine.h"
#include "engine/random_schedule.h"
#include "testing/paths.h"
#include "testing/sanitizer.h"

namespace deepinfer::testing {
namespace {

class SchedulesSlow : public ::testing::TestWithParam<uint64_t> {};
TEST_P(SchedulesSlow, AnswersDoNotDependOnThem) { random_schedule(GetParam(), thinned(1500)); }
INSTANTIATE_TEST_SUITE_P(All, SchedulesSlow, ::testing::Range<uint64_t>(2, 8));

// Bytes that the program has allocated and not given back. Not the resident size: that also counts the pages of the mapped
// checkpoint, which come and go with the machine's page cache, and what the allocator keeps for later.
int64_t allocated_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks) + static_cast<int64_t>(info.hblkhd);
}

// CASES 20: memory does not grow with the number of requests served.
TEST(EngineSlow, MemoryIsSteadyOverTenThousandRequests) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps freed memory back";
#endif
  EngineOptions options;
  options.model = nano_dir();
  options.max_num_seqs = 32;
  options.kv_cache_memory = int64_t{4} << 20;
  options.window_snapshot_memory = int64_t{4} << 20;
  const auto engine = Engine::Create(options);
  ASSERT_TRUE(engine.has_value()) << engine.error().message();
  Request request;
  std::vector<int64_t> allocated;
  std::vector<RequestHandle> open;
  for (int i = 0; i < 10 * 1024; ++i) {
    request.prompt.assign(static_cast<size_t>(2 + i % 20), static_cast<int32_t>(10 + i % 4000));
    request.max_tokens = 2;
    request.ignore_eos = true;
    open.push_back(*(*engine)->submit(request));
    if (open.size() == 64) {
      for (RequestHandle& handle : open) {
        while (handle.next()) {
        }
      }
      open.clear();
    }
    if (i % 1024 == 1023) allocated.push_back(allocated_bytes());  // nothing is open
  }
  // Caches fill up at first; after that nothing may be left behind: 8,192 requests, less than 64 bytes each.
  EXPECT_LT(allocated.back() - allocated[1], int64_t{8192} * 64) << ::testing::PrintToString(allocated);
}

}  // namespace
}  // namespace deepinfer::testing
