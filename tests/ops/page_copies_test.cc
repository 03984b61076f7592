// Copies of pages beside the operators: each has the bytes of its moment, and nobody has to wait for the device to be told so.

#include "ops/page_copies.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "testing/named_backend.h"
#include "testing/random.h"

namespace deepinfer {
namespace {

std::vector<uint8_t> bytes_of(int64_t count, uint64_t seed) {
  testing::Random random(seed);
  std::vector<uint8_t> out(static_cast<size_t>(count));
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random.between(0, 255));
  return out;
}

class PageCopiesOf : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = testing::why_absent(GetParam()); !why.empty()) GTEST_SKIP() << why;
    backend_ = testing::make_named_backend(GetParam(), &pool_);
    memory_ = &backend_->memory();
    copies_ = &page_copies(*memory_);
  }
  void TearDown() override {
    for (void* data : device_) memory_->free(data);
  }
  uint8_t* device(int64_t bytes) {
    device_.push_back(memory_->allocate(bytes));
    copies_->fence();  // it is zeroed
    return static_cast<uint8_t*>(device_.back());
  }
  uint8_t* pinned(int64_t bytes) {
    pinned_.push_back(copies_->allocate_pinned(bytes));
    return pinned_.back().get();
  }
  std::vector<uint8_t> read(const uint8_t* data, int64_t bytes) {
    std::vector<uint8_t> out(static_cast<size_t>(bytes));
    memory_->download(out.data(), data, bytes);
    return out;
  }

  ThreadPool pool_{1};
  std::unique_ptr<Backend> backend_;
  DeviceMemory* memory_ = nullptr;
  PageCopies* copies_ = nullptr;
  std::vector<void*> device_;
  std::vector<PinnedMemory> pinned_;
};

// Neighbours forward, backward and with gaps, of sizes that are equal or not, aligned or not.
TEST_P(PageCopiesOf, BringPiecesThereAndBack) {
  constexpr int64_t kRoom = 1 << 20;
  uint8_t* const there = device(kRoom);
  uint8_t* const here = pinned(kRoom);
  uint8_t* const back = pinned(kRoom);
  const std::vector<std::vector<CopyPiece>> cases = [&] {
    std::vector<std::vector<CopyPiece>> all;
    const auto at = [&](int64_t d, int64_t h, int64_t bytes) { return CopyPiece{there + d, here + h, bytes}; };
    std::vector<CopyPiece> rows, backward, steps, odd;
    for (int64_t i = 0; i < 20; ++i) {
      rows.push_back(at(i * 4096, i * 4096, 4096));
      backward.push_back(at((19 - i) * 4096, i * 1000, 900));
      steps.push_back(at(i * 5000 + 7, i * 3001 + 1, 2999));
      odd.push_back(at(i * 9000, (i * 7 % 20) * 9000, 1 + i * 431));
    }
    all = {rows, backward, steps, odd, {at(3, 5, 1)}, {at(0, 0, 0)}, {}, {at(0, 0, kRoom)}};
    std::vector<CopyPiece> mixed = rows;  // a run, a break, another run
    mixed[10].bytes = 17;
    all.push_back(mixed);
    return all;
  }();
  for (size_t n = 0; n < cases.size(); ++n) {
    const std::vector<uint8_t> want = bytes_of(kRoom, n);
    std::copy(want.begin(), want.end(), here);
    std::vector<uint8_t> expected(static_cast<size_t>(kRoom), 0x11);
    memory_->upload(there, expected.data(), kRoom);
    copies_->fence();
    const PageCopies::Ticket up = copies_->to_device(cases[n], copies_->last_fence());
    copies_->operators_wait(up);
    for (const CopyPiece& p : cases[n]) std::copy(p.host, p.host + p.bytes, expected.begin() + (p.device - there));
    EXPECT_EQ(read(there, kRoom), expected) << "case " << n;
    copies_->wait(up);
    EXPECT_TRUE(copies_->done(up));
    std::fill(back, back + kRoom, 0x22);
    std::vector<CopyPiece> down = cases[n];
    for (CopyPiece& p : down) p.host = back + (p.host - here);
    copies_->wait(copies_->to_host(down, copies_->last_fence()));
    for (const CopyPiece& p : down)
      EXPECT_TRUE(std::equal(p.host, p.host + p.bytes, expected.begin() + (p.device - there))) << "case " << n;
  }
}

