#include "invariance/schedules.h"

#include <algorithm>

namespace deepinfer::testing {
namespace {

/// A new sequence in the state of `track`. `high`: the longest length of each of the `others`; that of `track` is returned.
int64_t start_again(Track& track, Track& donor, std::vector<std::unique_ptr<Track>>& others, const std::vector<int64_t>& high,
                    Random& random) {
  track.restart();
  const auto index = static_cast<size_t>(random.below(static_cast<int64_t>(others.size())));
  Track& other = *others[index];
  const bool usable = &other != &track && other.length() > 0;
  switch (random.below(5)) {
    case 0: {
      const int64_t hit = random.between(1, donor.length());
      track.adopt(donor, hit, random.between(0, hit - hit % 2));
      break;
    }
    case 1: {
      if (!usable || other.length() < other.state->write_floor()) break;  // a replay cannot be resumed from a snapshot
      WindowSnapshot snapshot;
      other.state->save_window(snapshot);
      track.restore(other, snapshot);
      // What the other has still to skip.
      if (other.state->decoder_start() > other.length()) track.set_decoder_start(other.state->decoder_start());
      break;
    }
    case 2:
      if (!usable) break;
      track.fork(other, false);
      return high[index];  // a fork's rings have room for no more than the original's
    default:
      break;
  }
  return track.length();
}

}  // namespace

void run_random_schedule(Subject& subject, uint64_t seed, int steps, int64_t width, int64_t longest) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  Random random(seed);
  std::vector<std::unique_ptr<Track>> tracks;
  std::vector<int64_t> high(static_cast<size_t>(width), 0);  // rollback counts from the longest length
  for (int64_t i = 0; i < width; ++i) tracks.push_back(std::make_unique<Track>(subject, true));
  Track donor(subject);
  ASSERT_NO_FATAL_FAILURE(run_step(subject, {{&donor, subject.tokens(longest * 2 / 3, seed)}}, longest));
  const auto donor_before = snapshot(subject, *donor.state);
  for (int step = 0; step < steps; ++step) {
    std::vector<Append> appends;
    std::vector<size_t> order(tracks.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    for (size_t i : order) {
      Track& track = *tracks[i];
      const int64_t what = random.below(20);
      if (what < 2 || (step == 0 && what < 12)) {
        ASSERT_NO_FATAL_FAILURE(high[i] = start_again(track, donor, tracks, high, random));
      } else if (what < 6 && track.length() > 0) {
        const int64_t least = std::max({int64_t{0}, high[i] - track.state->slack(), track.state->write_floor()});
        if (least <= track.length()) {
          ASSERT_NO_FATAL_FAILURE(track.truncate(random.between(least, track.length())));
        }
        if (track.length() == 0) high[i] = 0;
      }
      if (what >= 18) continue;
      if (what >= 15) {
        ASSERT_NO_FATAL_FAILURE(track.set_decoder_start(track.length() + random.between(0, 40)));
      }
      const int64_t kind = random.below(10);
      int64_t count = kind < 4 ? 1 : kind < 7 ? random.between(2, 6) : kind < 9 ? random.between(7, 40) : random.between(60, 150);
      count = std::min(count, longest - track.length());
      if (count < 1) continue;
      std::vector<int32_t> ids = subject.tokens(count, random.bits());
      // Replay is of the prefix's own tokens.
      for (int64_t p = track.length(); p < std::min(track.state->write_floor(), track.length() + count); ++p)
        ids[static_cast<size_t>(p - track.length())] = donor.tokens[static_cast<size_t>(p)];
      appends.push_back({&track, std::move(ids)});
      high[i] = std::max(high[i], track.length() + count);
    }
    if (appends.empty()) continue;
    ASSERT_NO_FATAL_FAILURE(run_step(subject, appends, 5)) << "step " << step;
  }
  for (size_t i = 0; i < tracks.size(); ++i) {
    SCOPED_TRACE(fmt::format("sequence {}", i));
    ASSERT_NO_FATAL_FAILURE(expect_true(subject, *tracks[i], 5));
  }
  ASSERT_EQ(snapshot(subject, *donor.state), donor_before) << "a shared page was written";
}

}  // namespace deepinfer::testing
