#include "engine/random_schedule.h"

#include <gtest/gtest.h>

#include "engine/core_harness.h"
#include "testing/random.h"

namespace deepinfer::testing {
namespace {

/// A few requests, mostly over common beginnings, so that hits, duplicates and evictions happen.
class Requests {
 public:
  explicit Requests(uint64_t seed) : random_(seed * 1'000'003) {
    for (uint64_t i = 0; i < 3; ++i) stems_.push_back(random_prompt(900, seed * 31 + i));
    for (int i = 0; i < 14; ++i) kinds_.push_back(make());
    answers_.resize(kinds_.size());
  }

  size_t pick() { return static_cast<size_t>(random_.below(static_cast<int64_t>(kinds_.size()))); }
  const Request& request(size_t i) const { return kinds_[i]; }
  const std::vector<Answer>& alone(size_t i) {
    if (answers_[i].empty()) answers_[i] = run_alone(kinds_[i]);
    return answers_[i];
  }

 private:
  Request make() {
    const std::vector<int32_t>& stem = stems_[static_cast<size_t>(random_.below(3))];
    const int64_t shared = random_.below(4) == 0 ? 0 : random_.between(0, 700);
    std::vector<int32_t> prompt(stem.begin(), stem.begin() + shared);
    const auto tail = random_prompt(random_.between(1, 90), random_.bits());
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    Request r = make_request(std::move(prompt), random_.between(1, 60), random_.bits());
    r.replay = ReplayMode::kExact;
    r.n = random_.below(5) == 0 ? random_.between(2, 4) : 1;
    r.ignore_eos = random_.below(3) != 0;
    r.cache_class = random_.below(4) == 0 ? "agent" : random_.below(10) == 0 ? "pinned" : "chat";
    if (random_.below(4) == 0) r.sampling.repetition_penalty = 1.3f;
    if (random_.below(4) == 0) r.sampling.temperature = 0;
    if (random_.below(4) == 0) r.stop = {"e", "the"};
    if (random_.below(8) == 0) r.prompt_logprobs = 1;
    if (random_.below(6) == 0) r.priority = random_.between(-2, 2);
    if (random_.below(6) == 0) r.cache_salt = "tenant";
    if (random_.below(3) == 0) r.structured_output = form();
    if (*r.seed % 6 == 0) {  // many, or none would ever be begun
      for (int32_t id = 300; id + 8 < 4000; id += 9)
        r.sampling.bad_words.push_back(id % 2 == 0 ? std::vector{id} : std::vector{id, id + 7});
    }
    return r;
  }

  StructuredOutput form() {
    StructuredOutput out;
    switch (random_.below(4)) {
      case 0:
        out.form = grammar::JsonObjectSpec{};
        break;
      case 1:
        out.form = grammar::RegexSpec{"([a-z]{1,8} ){2,20}[a-z]+\\."};
        break;
      case 2:
        out.form = grammar::ChoiceSpec{{"yes", "no", "perhaps, but not today"}};
        break;
      default:
        out.form = grammar::JsonSchemaSpec{R"({"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 2})"};
        break;
    }
    if (random_.below(4) == 0) out.start_after = random_prompt(1, random_.bits())[0];  // any token, which may never come
    return out;
  }

  Random random_;
  std::vector<std::vector<int32_t>> stems_;
  std::vector<Request> kinds_;
  std::vector<std::vector<Answer>> answers_;
};

struct Life {
  size_t kind = 0;
  bool cancelled = false;
};

}  // namespace

void random_schedule(uint64_t seed, int64_t turns) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  Random random(seed * 7'654'321);
  Requests requests(seed);
  for (size_t i = 0; i < 14; ++i) requests.alone(i);
  CoreSetup setup;
  setup.pages = random.between(24, 60);
  setup.max_num_seqs = random.between(4, 9);
  setup.max_num_batched_tokens = random.between(20, 150);
  setup.async = random.below(4) != 0;
  const int64_t speculation = random.below(4);
  if (speculation > 0) setup.speculation = speculation == 1 ? SpeculationMode::kVariable : SpeculationMode::kFixed;
  setup.drafts = random.between(1, 5);
  setup.snapshot_bytes = random.below(3) == 0 ? 0 : int64_t{1} << random.between(18, 24);
  // Most prompts and answers in this pool do not fit together, so that pages run out again and again.
  CoreHarness h(setup);
  std::map<RequestId, Life> lives;
  int64_t compared = 0;
  for (int64_t turn = 0; turn < turns || h.core().busy(); ++turn) {
    const bool open = turn < turns;
    const int64_t what = open ? random.below(100) : 99;
    if (what < 22 && h.core().waiting() < 12) {
      const size_t kind = requests.pick();
      const auto id = h.try_submit(requests.request(kind));
      if (id) lives[*id] = {kind, false};
    } else if (what < 26 && !lives.empty()) {
      auto it = lives.begin();
      std::advance(it, random.below(static_cast<int64_t>(lives.size())));
      it->second.cancelled = true;
      h.core().end(it->first, FinishReason::kCancelled);
      h.core().check_invariants();
    } else if (what < 32) {
      const auto running = h.core().running_ids();
      if (!running.empty()) h.core().preempt(running[static_cast<size_t>(random.below(static_cast<int64_t>(running.size())))]);
      h.core().check_invariants();
    } else if (what < 33) {
      h.cache().clear();
    } else if (what < 34) {
      h.now += 400;
      h.cache().expire(h.now);
      h.windows().expire(h.now);
    } else {
      h.turn();
    }
    for (auto it = lives.begin(); it != lives.end();) {
      if (!h.finished(it->first)) {
        ++it;
        continue;
      }
      const auto& want = requests.alone(it->second.kind);
      const auto& got = h.answers(it->first);
      for (size_t c = 0; c < got.size(); ++c) {
        const std::string name = fmt::format("request {} kind {} choice {}", it->first, it->second.kind, c);
        ASSERT_TRUE(got[c].finish.has_value()) << name;
        if (it->second.cancelled && got[c].finish == FinishReason::kCancelled) {
          expect_prefix(got[c], want[c], name);
        } else {
          expect_same(got[c], want[c], name);
          ++compared;
        }
        if (::testing::Test::HasFatalFailure()) return;
      }
      it = lives.erase(it);
    }
    ASSERT_LT(turn, turns * 50) << "no end";
  }
  EXPECT_GT(compared, turns / 100);
}

}  // namespace deepinfer::testing