// More often than there are events to be had, and with the copies well behind.
TEST_P(PageCopiesOf, OperatorsComeBehindWhatTheyWaitFor) {
  constexpr int64_t kBytes = 64 << 10;
  constexpr int kSlots = 8, kRounds = 600;
  std::vector<uint8_t*> pages, staged;
  std::vector<PageCopies::Ticket> tickets(kSlots);
  for (int i = 0; i < kSlots; ++i) pages.push_back(device(kBytes)), staged.push_back(pinned(kBytes));
  uint8_t* const out = device(kRounds);
  for (int round = 0; round < kRounds; ++round) {
    const auto slot = static_cast<size_t>(round % kSlots);
    copies_->wait(tickets[slot]);
    std::fill(staged[slot], staged[slot] + kBytes, static_cast<uint8_t>(round * 7 + 1));
    copies_->fence();  // the page was read
    const CopyPiece piece{pages[slot], staged[slot], kBytes};
    tickets[slot] = copies_->to_device({&piece, 1}, copies_->last_fence());
    copies_->operators_wait(tickets[slot]);
    memory_->copy(out + round, pages[slot] + kBytes - 1, 1);
  }
  const std::vector<uint8_t> got = read(out, kRounds);
  for (int round = 0; round < kRounds; ++round)
    ASSERT_EQ(got[static_cast<size_t>(round)], static_cast<uint8_t>(round * 7 + 1)) << round;
  for (const PageCopies::Ticket ticket : tickets) copies_->wait(ticket);
}

TEST_P(PageCopiesOf, CopiesComeBehindTheirFence) {
  constexpr int64_t kBytes = 8 << 20;
  uint8_t* const page = device(kBytes);
  for (int round = 1; round < 20; ++round) {
    uint8_t* const back = pinned(kBytes);
    for (int i = 0; i < 30; ++i) memory_->fill(page, static_cast<uint8_t>(100 + i), kBytes);
    memory_->fill(page, static_cast<uint8_t>(round), kBytes);
    copies_->fence();
    const CopyPiece piece{page, back, kBytes};
    const PageCopies::Ticket down = copies_->to_host({&piece, 1}, copies_->last_fence());
    copies_->operators_wait(down);  // or the next fill may be what it brings
    memory_->fill(page, 99, kBytes);
    copies_->wait(down);
    EXPECT_TRUE(std::all_of(back, back + kBytes, [&](uint8_t byte) { return byte == round; })) << round;
  }
}

// A step that is replayed as a whole waits for what was waited for before it, and is behind the fence that follows it.
TEST_P(PageCopiesOf, ReplayedStepsKeepTheirPlace) {
  constexpr int64_t kBytes = 1 << 20;
  uint8_t* const page = device(kBytes);
  uint8_t* const result = device(kBytes);
  uint8_t* const here = pinned(kBytes);
  uint8_t* const back = pinned(kBytes);
  for (int round = 1; round < 12; ++round) {
    std::fill(here, here + kBytes, static_cast<uint8_t>(round));
    copies_->fence();
    const CopyPiece up{page, here, kBytes};
    const PageCopies::Ticket ticket = copies_->to_device({&up, 1}, copies_->last_fence());
    copies_->operators_wait(ticket);
    backend_->replay([&] { memory_->copy(result, page, kBytes); });
    copies_->fence();
    const CopyPiece down{result, back, kBytes};
    copies_->wait(copies_->to_host({&down, 1}, copies_->last_fence()));
    copies_->wait(ticket);
    ASSERT_TRUE(std::all_of(back, back + kBytes, [&](uint8_t byte) { return byte == round; })) << round;
  }
}

TEST_P(PageCopiesOf, AnyThreadMayAskForThem) {
  constexpr int64_t kBytes = 100'000;
  constexpr int kThreads = 4, kRounds = 40;
  std::vector<uint8_t*> pages, here, back;
  for (int i = 0; i < kThreads; ++i)
    pages.push_back(device(kBytes)), here.push_back(pinned(kBytes)), back.push_back(pinned(kBytes));
  std::vector<std::thread> threads;
  std::vector<int> wrong(kThreads);
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<uint8_t> want = bytes_of(kBytes, static_cast<uint64_t>(round) * kThreads + t);
        std::copy(want.begin(), want.end(), here[t]);
        const CopyPiece up{pages[t], here[t], kBytes}, down{pages[t], back[t], kBytes};
        copies_->wait(copies_->to_device({&up, 1}, copies_->last_fence()));
        const PageCopies::Ticket ticket = copies_->to_host({&down, 1}, copies_->last_fence());
        while (!copies_->done(ticket)) std::this_thread::yield();
        wrong[t] += std::equal(want.begin(), want.end(), back[t]) ? 0 : 1;
      }
    });
  }
  for (int i = 0; i < 200; ++i) copies_->fence();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::accumulate(wrong.begin(), wrong.end(), 0), 0);
}

INSTANTIATE_TEST_SUITE_P(All, PageCopiesOf, ::testing::Values("cpu", "guarded", "cuda"),
                         [](const auto& backend) { return backend.param; });

}  // namespace
}  // namespace deepinfer
