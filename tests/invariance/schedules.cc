#include "invariance/schedules.h"

#include <algorithm>

namespace deepinfer::testing {

void run_random_schedule(Subject& subject, uint64_t seed, int steps, int64_t width, int64_t longest) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  Random random(seed);
  std::vector<std::unique_ptr<Track>> tracks;
  std::vector<int64_t> high(static_cast<size_t>(width), 0);  // rollback counts from the longest length
  for (int64_t i = 0; i < width; ++i) tracks.push_back(std::make_unique<Track>(subject));
  for (int step = 0; step < steps; ++step) {
    std::vector<Append> appends;
    std::vector<size_t> order(tracks.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    for (size_t i : order) {
      Track& track = *tracks[i];
      const int64_t what = random.below(20);
      if (what == 0) {
        track.truncate(0);
        high[i] = 0;
      } else if (what < 6 && track.length() > 0) {
        const int64_t least = std::max<int64_t>(0, high[i] - track.state->slack());
        track.truncate(random.between(least, track.length()));
        if (track.length() == 0) high[i] = 0;
      }
      if (what >= 16) continue;
      const int64_t kind = random.below(10);
      int64_t count = kind < 4 ? 1 : kind < 7 ? random.between(2, 6) : kind < 9 ? random.between(7, 40) : random.between(60, 150);
      count = std::min(count, longest - track.length());
      if (count < 1) continue;
      appends.push_back({&track, subject.tokens(count, random.bits())});
      high[i] = std::max(high[i], track.length() + count);
    }
    if (appends.empty()) continue;
    ASSERT_NO_FATAL_FAILURE(run_step(subject, appends, 5)) << "step " << step;
  }
  for (size_t i = 0; i < tracks.size(); ++i) {
    SCOPED_TRACE(fmt::format("sequence {}", i));
    ASSERT_NO_FATAL_FAILURE(expect_true(subject, *tracks[i], 5));
  }
}

}  // namespace deepinfer::testing
